"""Tree attention in Triton: the keys of one request are split among programs, and the partial
results merged.

A program takes one key head of one request, one tile of rows (rows x the query heads that share the
key head), and one split of the blocks of keys. It reads the length of the context from the device.
The context is seen by every row, or within its window; the fed rows after it by the rows whose bit
is set. Splits of the keys: Dao et al. 2023 (Flash-Decoding); the running maximum: Milakov and
Gimelshein 2018.

``TILES`` is for 16-bit numbers on an H100, whose multiprocessors have 227 KiB of shared memory for
programs and 65,536 registers; ``scripts/lab/kernels.py`` prints how many the compiler uses. At a
head size of 128 a block of 64 keys with its values is 32 KiB, and every stage of the pipeline but
one is such a block on its way from memory. Two programs on each multiprocessor with one block each
on its way are 8 MiB for the device; at 3.3 TB/s and 0.7 us of latency 2.3 MB are enough. Fewer rows
take blocks of half the keys, so that a short context still has a block for many programs. The wider
the tile, the more registers its sums take: of 64 rows two programs of 4 warps fit, and more rows
read the keys once more, from the cache.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specbench.models.fast.masks import LARGEST, TreeMask

LOWEST = tl.constexpr(-1e30)  # finite: the difference of two of them is not NaN
WORD = tl.constexpr(32)  # bits; of the fed rows a block is as many keys as a word has bits
RESIDENT = 2  # programs on a multiprocessor at a time, at least
MOST_SPLITS = 64
MERGED = 4096  # elements that one program merges
INTERPRETED = 2  # multiprocessors of a CPU, in the interpreter


@triton.jit
def absorb(query, keys, values, seen, scale, best, total, mixed):
    """Add a block of keys to a tile's running softmax, in powers of two. seen: (rows, keys)."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(best, tl.max(scores, 1))
    shrink = tl.exp2(best - peak)
    weights = tl.exp2(scores - peak[:, None])
    total = total * shrink + tl.sum(weights, 1)
    mixed = tl.dot(
        weights.to(values.dtype), values, mixed * shrink[:, None], input_precision="ieee"
    )
    return peak, total, mixed


