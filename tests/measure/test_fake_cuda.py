"""Labelled tensors behave as a GPU's: what mixes devices raises, what waits is counted, the numbers are the CPU's."""

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


MIXED = {
    "sum": lambda there: there + HOST,
    "product": lambda there: there @ HOST.T,
    "cat": lambda there: torch.cat([there, HOST]),
    "gather": lambda there: there.gather(0, INDEX[:, None]),
    "index_select": lambda there: there.index_select(0, INDEX),
    "numpy": lambda there: there.numpy(),
    "a copy that nobody waits for": lambda there: torch.empty(2, 3).copy_(there, non_blocking=True),
    "its method": lambda there: there.to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED)
def test_what_a_gpu_refuses_raises(there, call):
    with pytest.raises(DeviceMixError, match=r"CPU|host"):
        call(there)


READS = {
    "item": lambda there: there[0, 1].item(),
    "int": lambda there: int(there[0, 1]),
    "float": lambda there: float(there[0, 1]),
    "bool": lambda there: bool((there > 3).any()),
    "as an index": lambda there: [5, 6][there.long()[0, 1]],
    "tolist": lambda there: there.tolist(),
    "cpu": lambda there: there.cpu(),
    "to": lambda there: there.to("cpu"),
    "copy_": lambda there: torch.empty(2, 3).copy_(there),
    "nonzero": lambda there: there.nonzero(),
    "where": lambda there: torch.where(there > 3),
    "a mask": lambda there: there[there > 3],
    "equal": lambda there: torch.equal(there, there),
    "repeats": lambda there: there.repeat_interleave(there.long()[0], dim=1),
}


@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_a_read_back_is_counted_and_gives_the_cpus_value(mode, there, call):
    found = call(there)
    assert (mode.blocking[READ], mode.blocking[UPLOAD]) == (1, 0)
    expected = call(HOST)
    if isinstance(found, torch.Tensor):
        assert torch.equal(found.to("cpu"), expected)
    elif not isinstance(found, tuple):
        assert found == expected


def test_drawing_one_token_waits_twice(mode, there):
    torch.multinomial(there, 1)
    assert mode.blocking[READ] == 2
    torch.multinomial(there, 2, replacement=True)
    assert mode.blocking[READ] == 2


UPLOADS = {
    "tensor": lambda there: torch.tensor([1.0, 2.0], device=DEVICE),
    "to": lambda there: HOST.to(there.device),
    "to, pageable": lambda there: HOST.to(there.device, non_blocking=True),
    "new_tensor": lambda there: there.new_tensor([1.0]),
    "an index": lambda there: there[INDEX],
    "a list as index": lambda there: there[[1, 0]],
    "as_tensor": lambda there: torch.as_tensor([3], device=DEVICE),
    "copy_": lambda there: there.copy_(HOST),
}


@pytest.mark.parametrize("call", UPLOADS.values(), ids=UPLOADS)
def test_an_upload_is_counted(mode, there, call):
    assert call(there).device == DEVICE
    assert (mode.blocking[READ], mode.blocking[UPLOAD]) == (0, 1)


FREE = {
    "pinned": lambda there: HOST.pin_memory().to(DEVICE, non_blocking=True),
    "pinned buffer": lambda there: there.copy_(torch.zeros(2, 3, pin_memory=True), non_blocking=True),
    "made there": lambda there: torch.arange(3, device=there.device) + torch.zeros_like(there) + there.new_ones(3),
    "a number": lambda there: there.mul_(2).add(torch.tensor(1.0)),
    "a place": lambda there: there[0, 1:],
    "a fill": lambda there: there.index_fill_(0, torch.arange(1, device=DEVICE), 2.0),
    "in place": lambda there: torch.add(there, 1, out=there),
}


@pytest.mark.parametrize("call", FREE.values(), ids=FREE)
def test_what_does_not_wait_is_not_counted(mode, there, call):
    assert call(there).device == DEVICE
    assert not mode.blocking


def test_results_in_place_are_the_tensors_themselves(there):
    assert there.add_(1) is there
    row = there[0]
    row.zero_()
    assert there.tolist()[0] == [0, 0, 0]


@pytest.mark.parametrize("call", [*READS.values(), *UPLOADS.values()], ids=[*READS, *UPLOADS])
def test_a_captured_call_must_not_transfer(mode, there, call):
    with mode.captured(), pytest.raises(DeviceMixError, match="in a captured call"):
        call(there)


def test_nothing_stays_behind():
    before = torch.Generator, torch.cuda.Event, torch.cuda.device_count
    with FakeCuda():
        assert torch.Generator(DEVICE).manual_seed(1).initial_seed() == 1
    assert before == (torch.Generator, torch.cuda.Event, torch.cuda.device_count)
    assert torch.zeros(1).requires_grad_().requires_grad
