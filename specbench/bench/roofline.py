"""The machine's ceilings: how fast it reads, copies and multiplies, the denominators of every share of a bound.

The best of several repetitions, since a ceiling is what the machine can do and interference only takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from specbench.profile.profile import Ceilings

# [bytes] several times any last-level cache; on a GPU so much that launching counts for nothing
BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
_ROUNDS = 9
_SIDES = {"cpu": 1024, "cuda": 8192}  # of the square matrices


def measure_ceilings(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Ceilings:
    """size: [bytes] of the buffer, by default the device's.

    The matmul is of the model's dtype, the streams of float32 whatever it is.
    """
    size = size or BYTES.get(device.type, BYTES["cpu"])
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    read_s = _best(lambda: source.sum(), device)
    copy_s = _best(lambda: target.copy_(source), device)
    side = _SIDES.get(device.type, _SIDES["cpu"])
    left, right = (torch.randn(side, side, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    matmul_s = _best(lambda: torch.mm(left, right, out=out), device)
    return Ceilings(size / read_s * 1e-9, 2 * size / copy_s * 1e-9, 2 * side**3 / matmul_s * 1e-9)


def best_of(one: Ceilings, other: Ceilings) -> Ceilings:
    """The higher figure of each: measured before and after a sweep, a busy moment lowers none."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in Ceilings.__slots__)
    return Ceilings(*map(max, pairs))


def _best(work: Callable[[], object], device: torch.device) -> float:
    """[s] the quickest of the rounds, after one that does not count."""
    times = []
    for _ in range(_ROUNDS + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