@triton.jit
def sweep_context(
    query, keys, values, past, first, position, window, low, high, scale, best, total, mixed,
    SIZE: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Blocks ``low`` to ``high`` of the context, from slot ``first`` on. position: (rows,), for the
    window.
    """
    part = tl.arange(0, query.shape[1])
    for block in tl.range(low, high):
        slot = first + block * KEYS + tl.arange(0, KEYS)
        seen = (slot < past)[None, :]
        if WINDOWED:
            seen = seen & (position[:, None] - slot[None, :] < window)
        cell, valid = (
            slot[:, None] * SIZE + part[None, :],
            (slot < past)[:, None] & (part < SIZE)[None, :],
        )
        some_keys = tl.load(keys + cell, mask=valid, other=0.0)
        some_values = tl.load(values + cell, mask=valid, other=0.0)
        best, total, mixed = absorb(query, some_keys, some_values, seen, scale, best, total, mixed)
    return best, total, mixed


@triton.jit
def sweep_fed(
    query,
    keys,
    values,
    past,
    bits,
    real,
    columns,
    low,
    high,
    scale,
    best,
    total,
    mixed,
    SIZE: tl.constexpr,
):
    """Blocks ``low`` to ``high`` of the slots from ``past`` on. bits: (rows,) places of each row's
    words.
    """
    part, bit = tl.arange(0, query.shape[1]), tl.arange(0, WORD)
    for block in tl.range(low, high, num_stages=1):
        word = tl.load(bits + block, mask=real, other=0)
        seen = ((word[:, None] >> bit[None, :]) & 1) != 0
        fed = block * WORD + bit
        cell, valid = (
            (past + fed)[:, None] * SIZE + part[None, :],
            (fed < columns)[:, None] & (part < SIZE)[None, :],
        )
        some_keys = tl.load(keys + cell, mask=valid, other=0.0)
        some_values = tl.load(values + cell, mask=valid, other=0.0)
        best, total, mixed = absorb(query, some_keys, some_values, seen, scale, best, total, mixed)
    return best, total, mixed


# one compilation serves all of them
@triton.jit(do_not_specialize=["width", "columns", "words", "window"])
def attend_split(
    queries, keys, values, bits, cached, depths, tiles, partial, peaks,
    scale, width, columns, words, window, key_heads, query_stride, batch_stride, head_stride,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, WINDOWED: tl.constexpr,
    TILED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One split of one tile. EARLY: see ``follow``.

    queries: (B * width, >= heads, SIZE), a row's first heads. keys, values: (B, K, slots, SIZE).
    bits: (B * width, words) int32, which of the ``columns`` slots behind the context each row sees.
    cached: (B,) int64 [tokens] of the context. With TILED, B is the number of tiles, width that of
    all rows, and ``tiles`` (B, 5) has what a tile reads, see ``TreeMask``; cached and columns are
    not read. depths: (B * width,) int64, of a row below its root. partial: (SPLITS, B * width,
    heads, SIZE). peaks: (SPLITS, B * width, heads), logarithms to base two of the weights' sums;
    not written by the only split. scale: of a score, times log2(e). PADDED: SIZE rounded up to a
    power of two. ROWS, KEYS: of a tile and a block.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    place, split = tl.program_id(0), tl.program_id(2)
    batch, head = place // key_heads, place % key_heads
    if TILED:
        entry = tiles + 5 * batch
        first_item, items = tl.load(entry + 3).to(tl.int32), tl.load(entry + 4).to(tl.int32)
        if items == 0:
            return
        start, past, columns = (
            tl.load(entry) * SIZE,
            tl.load(entry + 1).to(tl.int32),
            tl.load(entry + 2).to(tl.int32),
        )
        total, item = width, tl.arange(0, ROWS)
        real, index, row = item < items, first_item + item, (first_item + item) // GROUPS
    else:
        start, past = batch.to(tl.int64) * batch_stride, tl.load(cached + batch).to(tl.int32)
        total, index = (
            (tl.num_programs(0) // key_heads) * width,
            tl.program_id(1) * ROWS + tl.arange(0, ROWS),
        )
        real, row = index < width * GROUPS, batch * width + index // GROUPS
    first = 0
    if WINDOWED:
        # the root's window; deeper rows see no earlier key
        first = tl.maximum(past + 1 - window, 0) // KEYS * KEYS
    # blocks of the context; those of the fed rows begin at slot ``past``
    before = (past - first + KEYS - 1) // KEYS
    blocks = before + (columns + WORD - 1) // WORD
    share = (blocks + SPLITS - 1) // SPLITS
    low, high = split * share, tl.minimum(split * share + share, blocks)

    query_head = head * GROUPS + index % GROUPS
    at = (split * total + row) * (key_heads * GROUPS) + query_head
    if (low >= blocks) & (SPLITS > 1):
        tl.store(peaks + at, tl.full([ROWS], LOWEST, tl.float32), mask=real)
        return
    part = tl.arange(0, PADDED)
    whole = real[:, None] & (part < SIZE)[None, :]
    query = tl.load(
        queries + row[:, None] * query_stride + query_head[:, None] * SIZE + part[None, :],
        mask=whole,
        other=0.0,
    )
    start += head.to(tl.int64) * head_stride
    position = past + tl.load(depths + row, mask=real, other=0).to(tl.int32)
    best, total = tl.full([ROWS], LOWEST, tl.float32), tl.full([ROWS], 0.0, tl.float32)
    mixed = tl.full([ROWS, PADDED], 0.0, tl.float32)
    best, total, mixed = sweep_context(
        query, keys + start, values + start, past, first, position, window, low,
        tl.minimum(high, before), scale, best, total, mixed, SIZE, KEYS, WINDOWED,
    )  # fmt: skip
    best, total, mixed = sweep_fed(
        query, keys + start, values + start, past, bits + row * words, real, columns,
        tl.maximum(low - before, 0), high - before, scale, best, total, mixed, SIZE,
    )  # fmt: skip
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    cell = at[:, None] * SIZE + part[None, :]
    tl.store(partial + cell, mixed.to(partial.dtype.element_ty), mask=whole)
    if SPLITS > 1:
        tl.store(
            peaks + at,
            tl.where(total > 0, best + tl.log2(tl.maximum(total, 1e-37)), LOWEST),
            mask=real,
        )


@triton.jit
def merge_splits(
    partial, peaks, out, count,
    SIZE: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr, ITEMS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Add up the splits of ITEMS pairs of row and head. count: all pairs. out: (count, SIZE)."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    index, part = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS), tl.arange(0, PADDED)
    item = (tl.arange(0, SPLITS) * count)[None, :] + index[:, None]
    real = (index < count)[:, None]
    peak = tl.load(peaks + item, mask=real, other=0.0)
    weight = tl.exp2(peak - tl.max(peak, 1)[:, None])
    used = (real & (peak > LOWEST))[:, :, None] & (part < SIZE)[None, None, :]
    mixed = tl.load(
        partial + item[:, :, None] * SIZE + part[None, None, :], mask=used, other=0.0
    ).to(tl.float32)
    mixed = tl.sum(mixed * weight[:, :, None], 1) / tl.sum(weight, 1)[:, None]
    place = index[:, None] * SIZE + part[None, :]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=real & (part < SIZE)[None, :])


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of one program, rows x grouped heads and keys per block, and how it is compiled."""

    rows: int
    keys: int
    warps: int
    stages: int


TILES = (Tile(16, 32, 4, 4), Tile(32, 32, 4, 4), Tile(64, 64, 4, 2))
# float32: its products take no tensor cores, and their numbers registers
SINGLE = Tile(16, 32, 4, 2)


def choose_tile(rows: int, single: bool) -> Tile:
    """Choose the smallest tile for ``rows`` (of all heads that share a key head), or the widest.
    single: float32.
    """
    if single:
        return SINGLE
    return next((tile for tile in TILES if tile.rows >= rows), TILES[-1])


def choose_splits(programs: int, slots: int, keys: int, processors: int) -> int:
    """Choose how many programs share the keys of one tile: a power of two, and all of them run
    concurrently.

    programs: of one split. slots: [keys] at most, ``keys`` of them in a block. processors:
    multiprocessors.
    """
    room = max(1, min(RESIDENT * processors // programs, -(-slots // keys), MOST_SPLITS))
    return 1 << (room.bit_length() - 1)


@functools.cache
def count_processors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU; ``INTERPRETED`` of a CPU."""
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else INTERPRETED
    )


@functools.cache
def follow(device: torch.device) -> dict[str, Any]:
    """Return the options of a launch that says when the next one may begin.

    On Hopper and later a kernel begins while the one before it ends, and waits for that one's
    results itself (programmatic dependent launch). As every program waits, what came earlier has
    ended too.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask) -> Tensor:
    """See ``TreeMask``. Keys and values have the memory layout of a ``StaticKV``. Raises ValueError
    otherwise.
    """
    rows, tiles = (
        mask.items or len(query) // len(keys) * (query.shape[1] // keys.shape[1]),
        mask.tiles,
    )
    tile = choose_tile(rows, query.dtype == torch.float32)
    programs = keys.shape[1] * (len(keys) * cdiv(rows, tile.rows) if tiles is None else len(tiles))
    splits = choose_splits(
        programs, mask.room or keys.shape[2], tile.keys, count_processors(query.device)
    )
    with torch.cuda.device_of(query):  # Triton launches on the current device; nothing on a CPU
        return launch(query, keys, values, mask, tile, splits)


def launch(
    query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask, tile: Tile, splits: int
) -> Tensor:
    """Run ``attend`` with this tile and number of splits."""
    (total, heads, size), (batches, key_heads) = query.shape, keys.shape[:2]
    if (
        size > LARGEST
        or keys.stride() != values.stride()
        or keys.stride(2) != size
        or query.stride(1) != size
    ):
        raise ValueError(
            f"head size {size}, strides {query.stride()}, {keys.stride()}, {values.stride()}:"
            f" expected at most {LARGEST}, heads without gaps, and values that lie as the keys do"
        )
    width, groups, padded = total // batches, heads // key_heads, max(16, next_power_of_2(size))
    grid, tiled = (
        (batches * key_heads, cdiv(width * groups, tile.rows), splits),
        mask.tiles is not None,
    )
    if mask.tiles is not None:
        grid = len(mask.tiles) * key_heads, 1, splits
    out = query.new_empty(total, heads, size)
    stored = query.dtype if tile is TILES[-1] else torch.float32  # of many rows the bytes matter
    partial = query.new_empty(splits, total, heads, size, dtype=stored) if splits > 1 else out
    peaks = query.new_empty(splits, total, heads, dtype=torch.float32)
    attend_split[grid](
        query, keys, values, mask.bits, mask.cached, mask.depths,
        mask.tiles if tiled else mask.cached, partial, peaks, size**-0.5 * math.log2(math.e), width,
        mask.columns or width, mask.bits.shape[1], mask.window or 0, key_heads, query.stride(0),
        keys.stride(0), keys.stride(1), GROUPS=groups, SIZE=size, PADDED=padded, ROWS=tile.rows,
        KEYS=tile.keys, SPLITS=splits, WINDOWED=mask.window is not None, TILED=tiled,
        num_warps=tile.warps, num_stages=tile.stages, **follow(query.device),
    )  # fmt: skip
    if splits > 1:
        items = max(1, MERGED // (splits * padded))
        merge_splits[(cdiv(total * heads, items),)](
            partial, peaks, out, total * heads, SIZE=size, PADDED=padded, SPLITS=splits,
            ITEMS=items, **follow(query.device),
        )  # fmt: skip
    return out
