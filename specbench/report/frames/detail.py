"""Distributions behind the means: a list of frames, each counted from a method's records.

A frame added to ``DETAILS`` is counted, written as ``tables/<name>.csv`` and named in
docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench import stats
from specbench.records.record import CONTROL, PHASES, VANILLA
from specbench.report.frames.audit import audit
from specbench.report.frames.cases import overall
from specbench.report.frames.counting import count_all_ways
from specbench.report.frames.objective import find_boundaries
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.served import measure_load
from specbench.report.frames.steps import CACHED
from specbench.report.frames.summary import replayed
from specbench.report.frames.trials import BLANK, Columns, MethodTrials, ratio
from specbench.report.table import ROW
from specbench.stats import MIN_CASES, RESAMPLES, Estimate, estimates

Rows = Iterator[tuple[str | float, ...]]
EDGES = {  # of the bins; powers of two, the last is open
    "position": (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "context": (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}


def count_lengths(found: MethodTrials, timed: bool, vanilla: MethodTrials | None = None) -> Rows:
    """One row per axis and bin that has steps: steps, tokens, MAT, mean [ms] a step, and the
    speedup with its interval.

    What needs times is blank if the target was not timed; the speedup also without ``vanilla``.
    """
    known = timed and is_timed(found)
    for axis, edges in EDGES.items():
        totals = np.zeros((len(edges), 3))  # of each bin: steps, tokens emitted, seconds
        for at, emitted, seconds in found.turns.steps.read(axis, "emitted", "seconds"):
            place = np.searchsorted(edges, at, side="right") - 1
            for number in np.unique(place):
                own = place == number
                totals[number] += own.sum(), emitted[own].sum(), seconds[own].sum()
        speedups = [Estimate(BLANK, None, None, 0)] * len(edges)
        if known and vanilla is not None and is_timed(vanilla):
            speedups = compare_bins(
                _sum_by_case(vanilla, axis), _sum_by_case(found, axis), found is not vanilla
            )
        for edge, speedup, (steps, emitted, seconds) in zip(edges, speedups, totals, strict=True):
            if steps:
                mat, mean_ms = (
                    float(emitted / steps),
                    1e3 * float(seconds / steps) if known else BLANK,
                )
                yield (
                    axis,
                    edge,
                    int(steps),
                    int(emitted),
                    mat,
                    mean_ms,
                    speedup.value,
                    *speedup.bounds,
                )


def is_timed(found: MethodTrials) -> bool:
    """Returns whether every step has its time."""
    return found.turns.steps.timed == len(found.turns.steps)


# (C,) numbers of cases, and (2, C, bins) their seconds and tokens
_Sums = tuple[np.ndarray, np.ndarray]


def compare_bins(vanilla: _Sums, found: _Sums, resampled: bool) -> list[Estimate]:
    """For each bin: vanilla's time per token over the method's, over the cases in which both have
    steps there.

    Cases without steps in the bin are zeros: with them every bin has the same resamples. resampled:
    with intervals.
    """
    (cases, sums), (others, theirs) = found, vanilla
    _, own, base = np.intersect1d(cases, others, assume_unique=True, return_indices=True)
    pairs = np.concatenate([theirs[:, base], sums[:, own]])  # (4, C, bins)
    both = (pairs[1] > 0) & (pairs[3] > 0)
    pairs *= both
    found_in = both.sum(axis=0).tolist()
    resamples = [RESAMPLES if count >= MIN_CASES and resampled else 0 for count in found_in]
    return [
        estimates([pairs[:, :, bin]], resamples=count)[0] for bin, count in enumerate(resamples)
    ]


def _sum_by_case(found: MethodTrials, axis: str) -> _Sums:
    """The sums of all rounds."""
    columns, edges = found.columns, EDGES[axis]
    cases, numbers = np.unique(columns["case"][columns["counted"]], return_inverse=True)
    sums = np.zeros((2, len(cases) * len(edges)))
    for at, record, emitted, seconds in found.turns.steps.read(
        axis, "record", "emitted", "seconds"
    ):
        place = (
            numbers[record.astype(np.int64)] * len(edges)
            + np.searchsorted(edges, at, side="right")
            - 1
        )
        sums += [np.bincount(place, weights, sums.shape[1]) for weights in (seconds, emitted)]
    return cases, sums.reshape(2, len(cases), len(edges))


TURNS = (1, 2, 3, 4, 5, 9, 17, 33, 65, 129)  # first turn of each bin


def count_turns(found: MethodTrials, timed: bool, vanilla: MethodTrials | None = None) -> Rows:
    """One row per bin of turns that has any, of cases of several turns; what needs times is blank
    without them.

    speedup: of complete requests, as their prefills were: after a prefix in the cache, if it was
    there. decode_speedup: without the target's prefills; a draft model reads the prompt in the
    first decode step, which counts. Both as in ``compare_bins``.
    """
    turns, requests = found.turns, found.turns.requests
    if not len(turns) or turns.places[:, 0].max() < 2:
        return
    place = np.searchsorted(TURNS, turns.places[:, 0], side="right") - 1
    ratios = [[Estimate(BLANK, None, None, 0)] * len(TURNS)] * 2
    if timed and vanilla is not None and len(vanilla.turns):
        sums = [[_sum_turns(each, whole) for each in (vanilla, found)] for whole in (True, False)]
        ratios = [compare_bins(theirs, ours, found is not vanilla) for theirs, ours in sums]
    for number in np.unique(place):
        own = place == number
        steps, emitted = (int(requests[name][own].sum()) for name in ("steps", "emitted"))
        prefill_s, decode_s = turns.spent_s[own].sum(axis=0)
        prompt, prefix = turns.places[own, 1:].mean(axis=0)
        times = (
            (1e3 * prefill_s / own.sum(), ratio(1e3 * decode_s, steps)) if timed else (BLANK, BLANK)
        )
        speedups = (
            figure for each in ratios for figure in (each[number].value, *each[number].bounds)
        )
        about = int(own.sum()), float(prompt), float(prefix), steps, emitted, ratio(emitted, steps)
        yield (TURNS[number], *about, *map(float, times), *speedups)


def _sum_turns(found: MethodTrials, whole: bool) -> _Sums:
    """Seconds and tokens by case and bin of turns. whole: with the prefills, and the tokens that
    they give.
    """
    turns, requests = found.turns, found.turns.requests
    cases, numbers = np.unique(found.columns["case"][found.columns["counted"]], return_inverse=True)
    bins = np.searchsorted(TURNS, turns.places[:, 0], side="right") - 1
    place, size = numbers[requests["record"]] * len(TURNS) + bins, len(cases) * len(TURNS)
    seconds = turns.spent_s.sum(axis=1) if whole else turns.spent_s[:, 1]
    tokens = requests["tokens" if whole else "emitted"]
    sums = np.stack([np.bincount(place, weights, size) for weights in (seconds, tokens)])
    return cases, sums.reshape(2, len(cases), len(TURNS))


_SPREAD = ("", "_low", "_high")
QUALITY_COLUMNS = (
    *ROW,
    "cases",
    *(f"{name}{side}" for name in ("correct", "difference") for side in _SPREAD),
)


def measure_quality(reported: Sequence[ReportedRun]) -> pd.DataFrame:
    """One row per method with checked answers: share correct, and less vanilla's share on the cases
    that both finished.

    A case's share is the mean over its rounds. Intervals: bootstrap over cases, the two sides of a
    case together.
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
    return pd.DataFrame(rows, columns=list(QUALITY_COLUMNS))


