"""The most requests under an objective: of runs that differ in their load, the loads at which it holds and fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench.records.record import CONTROL, LoadKind
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.served import without_load
from specbench.report.frames.trials import BLANK
from specbench.report.table import ROW
from specbench.serving.objective import Kept, Objective, Verdict, judge, measure_capacity
from specbench.serving.scheduler import NEVER

CLOSED, TRACE = LoadKind.CLOSED.value, LoadKind.TRACE.value
_SHARE = ("", "_low", "_high")
OBJECTIVE = (
    *ROW,
    *("kind", "requests", "objective", "loads"),
    *(f"{end}{figure}" for end in ("holds", "fails") for figure in ("", *(f"_kept{side}" for side in _SHARE))),
    "saturated",
)
_Group = tuple[Any, ...]  # the first columns of a row, up to the objective


def find_boundaries(reported: Sequence[ReportedRun]) -> pd.DataFrame:
    """One row per method and kind of load, of runs of at least two loads with an objective (``load.slo``).

    holds, fails: the largest load at which it holds with 95 % confidence, and the smallest one above at which it fails,
    each with the share of the requests that were within the limits. Without such a load they are blank. It fails at the
    capacity, the rate of a closed loop with as many places and the same answers. saturated: the smallest load above
    ``holds`` at which the queue only grows: a stretch was given up, or the capacity. loads: how many were decided.
    """
    verdicts: defaultdict[_Group, dict[float, Verdict]] = defaultdict(dict)
    saturated: defaultdict[_Group, list[float]] = defaultdict(list)
    unlike: set[_Group] = set()  # whose answers are not those of a closed loop
    capacities: dict[tuple[str, ...], float] = {}
    for entry in reported:
        load = entry.facts.load
        objective = Objective.of(load.get("slo") or {})
        for method in entry.facts.methods if objective.limited and load else ():
            if method == CONTROL:
                continue
            *place, variant = entry.key(method)
            closed = load["kind"] == CLOSED
            named = (*place, without_load(variant))
            records = list(entry.records(method))
            if closed:
                capacities[*named, str(load["requests"])] = measure_capacity(records, load["requests"])
            amount = load["requests"] if closed else load.get("rate")
            kept = Kept.of(records, objective)
            verdict = judge(kept.shares, kept.requests, objective.share)
            unknown = any(objective.lacks(turn) for record in records for turn in record.turns)
            if verdict is None or amount is None or unknown:
                continue
            group = (*named, str(load["kind"]), None if closed else load["requests"], objective.spell())
            verdicts[group][float(amount)] = verdict
            saturated[group] += [float(amount)] if kept.given_up else []
            if load["kind"] == TRACE and load.get("answers") != "free":
                unlike.add(group)
    rows: list[dict[str, Any]] = []
    for group, found in verdicts.items():
        known = None if group[4] == CLOSED or group in unlike else capacities.get((*group[:4], str(group[5])))
        capacity = [known] if known else []  # 0 if all failed
        if len(found) + len(capacity) < 2:
            continue
        kept_at = [load for load, verdict in found.items() if verdict.sign > 0 and load < min(capacity, default=NEVER)]
        holds = max(kept_at, default=BLANK)
        failed = [load for load, verdict in found.items() if verdict.sign < 0]
        above, grows = ([load for load in (*own, *capacity) if not load <= holds] for own in (failed, saturated[group]))
        row = dict(zip(OBJECTIVE, group, strict=False)) | {"loads": len(found)}
        for end, amount in (("holds", holds), ("fails", min(above, default=BLANK))):
            own = found.get(amount)
            shares = (own.share, own.low, own.high) if own else (BLANK,) * 3
            row |= {end: amount} | {f"{end}_kept{side}": share for side, share in zip(_SHARE, shares, strict=True)}
        rows.append(row | {"saturated": min(grows, default=BLANK)})
    return pd.DataFrame(rows, columns=list(OBJECTIVE))
