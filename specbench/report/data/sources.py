"""Where drafted tokens came from (dynamic table, frozen table, context ...), and which of these the target took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.record import CaseRecord

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
