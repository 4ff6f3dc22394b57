"""Limits on the ratio of two runs' figures, for continuous integration: which method of the second
run became worse.

The ratio is that of the second run over the first, paired by case. A limit is exceeded if the
complete interval of the ratio is beyond it; if only the ratio itself is, the limit is undecided.
Without an interval the ratio decides, except for times under load. A time of a method is undecided,
too, if vanilla's own became worse: the machine may have changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench import stats
from specbench.input import InputError
from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.columns import COLUMN, Column, Sums
from specbench.report.frames.cases import CasesOfRun, overall
from specbench.report.frames.facts import Facts
from specbench.report.frames.findings import Findings
from specbench.report.frames.trials import BLANK, Values, ratio
from specbench.stats import Estimate

FAILS, UNDECIDED, PASSES, MISSING = "fails", "inconclusive", "passes", "missing"
_LIMIT = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9]*\.?[0-9]+)\s*")
_UNBOUNDED = ("load", "efficiency")  # texts, and a quotient of figures that has no interval
LIMITED = tuple(
    name for name, column in COLUMN.items() if column.value is not None and name not in _UNBOUNDED
)


@dataclass(frozen=True, slots=True)
class Limit:
    """The smallest (``<``) or largest (``>``) ratio of a column that passes. text: as it was
    given.
    """

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
                f"--fail {text}: expected COLUMN<RATIO or COLUMN>RATIO with a ratio of B over A"
                " above 0, as 'mat<0.98'"
            )
        if found[1] not in LIMITED:
            what = "interval of the column" if found[1] in COLUMN else "column"
            raise InputError(
                f"--fail {text}: there is no {what} {found[1]}; expected one of"
                f" {', '.join(LIMITED)}"
            )
        return cls(text.strip(), found[1], found[2], float(found[3]))

    def judge(self, found: Estimate) -> str:
        """Returns whether a ratio fails, passes, or is undecided."""
        if math.isnan(found.value):
            return MISSING
        sign = 1 if self.side == "<" else -1
        near, far = (found.low, found.high) if self.side == "<" else (found.high, found.low)
        if sign * (found.value - self.bound) >= 0:
            return PASSES
        return FAILS if near is None or far is None or sign * (far - self.bound) < 0 else UNDECIDED


@dataclass(frozen=True, slots=True)
class Check:
    """A limit on a method: its figures in both runs, the ratio, and the verdict.

    reason: what makes the ratio undecided, or its reading doubtful; '' if the ratio alone decides.
    """

    limit: Limit
    method: str
    values: tuple[float, float]
    ratio: Estimate
    verdict: str
    reason: str = ""


def check_limits(both: Sequence[Findings], limits: Sequence[Limit]) -> list[Check]:
    """Checks every limit on every method of two runs. both: of the first run and of the second.

    A method that only one run has, or that has the figure in one run only, is missing. Raises
    InputError if no method has the figure of a limit in both, or if the runs share no case.
    """
    sides = [_read(found) for found in both]
    methods = [name for name in dict.fromkeys((*sides[0], *sides[1])) if name != CONTROL]
    checks = []
    for limit in limits:
        column = COLUMN[limit.column]
        by_definition = (column.baseline, VANILLA if limit.column == "predicted_speedup" else "")
        own = []
        for method in (name for name in methods if name not in by_definition):
            values = (_value(both[0], method, limit.column), _value(both[1], method, limit.column))
            if all(map(math.isnan, values)):
                continue
            if any(map(math.isnan, values)):
                own.append(Check(limit, method, values, Estimate(BLANK, None, None, 0), MISSING))
            else:
                own.append(_check(limit, method, values, (sides[0][method], sides[1][method])))
        if all(check.verdict == MISSING for check in own):
            raise InputError(
                f"--fail {limit.text}: no method has {limit.column} in both runs; expected runs"
                " that have it (times are those of a model, not of a replay)"
            )
        checks += own
    return checks


class _Side(NamedTuple):
    """A run of a method."""

    facts: Facts
    cases: CasesOfRun


_Pair = tuple[_Side, _Side]


def _read(found: Findings) -> dict[str, _Side]:
    """Method -> its run."""
    read: dict[str, _Side] = {}
    for entry in found.reported:
        side = _Side(entry.facts, CasesOfRun(entry.trials, entry.prediction))
        for method in entry.facts.methods:
            read.setdefault(method, side)
    return read


def _value(found: Findings, method: str, column: str) -> float:
    rows = overall(found.summary).query("method == @method")
    return float(rows[column].iloc[0]) if len(rows) else BLANK


def _check(limit: Limit, method: str, values: tuple[float, float], sides: _Pair) -> Check:
    """A limit on a method that has the figure in both runs."""
    column = COLUMN[limit.column]
    loaded = column.clocked and any(side.facts.load for side in sides)
    if column.sums is None:
        found = Estimate(_quotient(values[1], values[0]), None, None, 0)
    else:
        one, two = (column.sums.unit(side.facts) for side in sides)
        resamples = 0 if loaded else stats.RESAMPLES
        found = _scale(
            _ratio(sides, method, column.sums, column.baseline, resamples), _quotient(two, one)
        )
    verdict, reason = limit.judge(found), ""
    if loaded and verdict == FAILS:
        verdict = UNDECIDED
        reason = (
            f"{column.figure}: requests that share a server slow each other, so times of cases give"
            " no interval; a limit on them cannot fail under load"
        )
    elif column.clocked and not column.baseline and method != VANILLA and not loaded:
        moved = _machine(sides, column)
        low, high = moved.bounds
        if low > 1 or high < 1:
            reason = (
                f"{column.figure}: vanilla's own ratio is {moved.value:.3f} [{low:.3f},"
                f" {high:.3f}], so the machine or the engine changed between the runs; a method"
                " that became worse with it is inconclusive. Use limits on speedup, which is"
                " paired within each run"
            )
        if verdict == FAILS and (high < 1 if limit.side == "<" else low > 1):
            verdict = UNDECIDED
    return Check(limit, method, values, found, verdict, reason)


def _machine(sides: _Pair, column: Column) -> Estimate:
    """Vanilla's ratio of a time; of its complete decode steps for a phase, which vanilla may not
    have.
    """
    sums = column.sums
    known = all(
        side.facts.timed and len(side.cases.of(OVERALL, VANILLA).succeeded()) for side in sides
    )
    if sums is None or not known:
        return Estimate(BLANK, None, None, 0)
    return _ratio(sides, VANILLA, Sums("decode_time_s", "steps") if sums.partial else sums)


def _quotient(new: float, old: float) -> float:
    """1 if both are 0, infinite if only the old one is."""
    if old == 0:
        return 1.0 if new == 0 else math.copysign(math.inf, new)
    return new / old


def _scale(found: Estimate, unit: float) -> Estimate:
    low, high = (None if bound is None else bound * unit for bound in (found.low, found.high))
    return Estimate(found.value * unit, low, high, found.count)


def _ratio(
    sides: _Pair, method: str, sums: Sums, baseline: str = "", resamples: int = stats.RESAMPLES
) -> Estimate:
    """The second run's quotient over the first one's, on the cases that succeeded in both."""
    (names, one), (others, two) = (_columns(side.cases, method, sums, baseline) for side in sides)
    shared, ours, theirs = np.intersect1d(names, others, assume_unique=True, return_indices=True)
    if not len(shared):
        raise InputError(
            f"the runs share no case of {method}; expected two runs on the same questions"
        )
    one, two = one[:, ours], two[:, theirs]
    if baseline:
        return stats.rates(np.stack([one, two], axis=1), resamples=resamples).over(1, 0)
    found = stats.estimates([(*two, *one)], resamples=resamples)[0]
    if math.isnan(found.value):  # the first run's figure is 0
        new, old = (ratio(*each.sum(axis=1)) for each in (two, one))
        return Estimate(_quotient(new, old), None, None, len(shared))
    return found


def _columns(cases: CasesOfRun, method: str, sums: Sums, baseline: str) -> tuple[Values, Values]:
    """(C,) names of the cases; (2, C) the method's part and whole, or (4, C) after those of the
    baseline.
    """
    own = cases.of(OVERALL, method).succeeded()
    if not baseline:
        return cases.names(own).astype(str), np.stack(sums.columns(own)).astype(np.float64)
    own, before = own.paired(cases.of(OVERALL, baseline).succeeded())
    columns = [*sums.columns(before), *sums.columns(own)]
    return cases.names(own).astype(str), np.stack(columns).astype(np.float64)
