"""What decode steps gained: how many tokens each emitted, and how deep into its draft the target agreed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.record import CaseRecord

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
