"""A machine's ceilings: how fast it reads, copies and multiplies, which a forward's time is compared with.

The best of several repetitions, because interference only takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import torch

from specbench.profile.profile import Ceilings

# [bytes] at most; several times any last-level cache; on a GPU so much that launching counts for nothing
BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
_ROUNDS = 9
_SIDES = {"cpu": 1024, "cuda": 8192}  # of the square matrices, at most
_MATRIX_BYTES = 32  # an entry's of the three, as they are drawn and as they are multiplied, and some room


def measure_ceilings(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Ceilings:
    """size: [bytes] of each of two buffers, by default the device's, and at most a quarter of its free memory.

    The matmul is of the model's dtype, the streams of float32 whatever it is.
    """
    free = _count_free(device)
    size = min(size or BYTES.get(device.type, BYTES["cpu"]), free // 4)
    read_s, copy_s = _time_streams(size, device)
    side = min(_SIDES.get(device.type, _SIDES["cpu"]), int((free / _MATRIX_BYTES) ** 0.5))
    left, right = (torch.randn(side, side, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    matmul_s = _best(lambda: torch.mm(left, right, out=out), device)
    return Ceilings(size / read_s * 1e-9, 2 * size / copy_s * 1e-9, 2 * side**3 / matmul_s * 1e-9)


def _time_streams(size: int, device: torch.device) -> tuple[float, float]:
    """[s] to read and to copy ``size`` bytes."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return _best(lambda: source.sum(), device), _best(lambda: target.copy_(source), device)


def _count_free(device: torch.device) -> int:
    """[bytes] that tensors can still take; on a GPU also what torch holds and does not use."""
    if device.type != "cuda":
        return psutil.virtual_memory().available
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def best_of(one: Ceilings, other: Ceilings) -> Ceilings:
    """The higher figure of each: measured before and after a sweep, a busy moment lowers none."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in Ceilings.__slots__)
    return Ceilings(*map(max, pairs))


def _best(work: Callable[[], object], device: torch.device) -> float:
    """[s] the quickest of the rounds, after one that does not count."""
    times = []
    for _ in range(_ROUNDS + 1):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
