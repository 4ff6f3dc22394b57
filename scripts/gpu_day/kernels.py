"""Time attention and matrix products of a 7B shape's step, and compare each with reading its memory once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from scripts.gpu_day.day import Day
from specbench.advise.latency import measure_ceilings
from specbench.measure.clock import Clock
from specbench.models.fast.attention import FLEX, TRITON, TreeMask, find_attention, pack_bits
from specbench.types import InputError

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
HEADS, HEAD = 32, 128  # query heads, size of a head
ROUNDS = 20
SPREAD = 256 << 20  # [bytes] that calls in turn read: several times a cache, as the layers of a step do
FLEX_SHAPES = [(2048, 8), (2048, 64)]  # (keys, rows): each is compiled, in many seconds
PRODUCTS = [(4096, 12288), (4096, 4096), (4096, 22016), (11008, 4096), (4096, 32000)]
Call = Callable[[], Any]


def time_calls(day: Day, calls: Sequence[Call]) -> float:
    """Time [us] one of these calls, which read different memory: the median of rounds over all of them.

    On a GPU they are recorded as one graph, which excludes the host's time to launch them.
    """

    def work() -> None:
        for call in calls:
            call()

    replay: Call = work
    if day.device.type == "cuda":
        for call in calls[:2]:
            call()
        torch.cuda.synchronize(day.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        replay = graph.replay
    times = sorted([_time_once(day, replay) for _ in range(2 if day.rehearse else ROUNDS)][1:])
    return 1e6 * times[len(times) // 2] / len(calls)


def _time_once(day: Day, call: Call) -> float:
    clock = Clock(day.device)
    clock.start()
    call()
    return clock.elapsed()


class Rows:
    """Queries of some rows over keys and values, several times over on different memory.

    query: (1, 32, rows, D). keys, values: (1, heads, keys, D). mask: (1, 1, rows, keys) additive, None = all.
    """

    def __init__(self, day: Day, rows: int, keys: int, heads: int, masked: bool) -> None:
        options: Any = {"device": day.device, "dtype": day.dtype}
        self.count, self.keys = rows, keys
        self.nbytes = 2 * heads * keys * HEAD * day.dtype.itemsize
        self.query = torch.randn(1, HEADS, rows, HEAD, **options)
        self.memory = torch.randn(_copies(day, self.nbytes), 2, 1, heads, keys, HEAD, **options)
        mask = torch.zeros(1, 1, rows, keys, **options) if masked else None
        if mask is not None:
            mask[..., -rows:] = torch.full((rows, rows), float("-inf")).triu(1).to(mask)
        self.attend = partial(scaled_dot_product_attention, attn_mask=mask, enable_gqa=heads != HEADS)

    def calls(self) -> list[Call]:
        """Return calls of torch's attention, with the kernel that is allowed."""
        return [partial(self.attend, self.query, *each) for each in self.memory]

    def tree_calls(self, day: Day, way: str) -> list[Call]:
        """Return calls of an attention that reads lengths and ancestors on the device.

        Raises InputError if it does not run here.
        """
        attend = find_attention(way, day.device, day.dtype, HEAD)
        assert attend is not None
        bits = torch.from_numpy(pack_bits(np.tri(self.count, dtype=bool))).to(day.device)
        depths = torch.arange(self.count, device=day.device)
        mask = TreeMask(attend, torch.tensor([self.keys - self.count], device=day.device), depths, bits, None)
        query = self.query[0].transpose(0, 1).contiguous()
        return [partial(attend, query, keys, values, mask) for keys, values in self.memory]


def _copies(day: Day, nbytes: int) -> int:
    """The number of copies of a memory that together exceed the caches."""
    return 2 if day.rehearse else max(2, -(-SPREAD // nbytes))


def plan_attention(day: Day) -> list[dict[str, Any]]:
    """Time torch's kernels: the first call of a shape, which may plan, and later ones; '' if a kernel refuses it.

    Prompts of neighbouring lengths show the cost of a plan for an exact shape.
    """
    shapes = [(rows, keys, masked) for rows in (1, 8, 64, 96) for keys in (512, 2048) for masked in (False, True)]
    shapes += [(count, count, True) for count in (401, 402, 403)]
    found = []
    for backend in BACKENDS:
        for count, keys, masked in shapes[:3] if day.rehearse else shapes:
            row = {"kernel": backend, "rows": count, "keys": keys, "mask": "yes" if masked else "no"}
            found.append(row | _time_backend(day, backend, Rows(day, count, keys, HEADS, masked)))
    return found


def _time_backend(day: Day, backend: str, rows: Rows) -> dict[str, Any]:
    calls = rows.calls()
    try:
        with sdpa_kernel(BACKENDS[backend]):
            first = 1e3 * _time_once(day, calls[0])
            return {"first, ms": first, "later, us": time_calls(day, calls)}
    except RuntimeError as error:  # torch's error for a kernel that does not take such a call
        return {"first, ms": "", "later, us": "", "why not": str(error).splitlines()[0][:80]}


def compare_kernels(day: Day) -> list[dict[str, Any]]:
    """Time each kernel's attention of a draft's rows [us], and compare it with reading keys and values once."""
    read_s = _seconds_a_byte(day)
    counts, lengths, heads = ((1, 8), (32,), (32,)) if day.rehearse else ((1, 8, 64, 96), (512, 2048, 8192), (32, 8))
    found = []
    for count, keys, some in product(counts, lengths, heads):
        rows = Rows(day, count, keys, some, count > 1)
        row: dict[str, Any] = {"rows": count, "keys": keys, "key heads": some, "bound": 1e6 * rows.nbytes * read_s}
        row |= {backend: _time_backend(day, backend, rows)["later, us"] for backend in BACKENDS}
        for way in (TRITON, *([FLEX] if day.rehearse or (keys, count) in FLEX_SHAPES else [])):
            try:
                row[way] = time_calls(day, rows.tree_calls(day, way))
            except InputError:
                row[way] = ""
        found.append(row)
    return found


def multiply_few_rows(day: Day) -> list[dict[str, Any]]:
    """Time matrix products at few rows [us], and compare them with reading the weight once."""
    read_s = _seconds_a_byte(day)
    found = []
    for inner, outer in [(256, 704)] if day.rehearse else PRODUCTS:
        size = inner * outer * day.dtype.itemsize
        weights = torch.randn(_copies(day, size), outer, inner, device=day.device, dtype=day.dtype)
        for count in (1, 2, 4, 8, 16, 32, 64, 96):
            given = torch.randn(count, inner, device=day.device, dtype=day.dtype)
            took = time_calls(day, [partial(linear, given, weight) for weight in weights])
            over = took / (1e6 * size * read_s)
            found.append({"weight": f"{inner} x {outer}", "rows": count, "us": took, "over the bound": over})
    return found


def _seconds_a_byte(day: Day) -> float:
    return 1 / (measure_ceilings(day.device, day.dtype, day.buffer_bytes).read_gb_s * 1e9)
