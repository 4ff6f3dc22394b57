"""Drafts as root paths, and synthetic ones for synthetic turns, as ``measure.keep_trees`` would have recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from specbench.records.record import VANILLA, CaseRecord, TurnRecord


def root_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Every node as the tokens, or ranks, on the way to it."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), int(token)))
    return found


def draw_trees(turn: TurnRecord, sources: tuple[str, ...] = (), width: int = 2) -> None:
    """Give a turn drafts that hold what it accepted, as a chain, followed by the rest of the nodes."""
    turn.trees = []
    start = len(turn.ids) - sum(turn.accept)
    for step, (count, size) in enumerate(zip(turn.accept, turn.proposed, strict=True)):
        taken = turn.ids[start : start + count - 1]
        parents = [max(node // width - 1, -1) for node in range(size)]
        parents[: len(taken)] = range(-1, len(taken) - 1)
        tokens = [*taken, *((7 * step + node) % 900 for node in range(len(taken), size))]
        tree: dict[str, Any] = {"tokens": tokens, "parents": parents, "path": list(range(len(taken)))}
        if sources:
            tree["sources"] = {name: list(range(rank, size, len(sources))) for rank, name in enumerate(sources)}
        turn.trees.append(tree)
        start += count


def draw_records(
    records: list[CaseRecord], cases: int, sources: dict[str, tuple[str, ...]], peers: tuple[str, ...]
) -> None:
    """Drafts for the first cases of every method but peers. sources: of the methods that name any."""
    first = list(dict.fromkeys(record.case for record in records))[:cases]
    for record in records:
        if record.case in first and record.method not in peers:
            for turn in record.turns:
                draw_trees(turn, sources.get(record.method, ()))
        if record.case in first:
            record.turns[0].prompt_tokens = 3
            if record.method == VANILLA:
                record.turns[0].prompt_ids = [11, 12, 13]


@st.composite
def drafts_and_picks(draw):
    """(tokens, parents, passenger, picks): few tokens, so that siblings repeat and picks are met."""
    count = draw(st.integers(0, 12))
    tokens = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    passenger = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count))
    picks = draw(st.lists(st.integers(0, 3), min_size=count + 1, max_size=count + 1))
    return tokens, parents, passenger, picks
