"""Labelled tensors behave as a GPU's: what mixes devices raises, what waits is counted, the numbers
are the CPU's.
"""

from __future__ import annotations

import pytest
import torch

from builders.fake_cuda import DEVICE, READ, UPLOAD, DeviceMixError, FakeCuda

HOST = torch.arange(6.0).reshape(2, 3)
INDEX = torch.tensor([1, 0])


@pytest.fixture
def mode():
    with FakeCuda() as entered:
        yield entered


@pytest.fixture
def there(mode):
    tensor = HOST.to(DEVICE)
    mode.blocking.clear()
    return tensor


def test_what_mixes_raises_what_waits_is_counted_and_no_captured_call_transfers(mode, there):
    for mix in (lambda: there + HOST, lambda: there.gather(0, INDEX[:, None]), there.numpy):
        with pytest.raises(DeviceMixError, match=r"CPU|host"):
            mix()
    for read in (
        lambda each: each[0, 1].item(),
        lambda each: each.tolist(),
        lambda each: int(each.max()),
    ):
        mode.blocking.clear()
        assert read(there) == read(HOST)
        assert (mode.blocking[READ], mode.blocking[UPLOAD]) == (1, 0)
    mode.blocking.clear()
    assert HOST.to(there.device).device == there[INDEX].device == DEVICE
    assert (mode.blocking[READ], mode.blocking[UPLOAD]) == (0, 2)
    mode.blocking.clear()
    pinned = HOST.pin_memory().to(DEVICE, non_blocking=True)
    pinned.index_fill_(0, torch.arange(1, device=DEVICE), 2.0)
    assert not mode.blocking
    with mode.captured(), pytest.raises(DeviceMixError, match="in a captured call"):
        there.tolist()
