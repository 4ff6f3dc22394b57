"""The most requests under an objective: of runs that differ in their load, the loads at which it
holds and fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from specbench.records.record import CONTROL, LoadKind
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.served import without_load
from specbench.report.frames.trials import BLANK
from specbench.report.table import ROW
from specbench.serving.objective import Boundary, Kept, Objective, Verdict, judge, measure_capacity
from specbench.serving.scheduler import NEVER

CLOSED, TRACE = LoadKind.CLOSED.value, LoadKind.TRACE.value
_SHARE = ("", "_low", "_high")
OBJECTIVE = (
    *ROW,
    *("kind", "requests", "objective", "loads"),
    *(
        f"{end}{figure}"
        for end in ("holds", "fails")
        for figure in ("", *(f"_kept{side}" for side in _SHARE))
    ),
    "saturated",
)


class _Group(NamedTuple):
    """The loads of a row of the table. names: in the order of ``ROW``."""

    names: tuple[str, ...]
    kind: str
    requests: int | None
    objective: str


def find_boundaries(reported: Sequence[ReportedRun]) -> pd.DataFrame:
    """One row per method and kind of load, of runs of at least two loads with an objective
    (``load.slo``).

    holds, fails: the largest load at which it holds with 95 % confidence, and the smallest one
    above at which it fails, each with the share of the requests that were within the limits.
    Without such a load they are blank. It fails at the capacity, the rate of a closed loop with as
    many places and the same answers. saturated: the smallest load above ``holds`` at which the
    queue only grows: a stretch was given up, or the capacity. loads: how many were decided.
    """
    verdicts: defaultdict[_Group, dict[float, Verdict]] = defaultdict(dict)
    saturated: defaultdict[_Group, list[float]] = defaultdict(list)
    unlike: set[_Group] = set()  # whose answers are not those of a closed loop
    capacities: dict[tuple[tuple[str, ...], int], float] = {}
    for entry in reported:
        load = entry.facts.load
        objective = Objective.of(load.get("slo") or {})
        for method in entry.facts.methods if objective.limited and load else ():
            if method == CONTROL:
                continue
            *place, variant = entry.key(method)
            closed = load["kind"] == CLOSED
            names = (*place, without_load(variant))
            records = list(entry.records(method))
            if closed:
                capacities[names, load["requests"]] = measure_capacity(records, load["requests"])
            amount = load["requests"] if closed else load.get("rate")
            kept = Kept.of(records, objective)
            verdict = judge(kept.shares, kept.requests, objective.share)
            if verdict is None or amount is None:
                continue
            group = _Group(
                names, str(load["kind"]), None if closed else load["requests"], objective.spell()
            )
            verdicts[group][float(amount)] = verdict
            saturated[group] += [float(amount)] if kept.given_up else []
            if load["kind"] == TRACE and load.get("answers") != "free":
                unlike.add(group)
    rows: list[dict[str, Any]] = []
    for group, found in verdicts.items():
        known = (
            group.requests is not None
            and group not in unlike
            and capacities.get((group.names, group.requests))
        )
        capacity = known or NEVER  # 0 if all failed
        if len(found) + (capacity < NEVER) < 2:
            continue
        boundary = Boundary.of(
            {load: verdict.sign for load, verdict in found.items()}, saturated[group], capacity
        )
        row: dict[str, Any] = dict(zip(ROW, group.names, strict=True))
        row |= {
            "kind": group.kind,
            "requests": group.requests,
            "objective": group.objective,
            "loads": len(found),
        }
        for end, amount in (("holds", boundary.holds or BLANK), ("fails", _blank(boundary.fails))):
            own = found.get(amount)
            shares = (own.share, own.low, own.high) if own else (BLANK,) * 3
            row |= {end: amount} | {
                f"{end}_kept{side}": share for side, share in zip(_SHARE, shares, strict=True)
            }
        rows.append(row | {"saturated": _blank(boundary.saturated)})
    return pd.DataFrame(rows, columns=list(OBJECTIVE))


def _blank(load: float) -> float:
    """A load as a cell of the table, blank if there is no such load."""
    return load if load < NEVER else BLANK
