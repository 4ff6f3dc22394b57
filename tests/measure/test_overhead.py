"""The counter against hand counts: operations that launch, views that do not, every way to
synchronise.
"""

from __future__ import annotations

import pytest
import torch

from scripts.lab.overhead import OpCounter


@pytest.mark.parametrize("inference", [False, True])
def test_operations_and_views(inference):
    a = torch.ones(4, 4)
    with torch.inference_mode(inference), OpCounter().counting() as counter:
        b = a + 1
        b = b.view(2, 8)[0]
        b.index_fill_(0, torch.tensor([1]), 2.0)
        b.to(torch.float64)
        b.to(torch.float32)
    assert (
        counter.ops["rest"] == 3
    )  # add, index_fill_, one conversion; making a tensor from a list is no operation on the device
    assert counter.syncs["rest"] == 0


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        bool,
        lambda t: t.item(),
        lambda t: t.tolist(),
        lambda t: t.numpy(),
        lambda t: t.reshape(1).nonzero(),
    ],
)
def test_every_read_back_counts_once(read, inference):
    with torch.inference_mode(inference):
        value = torch.tensor(3.0)
        with OpCounter().counting() as counter:
            read(value)
    assert counter.syncs["rest"] == 1


def test_sections():
    counter = OpCounter()
    one = torch.ones(2)
    step = counter.within("inner", lambda: one * 2)
    with counter.counting():
        one + 1
        with counter.section("outer"):
            one + 1
            step()
    assert dict(counter.ops) == {"rest": 1, "outer": 1, "inner": 1}
    assert torch.Tensor.tolist(one) == [1.0, 1.0]
