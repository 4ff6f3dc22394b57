"""Attention and matrix products as a step of a 7B shape has them, each over the time of reading its memory once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from scripts.gpu_day.day import Day
from specbench.advise.latency import measure_ceilings, wait
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
SPREAD = 256 << 20  # [bytes] calls in turn read so much: several times a cache, as the layers of a step do
FLEX_SHAPES = [(2048, 8), (2048, 64)]  # (keys, rows): each is compiled, in many seconds
PRODUCTS = [(4096, 12288), (4096, 4096), (4096, 22016), (11008, 4096), (4096, 32000)]
Call = Callable[[], Any]


def time_calls(day: Day, calls: Sequence[Call]) -> float:
    """[us] of one of these calls, which read different memory: the median of rounds over all of them.

    On a GPU they are recorded as one graph, so that the host's time to launch them is no part of it.
    """
    work = _record(day, calls) if day.device.type == "cuda" else lambda: [call() for call in calls]
    times = []
    for _ in range(2 if day.rehearse else ROUNDS):
        wait(day.device)
        start = time.perf_counter()
        work()
        wait(day.device)
        times.append(time.perf_counter() - start)
    return 1e6 * sorted(times[1:])[len(times[1:]) // 2] / len(calls)


def _record(day: Day, calls: Sequence[Call]) -> Call:
    for call in calls[:2]:
        call()
    wait(day.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


class Rows:
    """Queries of some rows over keys and values, several times over on different memory.

    query: (1, 32, rows, D). keys, values: (1, heads, keys, D). mask: (1, 1, rows, keys) additive, None = all.
    """

    def __init__(self, day: Day, rows: int, keys: int, heads: int, masked: bool) -> None:
        self.count, self.keys, self.heads = rows, keys, heads
        options: Any = {"device": day.device, "dtype": day.dtype}
        self.nbytes = 2 * heads * keys * HEAD * day.dtype.itemsize
        self.copies = 2 if day.rehearse else max(2, -(-SPREAD // self.nbytes))
        self.query = torch.randn(1, HEADS, rows, HEAD, **options)
        self.memory = torch.randn(self.copies, 2, 1, heads, keys, HEAD, **options)
        self.mask = torch.zeros(1, 1, rows, keys, **options) if masked else None
        if self.mask is not None:
            self.mask[..., -rows:] = torch.full((rows, rows), float("-inf")).triu(1).to(self.mask)

    def calls(self) -> list[Call]:
        """By torch, with the kernel that is allowed."""
        grouped = self.heads != HEADS

        def make(keys: Tensor, values: Tensor) -> Call:
            return lambda: scaled_dot_product_attention(self.query, keys, values, self.mask, enable_gqa=grouped)

        return [make(*each) for each in self.memory]

    def tree_calls(self, day: Day, way: str) -> list[Call]:
        """By an attention that reads lengths and ancestors on the device. Raises InputError where it does not run."""
        attend = find_attention(way, day.device, day.dtype, HEAD)
        assert attend is not None
        bits = torch.from_numpy(pack_bits(np.tri(self.count, dtype=bool))).to(day.device)
        depths = torch.arange(self.count, device=day.device)
        mask = TreeMask(attend, torch.tensor([self.keys - self.count], device=day.device), depths, bits, None)
        query = self.query[0].transpose(0, 1).contiguous()

        def make(keys: Tensor, values: Tensor) -> Call:
            return lambda: attend(query, keys, values, mask)

        return [make(*each) for each in self.memory]


def plan_attention(day: Day) -> list[dict[str, Any]]:
    """Torch's kernels: the first call of a shape, which may plan, against later ones; '' = does not take it.

    Prompts of lengths next to each other show what a plan of an exact shape costs.
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
            wait(day.device)
            start = time.perf_counter()
            calls[0]()
            wait(day.device)
            first = 1e3 * (time.perf_counter() - start)
            return {"first, ms": first, "later, us": time_calls(day, calls)}
    except RuntimeError as error:  # torch's word for a kernel that does not take such a call
        return {"first, ms": "", "later, us": "", "why not": str(error).splitlines()[0][:80]}


def compare_kernels(day: Day) -> list[dict[str, Any]]:
    """Time each kernel's attention of a draft's rows [us], and compare it with reading keys and values once."""
    read_s = _seconds_a_byte(day)
    found = []
    for count, keys, heads in _kernel_shapes(day):
        rows = Rows(day, count, keys, heads, count > 1)
        row: dict[str, Any] = {"rows": count, "keys": keys, "key heads": heads, "bound": 1e6 * rows.nbytes * read_s}
        row |= {backend: _time_backend(day, backend, rows)["later, us"] for backend in BACKENDS}
        for way in (TRITON, *([FLEX] if day.rehearse or (keys, count) in FLEX_SHAPES else [])):
            try:
                row[way] = time_calls(day, rows.tree_calls(day, way))
            except InputError:
                row[way] = ""
        found.append(row)
    return found


def _kernel_shapes(day: Day) -> Iterator[tuple[int, int, int]]:
    """(rows fed, keys read, heads of keys)."""
    counts, lengths, heads = ((1, 8), (32,), (32,)) if day.rehearse else ((1, 8, 64, 96), (512, 2048, 8192), (32, 8))
    return ((count, keys, some) for count in counts for keys in lengths for some in heads)


def multiply_few_rows(day: Day) -> list[dict[str, Any]]:
    """Matrix products at few rows [us], over reading the weight once."""
    read_s = _seconds_a_byte(day)
    found = []
    for inner, outer in [(256, 704)] if day.rehearse else PRODUCTS:
        size = inner * outer * day.dtype.itemsize
        copies = 2 if day.rehearse else max(2, -(-SPREAD // size))
        weights = torch.randn(copies, outer, inner, device=day.device, dtype=day.dtype)
        for count in (1, 2, 4, 8, 16, 32, 64, 96):
            took = time_calls(day, _products(day, weights, count))
            over = took / (1e6 * size * read_s)
            found.append({"weight": f"{inner} x {outer}", "rows": count, "us": took, "over the bound": over})
    return found


def _products(day: Day, weights: Tensor, count: int) -> list[Call]:
    given = torch.randn(count, weights.shape[2], device=day.device, dtype=day.dtype)

    def make(weight: Tensor) -> Call:
        return lambda: linear(given, weight)

    return [make(weight) for weight in weights]


def _seconds_a_byte(day: Day) -> float:
    return 1 / (measure_ceilings(day.device, day.dtype, day.buffer_bytes).read_gb_s * 1e9)
