"""How many answers have the reference's number, and how that differs from vanilla's on the same cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from specbench import stats
from specbench.records.record import CONTROL, VANILLA
from specbench.report.frames.reported import ROW, ReportedRun
from specbench.report.frames.trials import BLANK, Columns

_SPREAD = ("", "_low", "_high")
QUALITY = (*ROW, "cases", *(f"{name}{side}" for name in ("correct", "difference") for side in _SPREAD))


def measure_quality(reported: Sequence[ReportedRun]) -> pd.DataFrame:
    """A row a method with checked answers: share correct, and less vanilla's share on the cases that both finished.

    A case's share is the mean over its rounds. Intervals: bootstrap over cases, the two sides of a case together.
    """
    rows = []
    for entry in reported:
        cases = len(entry.trials.cases)
        shares = {name: _shares(each.columns, cases) for name, each in entry.trials.methods.items()}
        vanilla = shares.get(VANILLA, np.full(cases, BLANK))
        for method in (name for name in entry.facts.methods if name in shares and name != CONTROL):
            own = shares[method]
            known, both = ~np.isnan(own), ~np.isnan(own - vanilla)
            if known.any():
                correct = _spread(own[known])
                difference = (BLANK,) * 3 if method == VANILLA else _spread((own - vanilla)[both])
                rows.append((*entry.key(method), int(known.sum()), *correct, *difference))
    return pd.DataFrame(rows, columns=list(QUALITY))


def _shares(columns: Columns, cases: int) -> np.ndarray:
    """(C,) share of a case's rounds that are correct; NaN where none was checked."""
    rows = columns["checked"] & columns["counted"]
    checked, correct = (
        np.bincount(columns["case"][rows & kept], minlength=cases) for kept in (rows, columns["correct"])
    )
    return np.divide(correct, checked, out=np.full(cases, BLANK), where=checked > 0)


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and interval."""
    [found] = stats.estimates([(values, np.ones(len(values)))])
    return found.value, *found.bounds
