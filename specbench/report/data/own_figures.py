"""The figures that a method keeps of itself (``Drafter.stats``): CARD's hits, N-Grammys' ranks, SSD's cached tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specbench.record import CaseRecord

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