def _shares(columns: Columns, cases: int) -> np.ndarray:
    """(C,) share of a case's rounds that are correct; NaN if none was checked."""
    rows = columns["checked"] & columns["counted"]
    checked = np.bincount(columns["case"][rows], minlength=cases)
    correct = np.bincount(columns["case"][rows & columns["correct"]], minlength=cases)
    return np.divide(correct, checked, out=np.full(cases, BLANK), where=checked > 0)


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and interval."""
    [found] = stats.estimates([(values, np.ones(len(values)))])
    return found.value, *found.bounds


PERCENTILES = (50, 95, 99)
MIN_VALUES = 100  # of a 99th percentile: with fewer it is the maximum by another name, and blank
WAITS = ("first_token", "burst", "per_token")
# name -> frame, whose rows begin with model, suite, method and variant
Detail = dict[str, pd.DataFrame]


@dataclass(frozen=True, slots=True)
class DetailFrame:
    """A frame of details. name: of its csv. row, meaning: what a row is and what it contains, for
    docs/measurement.md.

    columns: after model, suite, method and variant. count: a method's trials, and whether the
    target was timed, to rows of these columns. drafts: vanilla, its control and peers have no rows.
    paired: vanilla's trials are counted with them, None if its times are not a baseline.
    """

    name: str
    row: str
    meaning: str
    columns: tuple[str, ...]
    count: Callable[..., Rows]
    drafts: bool = False
    paired: bool = False


def read_detail(reported: Sequence[ReportedRun], summary: pd.DataFrame) -> Detail:
    """Name -> frame. summary: the rows of the runs, whose phases the time split repeats."""
    rows: dict[str, list[tuple[str | float, ...]]] = {name: [] for name in DETAILS}
    for entry in reported:
        facts = entry.facts
        for method in (name for name in facts.methods if name not in facts.unaccepted):
            found = entry.trials.of(method)
            for frame in (
                each for each in DETAILS.values() if not each.drafts or method in facts.drafters
            ):
                baseline = (
                    [None if facts.time_only else entry.trials.of(VANILLA)] if frame.paired else []
                )
                rows[frame.name] += [
                    (*entry.key(method), *row) for row in frame.count(found, facts.timed, *baseline)
                ]
    frames = {
        name: pd.DataFrame(rows[name], columns=[*ROW, *frame.columns])
        for name, frame in DETAILS.items()
    }
    return {
        TIME_SPLIT: split_time(summary),
        LOADED: measure_load(reported),
        OBJECTIVE: find_boundaries(reported),
        QUALITY: measure_quality(reported),
        AUDIT: audit(reported, summary),
        **frames,
    }


def split_time(summary: pd.DataFrame) -> pd.DataFrame:
    """[ms a step] by phase; a method without phases (a peer) has no row. step_ms: their sum, blank
    without a target.
    """
    columns = [f"{phase}_ms" for phase in PHASES]
    rows = overall(summary)
    rows = rows[rows[columns].notna().any(axis=1)]
    whole = rows[columns].sum(axis=1).where(~replayed(rows))
    return rows[[*ROW, *columns]].assign(step_ms=whole).reset_index(drop=True)


def count_gains(found: MethodTrials) -> Rows:
    """(tokens, steps that emitted that many, their share of all steps), from 1 to the most."""
    counts = {tokens: count for (tokens,), count in found.turns.steps.count("emitted").items()}
    steps = sum(counts.values())
    for tokens in range(1, max(counts, default=0) + 1):
        yield tokens, counts.get(tokens, 0), counts.get(tokens, 0) / steps


def count_positions(found: MethodTrials) -> Rows:
    """One row per draft position (1 = the node after the root), to the deepest.

    drafted: steps whose draft was at least that deep. reached: of these, the ones that accepted
    every earlier position. accepted: the ones that accepted this position. Then accepted over
    drafted, and over reached (blank if no step got there). A step that EOS or the limit cut short
    counts as it was emitted.
    """
    steps = found.turns.steps.count("depth", "emitted")
    for position in range(1, max((depth for depth, _ in steps), default=0) + 1):
        # a late chain lies deeper
        here = [
            (min(emitted - 1, depth), count)
            for (depth, emitted), count in steps.items()
            if depth >= position
        ]
        total = sum(count for _, count in here)
        reached = sum(count for taken, count in here if taken >= position - 1)
        kept = sum(count for taken, count in here if taken >= position)
        yield position, total, reached, kept, kept / total, ratio(kept, reached)


def split_answers(found: MethodTrials, timed: bool) -> Rows:
    """One row per part of the answers, thinking and then answer; none if no answer thinks. step_ms
    as in lengths.
    """
    steps = found.turns.steps
    known = timed and is_timed(found)
    totals = np.zeros((2, 3))  # of each part: steps, tokens emitted, seconds
    for thinks, emitted, seconds in steps.read("thinks", "emitted", "seconds"):
        for part, own in enumerate((thinks == 1, thinks == 0)):
            totals[part] += own.sum(), emitted[own].sum(), seconds[own].sum()
    for name, (count, emitted, seconds) in zip(
        ("thinking", "answer"), totals if steps.thinks else (), strict=False
    ):
        if count:
            timing = (
                (1e3 * seconds / count, emitted / seconds) if known and seconds else (BLANK, BLANK)
            )
            yield name, int(count), int(emitted), float(emitted / count), *map(float, timing)


def count_sources(found: MethodTrials) -> Rows:
    """A row a source: nodes proposed and accepted, its shares of both, and accepted over proposed
    (blank where 0/0).
    """
    sources = found.turns.sources
    offered_all, taken_all = (
        (sum(counts) for counts in zip(*sources.values(), strict=True)) if sources else (0, 0)
    )
    for name, (offered, taken) in sources.items():
        yield (
            name,
            offered,
            taken,
            ratio(offered, offered_all),
            ratio(taken, taken_all),
            ratio(taken, offered),
        )


def count_own_figures(found: MethodTrials) -> Rows:
    """(name, turns that have it, sum over them, mean over them), by name."""
    for name, values in sorted(found.turns.figures.items()):
        yield name, len(values), sum(values), sum(values) / len(values)


def count_tails(found: MethodTrials) -> Rows:
    """Requests, steps, then the percentiles of each wait [ms], the 99th of too few blank; nothing
    if not timed.
    """
    turns, steps = found.turns, found.turns.steps
    if not steps.timed:
        return
    waits = [
        (each, share)
        for each in (turns.first_s, steps.seconds(), turns.per_token_s)
        for share in PERCENTILES
    ]
    known = (len(seconds) >= (MIN_VALUES if share == 99 else 1) for seconds, share in waits)
    figures = (
        float(np.quantile(1e3 * s, p / 100)) if k else BLANK
        for (s, p), k in zip(waits, known, strict=True)
    )
    yield (len(turns.first_s), steps.timed, *figures)


def count_growth(found: MethodTrials, timed: bool) -> Rows:
    """One row per record with the tokens that its method stores, in running order; time_s blank if
    not timed.
    """
    rows, counted = found.columns, np.flatnonzero(found.columns["counted"])
    for record in sorted(found.turns.state_sizes, key=lambda record: record.block):
        place = counted[record.place]
        steps, emitted = int(rows["steps"][place]), int(rows["emitted"][place])
        yield (
            *(
                record.case,
                record.category,
                int(rows["round"][place]),
                record.tokens,
                steps,
                emitted,
            ),
            ratio(emitted, steps),
            int(rows["tokens"][place]),
            float(rows["wall_s"][place]) if timed else BLANK,
        )


# Frames that are not counted from a method's records alone.
TIME_SPLIT, LOADED, OBJECTIVE, QUALITY, AUDIT = (
    "time_split",
    "load",
    "objective",
    "quality",
    "audit",
)
OPTIONAL = (LOADED, OBJECTIVE, QUALITY, AUDIT)  # frames without a file if they have no row
DETAILS = {
    frame.name: frame
    for frame in (
        DetailFrame(
            "accept_lengths",
            "method, tokens",
            "steps that emitted that many tokens, and their share. Their mean is MAT",
            ("tokens", "steps", "share"),
            lambda found, _: count_gains(found),
        ),
        DetailFrame(
            "accept_positions",
            "method, draft position",
            "`drafted`: steps whose draft was at least this deep. `reached`: those of them that"
            " accepted every earlier position. `accepted`: those that accepted this one. Then"
            " accepted of drafted, and of reached",
            (
                "position",
                "drafted",
                "reached",
                "accepted",
                "accepted_of_drafted",
                "accepted_of_reached",
            ),
            lambda found, _: count_positions(found),
            drafts=True,
        ),
        DetailFrame(
            "accept_definitions",
            "method, definition",
            "the acceptance length and rate of the same steps as engines and other harnesses count"
            " them (below)",
            ("counted_as", "length", "rate"),
            lambda found, _: iter(count_all_ways(found.turns.requests)),
            drafts=True,
        ),
        DetailFrame(
            "accept_sources",
            "method, source",
            "nodes proposed and accepted by source, shares of each, acceptance rate",
            (
                "source",
                "proposed",
                "accepted",
                "proposed_share",
                "accepted_share",
                "acceptance_rate",
            ),
            lambda found, _: count_sources(found),
            drafts=True,
        ),
        DetailFrame(
            "growth",
            "method, record",
            "MAT and time of a case against the tokens that the method had stored when it began",
            ("case", "category", "round", CACHED, "steps", "emitted", "mat", "tokens", "time_s"),
            count_growth,
            drafts=True,
        ),
        DetailFrame(
            "own_figures",
            "method, figure",
            "the figures that a method counts of itself (`Drafter.stats`): turns that have it, sum,"
            " mean",
            ("figure", "turns", "sum", "mean"),
            lambda found, _: count_own_figures(found),
            drafts=True,
        ),
        DetailFrame(
            "tails",
            "method",
            "percentiles of the time to the first token, between bursts and a token"
            " ([latency.md](latency.md#6-tails-and-cost))",
            (
                "requests",
                "steps",
                *(f"{wait}_p{share}_ms" for wait in WAITS for share in PERCENTILES),
            ),
            lambda found, timed: count_tails(found) if timed else iter(()),
        ),
        DetailFrame(
            "by_length",
            "method, axis, bin",
            "MAT and time a step by tokens emitted before the step, and by tokens in the context;"
            " `speedup`: vanilla's time per token of the steps in the bin over the method's, over"
            " the cases in which both have some",
            (
                "axis",
                "from",
                "steps",
                "emitted",
                "mat",
                "step_ms",
                "speedup",
                "speedup_low",
                "speedup_high",
            ),
            count_lengths,
            paired=True,
        ),
        DetailFrame(
            "by_turn",
            "method, turns from",
            "of cases of several turns: requests, means of the prompt's tokens and of those in the"
            " cache, MAT, times. `speedup`: vanilla's time per token over the method's, prefills"
            " included; `decode_speedup`: without the target's prefills; a draft model's own"
            " reading of the prompt is in the first decode step, and counts",
            (
                *(
                    "turn",
                    "requests",
                    "prompt_tokens",
                    "prefix_tokens",
                    "steps",
                    "emitted",
                    "mat",
                    "prefill_ms",
                    "step_ms",
                ),
                *("speedup", "speedup_low", "speedup_high"),
                *("decode_speedup", "decode_speedup_low", "decode_speedup_high"),
            ),
            count_turns,
            paired=True,
        ),
        DetailFrame(
            "thinking",
            "method, part",
            "MAT and speed before the thinking's end and after it, of answers that think; a step is"
            " of the part in which it begins",
            ("part", "steps", "emitted", "mat", "step_ms", "tokens_per_s"),
            split_answers,
        ),
    )
}
