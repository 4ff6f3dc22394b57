"""OPT-Tree against the best subtree by brute force, on Markov drafts small enough to list every
tree.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import MarkovLM, begin, fitted
from head_models import paths_of
from methods import opt_tree
from methods.opt_tree import OptTree


def drafted(table, nodes, depth, threshold=0.0, context=(0, 0)):
    method = OptTree("unused", nodes, threshold, depth)
    return begin(fitted(method, MarkovLM(table), vocab=len(table)), context).propose(
        list(context), 99
    )


def weight(chances, path, root=0):
    product = 1.0
    for before, after in zip((root, *path), path, strict=False):
        product *= chances[before][after]
    return product


def best_by_force(table, nodes, depth):
    """The largest sum of path weights of a tree of ``nodes`` nodes: every tree is tried."""
    chances = table.softmax(-1).tolist()

    def grow(tree, frontier, left):
        """Add nodes in one fixed order, so that each tree is built once."""
        value = sum(weight(chances, path) for path in tree)
        best = value
        if left:
            for place, path in enumerate(frontier):
                below = [(*path, token) for token in range(len(table))] if len(path) < depth else []
                best = max(best, grow([*tree, path], frontier[place + 1 :] + below, left - 1))
        return best

    return grow([], [(token,) for token in range(len(table))], nodes)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.floats(0.1, 4.0))
def test_the_tree_is_the_best_of_all(seed, nodes, depth, spread):
    table = (
        torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * spread
    )
    draft = drafted(table, nodes, depth)
    paths = paths_of(draft)
    chances = table.softmax(-1).tolist()
    assert (
        len(set(paths)) == len(paths) == min(nodes, sum(3**level for level in range(1, depth + 1)))
    )
    assert max(map(len, paths)) <= depth
    assert sum(weight(chances, path) for path in paths) == pytest.approx(
        best_by_force(table, nodes, depth)
    )
    assert draft.score == pytest.approx([chances[(0, *path)[-2]][path[-1]] for path in paths])


def test_feeding_only_what_is_among_the_best_changes_nothing(monkeypatch):
    """Against a growth that feeds every node of a layer, as the reference does."""
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sparse = [paths_of(drafted(table, nodes, 5)) for nodes in (3, 8, 20)]
    add = opt_tree._Growth.add_layer

    def everything(self, above, rows):
        start = len(self.tokens)
        add(self, above, rows)
        return list(range(start, len(self.tokens)))

    monkeypatch.setattr(opt_tree._Growth, "add_layer", everything)
    assert [paths_of(drafted(table, nodes, 5)) for nodes in (3, 8, 20)] == sparse


def test_a_certain_draft_is_a_chain_and_the_threshold_ends_the_growth():
    """Children of probability 1 weigh what their parents weigh; the parent must be chosen first."""
    table = torch.full((4, 4), -1e4, dtype=torch.float64)
    for token in range(4):
        table[token, (token + 1) % 4] = 0.0
    draft = drafted(table, 6, 6)
    assert paths_of(draft)[-1] == (1, 2, 3, 0, 1, 2)
    assert list(draft.parents) == [-1, 0, 1, 2, 3, 4]
    # Children of 0.7 and 0.3, three nodes: 1, then 0.7 + 0.49 + 0.3, then 0.7 + 0.49 + 0.343, then
    # no more.
    lm = MarkovLM(torch.tensor([[0.7, 0.3], [0.7, 0.3]], dtype=torch.float64).log())
    for threshold, layers, forwards in ((0.0, 4, 4), (0.1, 3, 3), (0.5, 2, 2)):
        method = fitted(OptTree("unused", 3, threshold, 9), lm, vocab=2)
        drafter = begin(method, [0, 0])
        lm.forwards = 0
        draft = drafter.propose([0, 0], 99)
        assert drafter.stats() == {"mean_layers": layers}
        assert lm.forwards == forwards  # the context's own is the first layer's
        assert paths_of(draft)[-1] == ((0, 0, 0) if layers > 2 else (0, 0))
