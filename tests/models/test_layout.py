"""A tree that the device lays out fills a frame as one that the host does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.models.fast.attention import attend_flex
from specbench.models.fast.frame import TreeFrame
from specbench.models.fast.layout import DeviceLayout, Layouts
from specbench.types import Draft

WIDTHS = (1, 8, 40, 72)
FILLED = ("depths", "parents", "reach", "above")


def filled(width, dtype, attend, parents) -> TreeFrame:
    """A frame that has had another draft before."""
    frame = TreeFrame(width, {"full": None, "near": 3}, dtype, torch.device("cpu"), attend)
    layouts = Layouts()
    frame.fill(
        5,
        [6] * (width - 1),
        9,
        layouts.find(range(-1, width - 2), Draft.chain([6] * (width - 1)), False),
    )
    draft = Draft([7] * len(parents), parents)
    frame.fill(5, draft.tokens, 9, layouts.find(parents, draft, False), lambda key, call: call())
    return frame


@st.composite
def trees(draw):
    width = draw(st.sampled_from(WIDTHS))
    count = draw(st.integers(0, width - 1))
    return width, [
        draw(st.integers(max(-1, node - draw(st.sampled_from([1, 4, 80]))), node - 1))
        for node in range(count)
    ]


@given(
    trees(), st.sampled_from([torch.float32, torch.bfloat16]), st.sampled_from([None, attend_flex])
)
def test_it_fills_a_frame_as_the_host_does(tree, dtype, attend):
    width, parents = tree
    ours, theirs = (
        filled(width, dtype, attend, given)
        for given in (torch.tensor(parents, dtype=torch.int64), parents)
    )
    assert isinstance(ours.layout, DeviceLayout)
    for name in FILLED:
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for kind, bias in theirs.bias.items():
        assert torch.equal(ours.bias[kind], bias), kind
    assert torch.equal(
        torch.as_tensor(ours.depths_of(ours.layout)),
        torch.as_tensor(theirs.depths_of(theirs.layout)),
    )


@pytest.mark.parametrize("path", [[], [0], [0, 1], [1, 3]])
def test_rows_that_move_are_those_that_do_not_lie_together(path):
    parents = [-1, -1, 0, 1]
    whole = Layouts().find(parents, Draft([1] * 4, parents), False)
    assert DeviceLayout(torch.tensor(parents), 2).rows_to_move(path) == whole.rows_to_move(path)
