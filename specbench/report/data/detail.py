"""Distributions behind the means: a list of frames, each counted from a method's records.

A frame added to ``DETAILS`` is counted, written as ``tables/<name>.csv`` and named in docs/measurement.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.record import CONTROL, OVERALL, PHASES, VANILLA, CaseRecord
from specbench.report.data.predict import steps_of
from specbench.report.data.reported import ROW, ReportedRun
from specbench.report.data.rows import replayed
from specbench.report.data.served import measure_load
from specbench.report.data.trials import BLANK, ratio

EDGES = {  # of the bins; powers of two, the last is open
    "position": (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "context": (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
PERCENTILES = (50, 95, 99)
MIN_VALUES = 100  # of a 99th percentile: with fewer it is the maximum by another name, and blank
WAITS = ("first_token", "burst", "per_token")
HELD = "cached_tokens"  # of a turn's own figures: tokens in the method's state when the request began
Detail = dict[str, pd.DataFrame]  # name -> frame, whose rows begin with model, suite, method and variant
Rows = Iterator[tuple[str | float, ...]]


@dataclass(frozen=True, slots=True)
class DetailFrame:
    """A frame of details. name: of its csv. row, meaning: what a row is and what it holds, for docs/measurement.md.

    columns: behind model, suite, method and variant. count: a method's records, and whether the target was timed, to
    rows of these columns. drafts: vanilla, its control and peers have no rows.
    """

    name: str
    row: str
    meaning: str
    columns: tuple[str, ...]
    count: Callable[[Sequence[CaseRecord], bool], Rows]
    drafts: bool = False


def read_detail(reported: Sequence[ReportedRun], summary: pd.DataFrame) -> Detail:
    """Name -> frame. summary: the rows of the runs, whose phases the time split repeats."""
    rows: dict[str, list[tuple[str | float, ...]]] = {name: [] for name in DETAILS}
    for entry in reported:
        facts = entry.facts
        for method in (name for name in facts.methods if name not in facts.unaccepted):
            records = entry.succeeded(method)
            silent = method in (VANILLA, CONTROL) or method in facts.peers
            for frame in (each for each in DETAILS.values() if not (each.drafts and silent)):
                rows[frame.name] += [(*entry.key(method), *row) for row in frame.count(records, facts.timed)]
    frames = {name: pd.DataFrame(rows[name], columns=[*ROW, *frame.columns]) for name, frame in DETAILS.items()}
    return {TIME_SPLIT: split_time(summary), LOADED: measure_load(reported), **frames}


def of_place(detail: Detail, model: str, suite: str) -> Detail:
    """The rows of one model and suite."""
    return {name: frame[(frame["model"] == model) & (frame["suite"] == suite)] for name, frame in detail.items()}


def drop_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that a plot shows: vanilla once, no control."""
    repeated = (frame["method"] == VANILLA) & frame["method"].duplicated()
    return frame[(frame["method"] != CONTROL) & ~repeated]


def split_time(summary: pd.DataFrame) -> pd.DataFrame:
    """[ms a step] by phase; a method without phases (a peer) has no row. step_ms: their sum, blank without a target."""
    columns = [f"{phase}_ms" for phase in PHASES]
    rows = summary[summary["category"] == OVERALL]
    rows = rows[rows[columns].notna().any(axis=1)]
    whole = rows[columns].sum(axis=1).where(~replayed(rows))
    return rows[[*ROW, *columns]].assign(step_ms=whole).reset_index(drop=True)


def count_gains(records: Sequence[CaseRecord]) -> Rows:
    """(tokens, steps that emitted that many, their share of all steps), from 1 to the most."""
    counts = Counter(emitted for record in records for turn in record.turns for emitted in turn.accept)
    steps = sum(counts.values())
    for tokens in range(1, max(counts, default=0) + 1):
        yield tokens, counts[tokens], counts[tokens] / steps


def count_positions(records: Sequence[CaseRecord]) -> Rows:
    """A row a draft position (1 = the node after the root), to the deepest.

    drafted: steps whose draft was at least that deep. reached: of these, the ones that accepted every earlier
    position. accepted: the ones that accepted this position. Then accepted over drafted, and over reached (blank
    where no step got there). A step that EOS or the limit cut short counts as it was emitted.
    """
    steps: Counter[tuple[int, int]] = Counter()  # (depth, accepted) -> how many
    for record in records:
        for turn in record.turns:
            pairs = zip(turn.accept, turn.depth, strict=True)
            steps.update((depth, min(emitted - 1, depth)) for emitted, depth in pairs)  # a late chain lies deeper
    for position in range(1, max((depth for depth, _ in steps), default=0) + 1):
        found = [(taken, count) for (depth, taken), count in steps.items() if depth >= position]
        total = sum(count for _, count in found)
        reached = sum(count for taken, count in found if taken >= position - 1)
        kept = sum(count for taken, count in found if taken >= position)
        yield position, total, reached, kept, kept / total, ratio(kept, reached)


def count_lengths(records: Sequence[CaseRecord], timed: bool) -> Rows:
    """A row an axis and bin that has steps. step_ms: mean; blank where the target was not timed."""
    fed, context, emitted, _ = steps_of(records)
    if not len(fed):
        return
    prompts = np.concatenate([np.full(len(turn.accept), turn.prompt_tokens) for each in records for turn in each.turns])
    times = np.array([seconds for record in records for turn in record.turns for seconds in turn.step_s])
    known = timed and len(times) == len(fed)
    for axis, values in (("position", np.maximum(context - prompts, 0)), ("context", context)):
        place = np.searchsorted(EDGES[axis], values, side="right") - 1
        for number in np.unique(place):
            own = place == number
            yield (
                *(axis, EDGES[axis][number], int(own.sum()), int(emitted[own].sum())),
                float(emitted[own].mean()),
                1e3 * float(times[own].mean()) if known else BLANK,
            )


