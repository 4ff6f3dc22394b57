"""Limits on the ratio of two runs' figures, for continuous integration: which method of the second run became worse.

The ratio is that of the second run over the first, paired by case. A limit is exceeded if the complete interval of the
ratio is beyond it; if only the ratio itself is, the limit is undecided. Without an interval the ratio decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specbench import stats
from specbench.input import InputError
from specbench.records.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.columns import COLUMN
from specbench.report.frames.cases import Cases, CasesOfRun
from specbench.report.frames.findings import Findings
from specbench.report.frames.trials import BLANK, Values
from specbench.stats import Estimate

FAILS, UNDECIDED, PASSES, MISSING = "fails", "inconclusive", "passes", "missing"
_LIMIT = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9]*\.?[0-9]+)\s*")
# Columns of which a case has a part and a whole; the figure is the sum of the parts over that of the wholes.
_SHARES = {
    "mat": ("emitted", "steps"),
    "tokens_per_s": ("tokens", "time_s"),
    "decode_tokens_per_s": ("decode_tokens", "decode_time_s"),
    "draft_rate": ("drafted_steps", "steps"),
    "mean_draft": ("proposed", "steps"),
    "tokens_fed": ("fed", "steps"),
    "joules_per_token": ("energy_j", "all_tokens"),
    "loop_share": ("repeated", "all_tokens"),
    "prefill_ms": ("prefill_s", "turns"),
    "time_only_step_ms": ("decode_time_s", "steps"),
    **{f"{phase}_ms": (f"{phase}_s", "steps") for phase in PHASES},
}
_OVER_VANILLA = {  # vanilla's part over its whole, over the method's
    **dict.fromkeys(("speedup", "time_only_speedup"), ("time_s", "tokens")),
    "decode_speedup": ("decode_time_s", "decode_tokens"),
}
LIMITED = tuple(name for name, column in COLUMN.items() if column.value is not None and name != "load")


@dataclass(frozen=True, slots=True)
class Limit:
    """The smallest (``<``) or largest (``>``) ratio of a column that passes. text: as it was given."""

    text: str
    column: str
    side: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Reads ``COLUMN<RATIO`` or ``COLUMN>RATIO``. Raises InputError."""
        found = _LIMIT.fullmatch(text)
        if found is None or not 0 < float(found[3]) < math.inf:
            raise InputError(
                f"--fail {text}: expected COLUMN<RATIO or COLUMN>RATIO with a ratio of B over A above 0, as 'mat<0.98'"
            )
        if found[1] not in LIMITED:
            raise InputError(f"--fail {text}: there is no column {found[1]}; expected one of {', '.join(LIMITED)}")
        return cls(text.strip(), found[1], found[2], float(found[3]))

    def judge(self, ratio: Estimate) -> str:
        """Returns whether a ratio fails, passes, or is undecided."""
        if math.isnan(ratio.value):
            return MISSING
        sign = 1 if self.side == "<" else -1
        near, far = (ratio.low, ratio.high) if self.side == "<" else (ratio.high, ratio.low)
        if sign * (ratio.value - self.bound) >= 0:
            return PASSES
        return FAILS if near is None or far is None or sign * (far - self.bound) < 0 else UNDECIDED


@dataclass(frozen=True, slots=True)
class Check:
    """A limit on a method: its figures in both runs, the ratio, and the verdict."""

    limit: Limit
    method: str
    values: tuple[float, float]
    ratio: Estimate
    verdict: str


def check_limits(both: Sequence[Findings], limits: Sequence[Limit]) -> list[Check]:
    """Checks every limit on every method of two runs. both: of the first run and of the second.

    A method that only one run has, or that has the figure in one run only, is missing. Raises InputError if no method
    has the figure of a limit in both, or if the runs share no case.
    """
    sides = [_read(found) for found in both]
    methods = [name for name in dict.fromkeys((*sides[0], *sides[1])) if name != CONTROL]
    checks = []
    for limit in limits:
        by_definition = (VANILLA,) if limit.column in (*_OVER_VANILLA, "predicted_speedup") else ()
        own = []
        for method in (name for name in methods if name not in by_definition):
            values = tuple(_value(found, method, limit.column) for found in both)
            if all(map(math.isnan, values)):
                continue
            known = not any(map(math.isnan, values))
            ratio = _ratio(sides, method, limit.column, values) if known else Estimate(BLANK, None, None, 0)
            own.append(Check(limit, method, (values[0], values[1]), ratio, limit.judge(ratio)))
        if all(check.verdict == MISSING for check in own):
            raise InputError(
                f"--fail {limit.text}: no method has {limit.column} in both runs; expected runs that have it (times are"
                " those of a model, not of a replay)"
            )
        checks += own
    return checks


def _read(found: Findings) -> dict[str, tuple[CasesOfRun, Cases, Cases]]:
    """Method -> the cases of its run, its own that succeeded, and vanilla's."""
    read = {}
    for entry in found.reported:
        cases = CasesOfRun(entry.trials, entry.prediction)
        vanilla = cases.of(OVERALL, VANILLA).succeeded()
        for method in entry.facts.methods:
            read.setdefault(method, (cases, cases.of(OVERALL, method).succeeded(), vanilla))
    return read


def _value(found: Findings, method: str, column: str) -> float:
    rows = found.summary[(found.summary["category"] == OVERALL) & (found.summary["method"] == method)]
    return float(rows[column].iloc[0]) if len(rows) else BLANK


def _ratio(
    sides: Sequence[dict[str, tuple[CasesOfRun, Cases, Cases]]], method: str, column: str, values: Sequence[float]
) -> Estimate:
    """The second run's figure over the first one's, on the cases that succeeded in both."""
    parts = _SHARES.get(column) or _OVER_VANILLA.get(column)
    if parts is None:
        return Estimate(values[1] / values[0] if values[0] else BLANK, None, None, 0)
    columns = [list(_columns(side[method], parts, column in _OVER_VANILLA)) for side in sides]
    names = [found[0] for found in columns]
    shared, *places = np.intersect1d(*names, assume_unique=True, return_indices=True)
    if not len(shared):
        raise InputError(f"the runs share no case of {method}; expected two runs on the same questions")
    one, two = ([each[place] for each in found[1:]] for found, place in zip(columns, places, strict=True))
    if column in _OVER_VANILLA:
        return stats.rates(np.stack([one, two], axis=1)).over(1, 0)
    return stats.estimates([(*two, *one)])[0]


def _columns(found: tuple[CasesOfRun, Cases, Cases], parts: tuple[str, str], paired: bool) -> Iterator[Values]:
    """(C,) names of the cases, then vanilla's columns if ``paired``, then the method's."""
    cases, own, vanilla = found
    if paired:
        own, vanilla = own.paired(vanilla)
    yield cases.names(own).astype(str)
    if paired:
        yield from (vanilla[part] for part in parts)
    yield from (own[part] for part in parts)
