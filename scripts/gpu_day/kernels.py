"""Time attention and matrix products of a 7B shape's step, and compare each with reading its memory once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from scripts.gpu_day.day import Day, Row
from specbench.decode.latency import measure_ceilings
from specbench.measure.clock import Clock
from specbench.models.fast.attention import FLEX, SDPA, TreeMask, find_attention, pack_bits

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


def _time_once(day: Day, call: Call, unit_s: float = 1) -> float:
    clock = Clock(day.device)
    clock.start()
    call()
    return clock.elapsed() / unit_s


class Rows:
    """Queries of some rows over keys and values, several times over on different memory.

    query: (1, 32, rows, D). memory: (copies, 2, 1, heads, keys, D) keys and values. mask: (rows, keys) additive.
    """

    def __init__(self, day: Day, rows: int, keys: int, heads: int) -> None:
        options: Any = {"device": day.device, "dtype": day.dtype}
        self.count, self.keys, self.heads = rows, keys, heads
        self.nbytes = 2 * heads * keys * HEAD * day.dtype.itemsize
        self.query = torch.randn(1, HEADS, rows, HEAD, **options)
        self.memory = torch.randn(_copies(day, self.nbytes), 2, 1, heads, keys, HEAD, **options)
        self.mask = torch.zeros(rows, keys, **options)
        self.mask[:, -rows:] = torch.full((rows, rows), float("-inf")).triu(1).to(self.mask)

    def calls(self, masked: bool) -> list[Call]:
        """Return calls of torch's attention, with the kernel that is allowed."""
        mask = self.mask if masked else None
        attend = partial(scaled_dot_product_attention, attn_mask=mask, enable_gqa=self.heads != HEADS)
        return [partial(attend, self.query, *each) for each in self.memory]

    def engine_calls(self) -> list[Call]:
        """Return calls as the engine makes them: query heads that share keys are additional rows, with a mask."""
        groups = HEADS // self.heads
        packed = self.query.reshape(1, self.heads, groups * self.count, HEAD)
        attend = partial(scaled_dot_product_attention, attn_mask=self.mask.repeat(groups, 1))
        return [partial(attend, packed, *each) for each in self.memory]

    def tree_calls(self, day: Day, way: str) -> list[Call]:
        """Return calls of an attention that reads lengths and ancestors on the device. Raises InputError."""
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


def plan_attention(day: Day) -> Iterator[Row]:
    """Time torch's kernels: the first call of a shape, which may plan, and later ones.

    Prompts of neighbouring lengths show the cost of a plan for an exact shape.
    """
    shapes = [(rows, keys, masked) for rows in (1, 8, 64, 96) for keys in (512, 2048) for masked in (False, True)]
    shapes += [(count, count, True) for count in (401, 402, 403)]
    for backend, (count, keys, masked) in product(BACKENDS, shapes[:3] if day.rehearse else shapes):
        calls = Rows(day, count, keys, HEADS).calls(masked)
        with sdpa_kernel(BACKENDS[backend]):
            first = day.attempt(partial(_time_once, day, calls[0], unit_s=1e-3))
            later = day.attempt(partial(time_calls, day, calls))
        shape = {"kernel": backend, "rows": count, "keys": keys, "mask": "yes" if masked else "no"}
        yield shape | {"first, ms": first, "later, us": later}


def compare_kernels(day: Day, way: str) -> Iterator[Row]:
    """Time an attention of a draft's rows [us], and compare it with reading keys and values once.

    way: of ``engine.attention``; SDPA: each of torch's kernels, and the call of the engine.
    """
    read_s = _seconds_a_byte(day)
    counts, lengths, heads = ((8,), (32,), (32, 8)) if day.rehearse else ((1, 8, 64, 96), (512, 2048, 8192), (32, 8))
    for count, keys, some in product(counts, lengths, heads):
        if way == FLEX and not day.rehearse and (keys, count) not in FLEX_SHAPES:
            continue
        rows = Rows(day, count, keys, some)
        row: dict[str, Any] = {"rows": count, "keys": keys, "key heads": some, "bound": 1e6 * rows.nbytes * read_s}
        if way == SDPA:
            for backend, allowed in BACKENDS.items():
                with sdpa_kernel(allowed):
                    row[backend] = day.attempt(partial(time_calls, day, rows.calls(count > 1)))
            row["the engine's call"] = day.attempt(partial(time_calls, day, rows.engine_calls()))
        else:
            row[way] = day.attempt(partial(time_calls, day, rows.tree_calls(day, way)))
        yield row


def multiply_few_rows(day: Day) -> Iterator[Row]:
    """Time matrix products at few rows [us], and compare them with reading the weight once."""
    read_s = _seconds_a_byte(day)
    for inner, outer in [(256, 704)] if day.rehearse else PRODUCTS:
        size = inner * outer * day.dtype.itemsize
        weights = torch.randn(_copies(day, size), outer, inner, device=day.device, dtype=day.dtype)
        for count in (1, 2, 4, 8, 16, 32, 64, 96):
            given = torch.randn(count, inner, device=day.device, dtype=day.dtype)
            took = day.attempt(partial(time_calls, day, [partial(linear, given, each) for each in weights]))
            over = took / (1e6 * size * read_s) if isinstance(took, float) else ""
            yield {"weight": f"{inner} x {outer}", "rows": count, "us": took, "over the bound": over}


def _seconds_a_byte(day: Day) -> float:
    return 1 / (measure_ceilings(day.device, day.dtype, day.buffer_bytes).read_gb_s * 1e9)
