"""Fixed tree shapes: expansion configurations by hand, and Sequoia's dynamic programming against every tree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.parts.tree_shape import TreeShape
from methods.sequoia import find_best_shape
from methods.specinfer import parents_of_widths
from specbench.models.tree import compute_depths


def test_expansion_configurations():
    assert parents_of_widths([1, 1, 1]) == [-1, 0, 1]
    assert parents_of_widths([3]) == [-1, -1, -1]
    assert parents_of_widths([2, 1]) == [-1, -1, 0, 1]
    assert parents_of_widths([1, 2, 2]) == [-1, 0, 0, 1, 1, 2, 2]
    assert len(parents_of_widths([1, 1, 3, 1, 1, 1, 1, 1])) == 20


def test_levels():
    """Root -> 0, 1; 0 -> 2; 1 has no child; 2 -> 3, 4."""
    shape = TreeShape.of([-1, -1, 0, 2, 2])
    assert [level.start for level in shape.levels] == [0, 2, 3]
    assert [level.rows for level in shape.levels] == [(0, 0), (0,), (0, 0)]
    assert [level.ranks for level in shape.levels] == [(0, 1), (0,), (0, 1)]
    assert [level.inner for level in shape.levels] == [(0,), (0,), ()]
    assert [level.above for level in shape.levels] == [(-1,), (0,), ()]
    assert shape.inner == {0: 0, 2: 1}
    assert len(TreeShape.of([])) == 0


def worth(parents, acceptance) -> float:
    """Expected tokens of a step: one, and for each node the chance that all on its path are accepted."""
    ranks: dict[int, int] = {}
    chances = []
    for parent in parents:
        rank = ranks.get(parent, 0)
        ranks[parent] = rank + 1
        above = chances[parent] if parent >= 0 else 1.0
        chances.append(above * (acceptance[rank] if rank < len(acceptance) else 0.0))
    return 1 + sum(chances)


def every_tree(nodes, depth, branches):
    """All trees of that many nodes at most, as parents, level by level."""
    for count in range(1, nodes + 1):
        for parents in itertools.product(*(range(-1, node) for node in range(count))):
            if list(parents) != sorted(parents) or max(compute_depths(parents)) > depth:
                continue
            if max(parents.count(parent) for parent in set(parents)) <= branches:
                yield parents


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_best_shape_is_the_best_of_all_trees(data):
    nodes, depth = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    weights = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any))
    acceptance = [weight / (sum(weights) + data.draw(st.integers(0, 20))) for weight in weights]
    parents, expected = find_best_shape(nodes, depth, acceptance)
    assert len(parents) <= nodes
    assert max(compute_depths(parents), default=0) <= depth  # a single node that is never right is left out
    assert worth(parents, acceptance) == pytest.approx(expected)
    assert expected == pytest.approx(max(worth(tree, acceptance) for tree in every_tree(nodes, depth, len(acceptance))))


def test_a_zero_before_a_likely_child_is_only_a_step_to_it():
    assert find_best_shape(2, 3, [0.0, 0.9]) == ([-1, -1], pytest.approx(1.9))


def test_a_chain_where_only_the_first_child_is_ever_right():
    assert find_best_shape(4, 9, [0.8])[0] == [-1, 0, 1, 2]
    assert find_best_shape(4, 2, [0.8])[0] == [-1, 0]


def test_parents_come_level_by_level_and_siblings_together():
    parents, _ = find_best_shape(200, 12, [0.5, 0.2, 0.1, 0.05])
    assert parents == sorted(parents)
    assert len(parents) == 200