def count_sources(records: Sequence[CaseRecord]) -> Rows:
    """A row a source: nodes proposed and accepted, its shares of both, and accepted over proposed (blank where 0/0)."""
    proposed: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for record in records:
        for turn in record.turns:
            for name, (offered, taken) in turn.sources.items():
                proposed[name] += offered
                accepted[name] += taken
    offered_all, taken_all = proposed.total(), accepted.total()
    for name in proposed:
        offered, taken = proposed[name], accepted[name]
        yield name, offered, taken, ratio(offered, offered_all), ratio(taken, taken_all), ratio(taken, offered)


def count_own_figures(records: Sequence[CaseRecord]) -> Rows:
    """(name, turns that have it, sum over them, mean over them), by name."""
    found: dict[str, list[float]] = {}
    for record in records:
        for turn in record.turns:
            for name, value in turn.stats.items():
                found.setdefault(name, []).append(value)
    for name, values in sorted(found.items()):
        yield name, len(values), sum(values), sum(values) / len(values)


def count_tails(records: Sequence[CaseRecord]) -> Rows:
    """Requests, steps, then the percentiles of each wait; nothing where no step was timed."""
    turns = [turn for record in records for turn in record.turns]
    bursts = np.array([seconds for turn in turns for seconds in turn.step_s])
    if not bursts.size:
        return
    first = np.array([turn.prefill_s + (turn.step_s[0] if turn.in_prefill else 0.0) for turn in turns])
    each = np.array([turn.decode_s / sum(turn.accept) for turn in turns if sum(turn.accept)])
    figures = [percentile(1e3 * values, share) for values in (first, bursts, each) for share in PERCENTILES]
    yield (len(turns), len(bursts), *figures)


def percentile(values: np.ndarray, share: int) -> float:
    """Linear between order statistics; the 99th of too few is blank."""
    if not values.size or (share == 99 and values.size < MIN_VALUES):
        return BLANK
    return float(np.percentile(values, share))


def count_growth(records: Sequence[CaseRecord], timed: bool) -> Rows:
    """A row a record with the tokens that its method holds, in running order; time_s blank where not timed."""
    for record in sorted(records, key=lambda record: record.block):
        if not record.turns or HELD not in record.turns[0].stats:
            continue
        steps = sum(len(turn.accept) for turn in record.turns)
        emitted = sum(sum(turn.accept) for turn in record.turns)
        yield (
            *(record.case, record.category, record.round, record.turns[0].stats[HELD], steps, emitted),
            ratio(emitted, steps),
            sum(len(turn.ids) for turn in record.turns),
            sum(turn.prefill_s + turn.decode_s for turn in record.turns) if timed else BLANK,
        )


TIME_SPLIT, LOADED = "time_split", "load"  # frames that are not counted from a method's records alone
DETAILS = {
    frame.name: frame
    for frame in (
        DetailFrame(
            "accept_lengths",
            "method, tokens",
            "steps that emitted that many tokens, and their share. Their mean is MAT",
            ("tokens", "steps", "share"),
            lambda records, _: count_gains(records),
        ),
        DetailFrame(
            "accept_positions",
            "method, draft position",
            "`drafted`: steps whose draft was at least this deep. `reached`: those of them that accepted every earlier"
            " position. `accepted`: those that accepted this one. Then accepted of drafted, and of reached",
            ("position", "drafted", "reached", "accepted", "accepted_of_drafted", "accepted_of_reached"),
            lambda records, _: count_positions(records),
            drafts=True,
        ),
        DetailFrame(
            "accept_sources",
            "method, source",
            "nodes proposed and accepted by source, shares of each, acceptance rate",
            ("source", "proposed", "accepted", "proposed_share", "accepted_share", "acceptance_rate"),
            lambda records, _: count_sources(records),
            drafts=True,
        ),
        DetailFrame(
            "growth",
            "method, record",
            "MAT and time of a case against the tokens that the method held when it began",
            ("case", "category", "round", HELD, "steps", "emitted", "mat", "tokens", "time_s"),
            count_growth,
            drafts=True,
        ),
        DetailFrame(
            "own_figures",
            "method, figure",
            "the figures that a method counts of itself (`Drafter.stats`): turns that have it, sum, mean",
            ("figure", "turns", "sum", "mean"),
            lambda records, _: count_own_figures(records),
            drafts=True,
        ),
        DetailFrame(
            "tails",
            "method",
            "percentiles of the time to the first token, between bursts and a token"
            " ([latency.md](latency.md#6-tails-and-cost))",
            ("requests", "steps", *(f"{wait}_p{share}_ms" for wait in WAITS for share in PERCENTILES)),
            lambda records, timed: count_tails(records) if timed else iter(()),
        ),
        DetailFrame(
            "by_length",
            "method, axis, bin",
            "MAT and time a step by tokens emitted before the step, and by tokens in the context",
            ("axis", "from", "steps", "emitted", "mat", "step_ms"),
            count_lengths,
        ),
    )
}
