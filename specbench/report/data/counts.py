"""The rows behind the step plots, counted from records: gains, positions, sources, lengths, waits and growth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from specbench.record import CaseRecord
from specbench.report.data.predict import steps_of

GAINS = ("tokens", "steps", "share")
POSITIONS = ("position", "drafted", "reached", "accepted", "accepted_of_drafted", "accepted_of_reached")
_BLANK = float("nan")


def count_gains(records: Sequence[CaseRecord]) -> Iterator[tuple[int, int, float]]:
    """(tokens, steps that emitted that many, their share of all steps), from 1 to the most."""
    counts = Counter(emitted for record in records for turn in record.turns for emitted in turn.accept)
    steps = sum(counts.values())
    for tokens in range(1, max(counts, default=0) + 1):
        yield tokens, counts[tokens], counts[tokens] / steps


def count_positions(records: Sequence[CaseRecord]) -> Iterator[tuple[int, int, int, int, float, float]]:
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
        yield position, total, reached, kept, kept / total, kept / reached if reached else _BLANK


EDGES = {  # of the bins; powers of two, the last is open
    "position": (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "context": (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
LENGTHS = ("axis", "from", "steps", "emitted", "mat", "step_ms")


def count_lengths(records: Sequence[CaseRecord], timed: bool) -> Iterator[tuple[str | float, ...]]:
    """A row an axis and bin that has steps. step_ms: mean; blank where the target was not timed."""
    fed, context, emitted, _ = steps_of(records)
    if not len(fed):
        return
    prompts = np.concatenate([np.full(len(turn.accept), turn.prompt_tokens) for each in records for turn in each.turns])
    times = np.array([seconds for record in records for turn in record.turns for seconds in turn.step_s])
    known = timed and len(times) == len(fed)
    for axis, values in (("position", context - prompts), ("context", context)):
        place = np.searchsorted(EDGES[axis], values, side="right") - 1
        for number in np.unique(place):
            own = place == number
            yield (
                *(axis, EDGES[axis][number], int(own.sum()), int(emitted[own].sum())),
                float(emitted[own].mean()),
                1e3 * float(times[own].mean()) if known else float("nan"),
            )


SOURCES = ("source", "proposed", "accepted", "proposed_share", "accepted_share", "acceptance_rate")


def count_sources(records: Sequence[CaseRecord]) -> Iterator[tuple[str, int, int, float, float, float]]:
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
        yield name, offered, taken, _ratio(offered, offered_all), _ratio(taken, taken_all), _ratio(taken, offered)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


OWN_FIGURES = ("figure", "turns", "sum", "mean")


def count_own_figures(records: Sequence[CaseRecord]) -> Iterator[tuple[str, int, float, float]]:
    """(name, turns that have it, sum over them, mean over them), by name."""
    found: dict[str, list[float]] = {}
    for record in records:
        for turn in record.turns:
            for name, value in turn.stats.items():
                found.setdefault(name, []).append(value)
    for name, values in sorted(found.items()):
        yield name, len(values), sum(values), sum(values) / len(values)


PERCENTILES = (50, 95, 99)
MIN_VALUES = 100  # of a 99th percentile: with fewer it is the maximum by another name, and blank
WAITS = ("first_token", "burst", "per_token")
TAILS = ("requests", "steps", *(f"{wait}_p{share}_ms" for wait in WAITS for share in PERCENTILES))


def count_tails(records: Sequence[CaseRecord]) -> Iterator[tuple[float, ...]]:
    """(TAILS) of one method; nothing where no step was timed."""
    turns = [turn for record in records for turn in record.turns]
    bursts = np.array([seconds for turn in turns for seconds in turn.step_s])
    if not bursts.size:
        return
    first = np.array([turn.prefill_s for turn in turns])
    each = np.array([turn.decode_s / sum(turn.accept) for turn in turns if sum(turn.accept)])
    figures = [percentile(1e3 * values, share) for values in (first, bursts, each) for share in PERCENTILES]
    yield (len(turns), len(bursts), *figures)


def percentile(values: np.ndarray, share: int) -> float:
    """Linear between order statistics; the 99th of too few is blank."""
    if not values.size or (share == 99 and values.size < MIN_VALUES):
        return float("nan")
    return float(np.percentile(values, share))


HELD = "cached_tokens"  # of a turn's own figures: tokens in the method's state when the request began
GROWTH = ("case", "category", "round", HELD, "steps", "emitted", "mat", "tokens", "time_s")


def count_growth(records: Sequence[CaseRecord], timed: bool) -> Iterator[tuple[str | float, ...]]:
    """A row a record whose method says what it holds, in the order in which they ran; time_s blank where not timed."""
    for record in sorted(records, key=lambda record: record.block):
        if not record.turns or HELD not in record.turns[0].stats:
            continue
        steps = sum(len(turn.accept) for turn in record.turns)
        emitted = sum(sum(turn.accept) for turn in record.turns)
        yield (
            *(record.case, record.category, record.round, record.turns[0].stats[HELD], steps, emitted),
            emitted / steps if steps else _BLANK,
            sum(len(turn.ids) for turn in record.turns),
            sum(turn.prefill_s + turn.decode_s for turn in record.turns) if timed else _BLANK,
        )
