"""One speedup as a product: what a step brings, what its forward costs, and what the rest of the step costs.

With F the forward and S the whole decode step, m a method and v vanilla,

    speedup = MAT  x  F_v / F_m  x  (F_m / S_m) / (F_v / S_v)  x  remainder.

Modelled, F comes from a latency profile at the recorded tokens fed and contexts, F_v / F_m is T(1) / T(q), and there is
no remainder. Measured, F and S are the recorded phases; the remainder is what is in no phase: time between them,
and tokens that a step emitted beyond the end of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from specbench.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.data.audit import MEASURED, MODELLED
from specbench.report.data.findings import Findings

FACTORS = ("mat", "forward", "overhead", "remainder")
_KEYS = ("model", "suite", "method", "variant")
_COLUMNS = (*_KEYS, "basis", *FACTORS, "speedup")


def explain(findings: Findings) -> pd.DataFrame:
    """A row a method and basis, measured and modelled, whose four factors multiply to its decode speedup.

    Methods without recorded phases, and what was not timed or has no profile, have no row.
    """
    rows = [*_measured(findings), *_modelled(findings)]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _measured(findings: Findings) -> Iterator[dict[str, object]]:
    overall = findings.summary[findings.summary["category"] == OVERALL]
    for _, group in overall.groupby(["model", "suite"], sort=False):
        base = group[(group["method"] == VANILLA) & group["forward_ms"].notna()]
        if base.empty:
            continue
        vanilla = base.iloc[0]
        for _, row in group[~group["method"].isin([VANILLA, CONTROL])].iterrows():
            figures = row[["mat", "forward_ms", "decode_speedup"]].astype(float)
            if figures.notna().all():
                forward = vanilla["forward_ms"] / row["forward_ms"]
                overhead = (row["forward_ms"] / _step_ms(row)) / (vanilla["forward_ms"] / _step_ms(vanilla))
                yield _row(tuple(row[list(_KEYS)]), MEASURED, (row["mat"], forward, overhead), row["decode_speedup"])


def _step_ms(row: pd.Series) -> float:
    return float(np.nansum([row[f"{phase}_ms"] for phase in PHASES]))


def _modelled(findings: Findings) -> Iterator[dict[str, object]]:
    for reported in findings.reported:
        found = reported.prediction
        for method, cases in (found.cases if found else {}).items():
            factors, speedup = _of_profile(cases)
            yield _row(reported.key(method), MODELLED, factors, speedup)


def _of_profile(cases: pd.DataFrame) -> tuple[tuple[float, float, float], float]:
    total = cases.sum()
    ideal = total["vanilla_ideal_ms"] / total["ideal_ms"]
    mat = total["emitted"] / total["steps"]
    speedup = float(total["vanilla_ms"] / total["method_ms"])
    return (float(mat), float(ideal / mat), float(speedup / ideal)), speedup


def _row(key: tuple[object, ...], basis: str, factors: tuple[float, float, float], speedup: float) -> dict[str, object]:
    figures = (*factors, speedup / float(np.prod(factors)), speedup)
    return dict(zip(_COLUMNS, (*key, basis, *map(float, figures)), strict=True))
