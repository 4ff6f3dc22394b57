"""Requests that shared a server: throughput, waits, and the speedup over vanilla under the same
load.

The unit of an interval is the stretch, not the request: requests of one stretch slow each other. A
stretch of vanilla and one of the method serve the same cases, so they are paired.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench import stats
from specbench.records.record import CONTROL, VANILLA, CaseRecord, StretchRecord, TurnRecord
from specbench.report.frames.predict import shared_speedup
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.trials import BLANK, Values, ratio
from specbench.report.table import ROW
from specbench.serving.objective import Objective

CONFIDENCE = 0.99
SHARES = (50, 95, 99)
WAITED = ("queue", "ttft", "itl", "tpot")
# Of a remote server: column -> its gauge, and whether it is the largest reading, not the mean.
GAUGES = {
    "server_running": ("running", False),
    "server_waiting": ("waiting", False),
    "server_kv_cache": ("kv_cache", True),
    "gpu_busy": ("gpu_busy", False),
    "gpu_power_w": ("gpu_power_w", False),
}
LOAD = (
    *ROW,
    *(
        "kind",
        "requests",
        "rate",
        "stretches",
        "served",
        "seconds",
        "tokens_per_s",
        "user_tokens_per_s",
    ),
    *(
        "speedup",
        "speedup_low",
        "speedup_high",
        "user_speedup",
        "modelled_speedup",
        "mat",
        "mean_requests",
    ),
    *(
        "mean_rows",
        *GAUGES,
        "goodput",
        "kept",
        *(f"{wait}_p{share}_ms" for wait in WAITED for share in SHARES),
    ),
)
_Stretches = dict[tuple[int, int], StretchRecord]


@functools.cache
def fewest(share: int) -> int:
    """Requests of which with 99 % confidence at least two wait longer than the percentile: 11, 130,
    662.

    Source: MLPerf's rule for stopping early, for one wait above the estimate.
    """
    above, count = 1 - share / 100, 2
    while (1 - above) ** count + count * above * (1 - above) ** (count - 1) > 1 - CONFIDENCE:
        count += 1
    return count


def measure_load(reported: Sequence[ReportedRun]) -> pd.DataFrame:
    """One row per method and run under load; without any such run no rows at all."""
    rows = [row for entry in reported if entry.facts.load for row in _rows(entry)]
    frame = pd.DataFrame(rows, columns=list(LOAD))
    order = ["model", "suite", "kind", "rate", "requests"]
    return frame.astype({"rate": float}).sort_values(order, kind="stable", ignore_index=True)


def without_load(variant: str) -> str:
    """The variant without the settings of the load."""
    return ",".join(part for part in variant.split(",") if not part.startswith("load."))


def _rows(entry: ReportedRun) -> Iterator[dict[str, Any]]:
    load = entry.facts.load
    failed = _failed(entry.records(VANILLA))
    vanilla, theirs = _stretches(entry.records(VANILLA), failed), entry.succeeded(VANILLA)
    for method in entry.facts.methods:
        variant = entry.variants.get(method, "")
        own, records = _stretches(entry.records(method), failed), entry.succeeded(method)
        turns = [turn for record in records for turn in record.turns]
        inside = [
            turn
            for record in records
            if (record.round, record.block) in own
            for turn in record.turns
        ]
        lost = sum(
            (record.round, record.block) in own
            for record in entry.records(method)
            if record.error is not None
        )
        seconds = sum(stretch["seconds"] for stretch in own.values())
        forwards = sum(stretch["forwards"] for stretch in own.values())
        # what ``--concurrency`` models for a closed loop
        steps, modelled = entry.trials.of(method).turns.steps, BLANK
        if (
            entry.prediction
            and method not in (VANILLA, CONTROL)
            and load.get("kind") == "closed"
            and len(steps)
        ):
            modelled = shared_speedup(entry.prediction.profile, steps, load["requests"])[0]
        yield {
            **dict(zip(ROW, entry.key(method), strict=True)),
            "variant": without_load(variant),  # it has columns
            **{name: load.get(name) for name in ("kind", "requests", "rate")},
            "stretches": len(own),
            "served": len(turns),
            "seconds": seconds,
            "tokens_per_s": ratio(sum(stretch["tokens"] for stretch in own.values()), seconds),
            "user_tokens_per_s": _rate(records),
            **_speedup(vanilla, own, method),
            "user_speedup": ratio(_rate(records), _rate(theirs)),
            "modelled_speedup": modelled,
            "mat": ratio(
                sum(sum(turn.accept) for turn in turns), sum(len(turn.accept) for turn in turns)
            ),
            "mean_requests": ratio(sum(stretch["requests"] for stretch in own.values()), forwards),
            "mean_rows": ratio(sum(stretch["rows"] for stretch in own.values()), forwards) or BLANK,
            **_gauges(own.values()),
            **_goodput(inside, lost, load.get("slo") or {}, seconds),
            **_waits(turns),
        }


def _failed(records: Iterable[CaseRecord]) -> set[tuple[int, str]]:
    """(round, case) of those that failed."""
    return {(record.round, record.case) for record in records if record.error is not None}


def _stretches(records: Iterable[CaseRecord], failed: set[tuple[int, str]]) -> _Stretches:
    """(round, block) -> what the server did, of one method's records.

    Without a stretch whose cases all failed, and without one in which a case failed that is not in
    ``failed``, those of vanilla: the server had less to do.
    """
    seen = [((record.round, record.block), record) for record in records]
    good = {key for key, record in seen if record.error is None}
    worse = _failed(record for _, record in seen) - failed
    bad = {key for key, record in seen if (record.round, record.case) in worse}
    return {
        key: record.stretch
        for key, record in seen
        if record.stretch is not None and key in good - bad
    }


def _rate(records: Sequence[CaseRecord]) -> float:
    """[tokens/s] that a user sees after the first token, in the mean over time."""
    turns = [turn for record in records for turn in record.turns]
    return ratio(sum(sum(turn.accept) for turn in turns), sum(turn.decode_s for turn in turns))


def _pair(vanilla: _Stretches, own: _Stretches) -> tuple[list[tuple[int, int]], Values]:
    """Returns (S,) the stretches of both, and (4, S) seconds and tokens of vanilla's, then of the
    others.
    """
    shared = [key for key in own if key in vanilla]
    columns = [
        [side[key][name] for key in shared]
        for side in (vanilla, own)
        for name in ("seconds", "tokens")
    ]
    return shared, np.array(columns, dtype=np.float64)


def pair_stretches(entry: ReportedRun, method: str) -> tuple[list[str], Values]:
    """Returns (S,) round and cases of each stretch that vanilla and a method share, and (4, S) as
    ``stats.speedup``.
    """
    failed, cases = _failed(entry.records(VANILLA)), defaultdict(list)
    for record in entry.records(VANILLA):
        cases[record.round, record.block].append(record.case)
    shared, columns = _pair(
        *(_stretches(entry.records(name), failed) for name in (VANILLA, method))
    )
    return [" ".join([str(key[0]), *sorted(cases[key])]) for key in shared], columns


def _speedup(vanilla: _Stretches, own: _Stretches, method: str) -> dict[str, float]:
    """The speedup of the throughput, over the stretches of both."""
    shared, columns = _pair(vanilla, own)
    if not shared:
        return dict.fromkeys(("speedup", "speedup_low", "speedup_high"), BLANK)
    found = stats.speedup(*columns)
    low, high = (BLANK, BLANK) if method == VANILLA else found.bounds
    return {"speedup": found.value, "speedup_low": low, "speedup_high": high}


def _first_s(turn: TurnRecord) -> float:
    """[s] From the intended arrival to the first token."""
    return turn.prefill_s + (turn.load["queue_s"] if turn.load else 0.0)


def _gauges(stretches: Iterable[StretchRecord]) -> dict[str, float]:
    """What a server reported of itself: the largest reading, or the mean over the time of the
    stretches with one.
    """
    found = {}
    for column, (name, largest) in GAUGES.items():
        own = [
            (each["seconds"], each["gauges"][name])
            for each in stretches
            if name in each.get("gauges", {})
        ]
        total = sum(seconds for seconds, _ in own)
        mean = ratio(sum(seconds * values[0] for seconds, values in own), total)
        found[column] = max(values[1] for _, values in own) if own and largest else mean
    return found


def _goodput(
    turns: Sequence[TurnRecord], lost: int, slo: dict[str, float | None], seconds: float
) -> dict[str, float]:
    """[requests/s] that kept the objective, and their share; blank without one, and if a time is
    not known.

    lost: requests that failed.
    """
    objective = Objective.of(slo)
    if not objective.limited:
        return {"goodput": BLANK, "kept": BLANK}
    kept = sum(map(objective.keeps, turns))
    return {"goodput": ratio(kept, seconds), "kept": ratio(kept, len(turns) + lost)}


def _waits(turns: Sequence[TurnRecord]) -> dict[str, float]:
    """Percentiles [ms], blank if there are too few requests for one."""
    found = {
        "queue": [turn.load["queue_s"] for turn in turns if turn.load],
        "ttft": [_first_s(turn) for turn in turns],
        "itl": [seconds for turn in turns for seconds in turn.step_s],
        "tpot": [turn.decode_s / sum(turn.accept) for turn in turns if turn.accept],
    }
    waits = [(wait, values, share) for wait, values in found.items() for share in SHARES]
    known = {share: len(turns) >= fewest(share) for share in SHARES}
    return {
        f"{wait}_p{share}_ms": 1e3 * float(np.percentile(values, share))
        if values and known[share]
        else BLANK
        for wait, values, share in waits
    }
