"""Drafts as root paths, and synthetic ones for synthetic turns, as ``measure.keep_trees`` would
have recorded them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from specbench.decode.walk import Walk
from specbench.records.record import VANILLA, CaseRecord, TurnRecord
from specbench.types import ROOT, Step, TopK


def root_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Every node as the tokens, or ranks, on the way to it."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), int(token)))
    return found


def judge(draft, context: Sequence[int], model) -> Step:
    """The step in which a target judges a draft, each node by its own path.

    model: tokens -> the next one.
    """
    paths, picks = [], [model(context)]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append([*(paths[parent] if parent != ROOT else context), int(token)])
        picks.append(model(paths[-1]))
    path = Walk.follow(draft.tokens, draft.parents, draft.passenger, picks)
    emitted = [*(int(draft.tokens[node]) for node in path), picks[path[-1] + 1 if path else 0]]
    ids, fed = torch.tensor(picks)[:, None], torch.tensor([context[-1], *draft.tokens])
    return Step(context[-1], tuple(emitted), tuple(path), False, fed, TopK(ids, ids.float()))


def require_laws(drafter, ids, law, sampling=None, stop: int = 99, near: float = 1e-4):
    """Require that a chain is drafted by ``law``, states it, and tells it to a policy of lengths.

    law: the drafted path -> (V,) logits of the next token.
    """
    asked: list[Any] = []
    drafter.goes_on = lambda level: asked.append(level) or len(asked) < stop
    draft = drafter.propose(ids, 64)
    tokens = [int(token) for token in draft.tokens]
    rows = torch.stack([law(tokens[:place]) for place in range(len(tokens))])
    laws = (rows.softmax(-1) if sampling is None else sampling(rows)).double()
    if sampling is None:
        assert tokens == laws.argmax(-1).tolist()
    else:
        torch.testing.assert_close(draft.probs.double(), laws, atol=near, rtol=1e-3)
    reach = laws.gather(1, torch.tensor(tokens)[:, None])[:, 0].cumprod(0)
    assert asked
    for level, own, chance in zip(asked, laws, reach, strict=False):
        assert float(level.probability) == pytest.approx(float(chance), rel=1e-4)
        torch.testing.assert_close(level.distribution.double(), own, atol=near, rtol=1e-3)
    assert stop == 99 or len(tokens) == stop
    return draft


def draw_trees(turn: TurnRecord, sources: tuple[str, ...] = (), width: int = 2) -> None:
    """Give a turn drafts that hold what it accepted, as a chain, followed by the rest of the
    nodes.
    """
    turn.trees = []
    start = len(turn.ids) - sum(turn.accept)
    for step, (count, size) in enumerate(zip(turn.accept, turn.proposed, strict=True)):
        taken = turn.ids[start : start + count - 1]
        parents = [max(node // width - 1, -1) for node in range(size)]
        parents[: len(taken)] = range(-1, len(taken) - 1)
        tokens = [*taken, *((7 * step + node) % 900 for node in range(len(taken), size))]
        tree: dict[str, Any] = {
            "tokens": tokens,
            "parents": parents,
            "path": list(range(len(taken))),
        }
        if sources:
            tree["sources"] = {
                name: list(range(rank, size, len(sources))) for rank, name in enumerate(sources)
            }
        turn.trees.append(tree)
        start += count


def draw_records(
    records: list[CaseRecord],
    cases: int,
    sources: dict[str, tuple[str, ...]],
    peers: tuple[str, ...],
) -> None:
    """Drafts for the first cases of every method but peers. sources: of the methods that name
    any.
    """
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
    """(tokens, parents, passenger, picks): few tokens, so that siblings repeat and picks are
    met.
    """
    count = draw(st.integers(0, 12))
    tokens = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    passenger = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count))
    picks = draw(st.lists(st.integers(0, 3), min_size=count + 1, max_size=count + 1))
    return tokens, parents, passenger, picks
