"""Token Recycling against the integer examples of the reference, each with the wrong variant that
must fail them.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import root_paths
from builders.runs import settings_of
from methods.parts.recycling import RecyclingMatrix
from methods.parts.tree_shape import TreeShape
from methods.token_recycling import REFERENCE, SHARES, TokenRecycling, reference_tree
from scripts.lab.overhead import OpCounter
from specbench.types import InputError, Prefill, Step, TopK

COUNTS = [[2], [2, 1], [0, 0, 0]]


class _Target:
    max_nodes = 256
    vocab_size = 16
    device = torch.device("cpu")


def bound(**options) -> TokenRecycling:
    method = TokenRecycling(k=3, tree=COUNTS, **options)
    method.bind(_Target())
    return method


def ranks_of(shape: TreeShape) -> list[tuple[int, ...]]:
    return root_paths(shape.ranks, shape.parents)


def sizes_of(shape: TreeShape) -> list[int]:
    """Nodes of each level."""
    return [len(level.ranks) for level in shape.levels]


def test_shape_of_the_reference():
    shape = TokenRecycling(**yaml_of("token_recycling")).shape
    assert sizes_of(shape) == [8, 21, 25, 15, 8, 3]
    assert len(shape) == 80
    children = [shape.parents.count(node) for node in range(80)]
    assert children.count(0) == 40
    paths = {"-".join(map(str, path)) for path in ranks_of(shape)}
    # the last five the authors added
    assert {"0-7-0", "0-2-1", "0-0-4-0", "0-0-0-1-0-0", "0-0-0-0-0-1"} <= paths
    assert shape == TreeShape.from_counts(REFERENCE, 8)
    assert (
        tuple(
            sum(path[0] == rank for path in root_paths(shape.ranks, shape.parents))
            for rank in range(8)
        )
        == SHARES
    )


def yaml_of(name: str) -> dict:
    return {
        key: value for key, value in settings_of(name).items() if key not in ("_target_", "reset")
    }


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 10))
def test_a_sized_tree_has_its_size_and_is_a_tree(nodes, depth, width):
    room = sum(width**level for level in range(1, depth + 1))
    if not depth <= nodes <= room:
        with pytest.raises(InputError, match=f"nodes={nodes}: "):
            reference_tree(nodes, depth, width)
        return
    shape = reference_tree(nodes, depth, width)
    assert (len(shape), len(shape.levels)) == (nodes, depth)
    paths = root_paths(shape.ranks, shape.parents)
    assert len(set(paths)) == nodes
    assert all(path[-1] < width for path in paths)
    # ranks without a gap
    assert all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths for path in paths)


def test_families_of_trees_pass_through_the_reference():
    family = [set(ranks_of(reference_tree(nodes, 6, 8))) for nodes in (20, 40, 60, 80, 100, 120)]
    assert all(small < large for small, large in itertools.pairwise(family))
    assert family[3] == set(ranks_of(TreeShape.from_counts(REFERENCE, 8)))
    assert (0,) * 6 in family[0]
    # The wrong variant: without the reference's nodes first, ten of its eighty are others.
    every = [
        path
        for level in range(1, 7)
        for path in itertools.product(range(8 if level < 4 else 4), repeat=level)
    ]
    by_worth = sorted(
        every,
        key=lambda path: (
            -math.prod(SHARES[rank] for rank in path) * 80 ** (6 - len(path)),
            len(path),
            path,
        ),
    )
    assert len(set(by_worth[:80]) & set(ranks_of(TreeShape.from_counts(REFERENCE, 8)))) == 70


def test_fill_breadth_first():
    method = bound()
    for token, row in ((5, [6, 7, 8]), (6, [1, 2, 3]), (7, [4, 9, 0])):
        method.matrix.rows[token] = torch.tensor(row)
    assert method.shape.parents == (-1, -1, 0, 0, 1)
    # depth first it would be 6 1 2 7 4
    assert list(method.matrix.draft(5).tokens) == [6, 7, 1, 2, 4]
    assert list(bound().matrix.draft(9).tokens) == [0, 0, 0, 0, 0]


ROWS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def test_a_request_learns_from_prompt_and_forwards_until_a_reset():
    method = bound()
    ids = torch.tensor([[6, 7, 8]])
    drafter = method.begin([3, 4], Prefill(5, topk=TopK(ids, ids.float())), 0)
    # the prefill's row follows the last prompt token
    assert method.matrix.rows[4].tolist() == [6, 7, 8]
    assert not method.matrix.rows[3].any()
    draft = drafter.propose([3, 4, 5], 64)
    rows = torch.arange(18).reshape(6, 3) % 16
    drafter.observe(
        Step(5, (9,), (), True, torch.tensor([5, *draft.tokens]), TopK(rows, rows.float()))
    )
    assert method.matrix.rows[5].tolist() == rows[0].tolist()
    assert len(draft) == 5
    assert drafter.propose([3, 4, 5, 4], 64).tokens[:2] == [6, 7]
    method = bound(update_from_prefill=True)
    method.begin([10, 11, 10], Prefill(5, topk=TopK(ROWS, ROWS.float())), 0)
    assert method.matrix.rows[10:12].tolist() == [[7, 8, 9], [4, 5, 6]]
    assert method.needs.prompt_topk == 3
    method.reset()
    assert not method.matrix.rows.any()
    assert method.state_bytes() == 16 * 3 * 8


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.sampled_from(["last", "first", "merge"]),
    st.data(),
)
def test_host_and_device_agree_with_a_loop(tokens, update, data):
    rows = [data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3)) for _ in tokens]
    device = torch.device("cpu")
    host, remote = (
        RecyclingMatrix(TreeShape.from_counts(COUNTS, 3), 3, update, 5, device, on_host)
        for on_host in (True, False)
    )
    for matrix in (host, remote):
        matrix.learn(torch.tensor(tokens), TopK(torch.tensor(rows), torch.tensor(rows)))
    wanted = [[0, 0, 0] for _ in range(5)]
    for token in set(tokens):
        seen = [row for fed, row in zip(tokens, rows, strict=True) if fed == token]
        mixed = [seen[rank % len(seen)][rank] for rank in range(3)]
        wanted[token] = {"last": seen[-1], "first": seen[0], "merge": mixed}[update]
    assert host.rows.tolist() == remote.rows.tolist() == wanted
    on_device = remote.draft(tokens[0])
    assert isinstance(on_device.tokens, torch.Tensor)
    assert host.draft(tokens[0]).tokens == on_device.tokens.tolist()
    assert on_device.tokens.tolist()[:2] == wanted[tokens[0]][:2]


@pytest.mark.parametrize(("update", "most"), [("last", 10), ("first", 9), ("merge", 10)])
def test_a_step_on_a_device_waits_for_nothing(update, most):
    """Counted on the CPU: no read-back, two gathers a level, and a constant number of operations to
    learn.
    """
    device = torch.device("cpu")
    matrix = RecyclingMatrix(reference_tree(80, 6, 8), 8, update, 100, device, on_host=False)
    fed, rows = torch.arange(81), torch.zeros(81, 8, dtype=torch.long)
    drafting, learning = OpCounter(), OpCounter()
    with torch.inference_mode():
        with drafting.counting():
            matrix.draft(5)
        with learning.counting():
            matrix.learn(fed, TopK(rows, rows))
    assert not drafting.syncs
    assert not learning.syncs
    assert drafting.ops["rest"] == 2 * 6 + 2  # besides: the root, the joining
    assert learning.ops["rest"] <= most


@pytest.mark.parametrize("update", ["last", "merge"])
def test_a_private_copy_drafts_what_it_learned_and_nothing_after_a_reset(update):
    """Under load each request in flight has one."""
    method = bound(update=update)
    own = method.private()
    own.matrix.learn(torch.tensor([5]), TopK(ROWS[:1], ROWS[:1].float()))
    assert own.matrix.draft(5).tokens[:2] == ROWS[0, :2].tolist()
    own.reset()
    assert not any(own.matrix.draft(5).tokens)
    assert not any(method.matrix.draft(5).tokens)
