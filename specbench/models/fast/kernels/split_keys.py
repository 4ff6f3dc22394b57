"""Tree attention in Triton: the keys of one request are split among programs, and the partial results merged.

A program takes one key head of one request, one tile of rows (rows x the query heads that share the key head), and one
split of the blocks of keys. It reads the length of the context from the device. The context is seen by every row, or
within its window; the fed rows behind it by the rows whose bit is set. Splits of the keys: Dao et al. 2023
(Flash-Decoding); the running maximum: Milakov and Gimelshein 2018. Only ``triton`` is imported here, so that the
kernels compile without torch.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)  # finite: the difference of two of them is not NaN
WORD = tl.constexpr(32)  # bits; of the fed rows a block is as many keys as a word has bits


@triton.jit
def absorb(query, keys, values, seen, scale, best, total, mixed):
    """Add a block of keys to a tile's running softmax, in powers of two. seen: (rows, keys)."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(best, tl.max(scores, 1))
    shrink = tl.exp2(best - peak)
    weights = tl.exp2(scores - peak[:, None])
    total = total * shrink + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * shrink[:, None], input_precision="ieee")
    return peak, total, mixed


@triton.jit
def sweep_context(
    query, keys, values, past, first, position, window, low, high, scale, best, total, mixed,
    SIZE: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Blocks ``low`` to ``high`` of the context, from slot ``first`` on. position: (rows,), for the window."""
    part = tl.arange(0, query.shape[1])
    for block in tl.range(low, high):
        slot = first + block * KEYS + tl.arange(0, KEYS)
        seen = (slot < past)[None, :]
        if WINDOWED:
            seen = seen & (position[:, None] - slot[None, :] < window)
        cell, held = slot[:, None] * SIZE + part[None, :], (slot < past)[:, None] & (part < SIZE)[None, :]
        some_keys = tl.load(keys + cell, mask=held, other=0.0)
        some_values = tl.load(values + cell, mask=held, other=0.0)
        best, total, mixed = absorb(query, some_keys, some_values, seen, scale, best, total, mixed)
    return best, total, mixed


@triton.jit
def sweep_fed(query, keys, values, past, bits, real, columns, low, high, scale, best, total, mixed, SIZE: tl.constexpr):
    """Blocks ``low`` to ``high`` of the slots from ``past`` on. bits: (rows,) places of each row's words."""
    part, bit = tl.arange(0, query.shape[1]), tl.arange(0, WORD)
    for block in tl.range(low, high, num_stages=1):
        word = tl.load(bits + block, mask=real, other=0)
        seen = ((word[:, None] >> bit[None, :]) & 1) != 0
        fed = block * WORD + bit
        cell, held = (past + fed)[:, None] * SIZE + part[None, :], (fed < columns)[:, None] & (part < SIZE)[None, :]
        some_keys = tl.load(keys + cell, mask=held, other=0.0)
        some_values = tl.load(values + cell, mask=held, other=0.0)
        best, total, mixed = absorb(query, some_keys, some_values, seen, scale, best, total, mixed)
    return best, total, mixed


@triton.jit(do_not_specialize=["width", "columns", "words", "window"])  # one compilation serves all of them
def attend_split(
    queries, keys, values, bits, held, depths, partial, peaks,
    scale, width, columns, words, window, key_heads, query_stride, batch_stride, head_stride,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """One split of one tile.

    queries: (B * width, >= heads, SIZE), a row's first heads. keys, values: (B, K, slots, SIZE).
    bits: (B * width, words) int32, which of the ``columns`` slots behind the context each row sees.
    held: (B,) int64 [tokens] of the context.
    depths: (B * width,) int64, of a row below its root. partial: (SPLITS, B * width, heads, SIZE). peaks: (SPLITS,
    B * width, heads), logarithms to base two of the weights' sums; not written by the only split.
    scale: of a score, times log2(e). PADDED: SIZE rounded up to a power of two. ROWS, KEYS: of a tile and a block.
    """
    place, split = tl.program_id(0), tl.program_id(2)
    batch, head = place // key_heads, place % key_heads
    past = tl.load(held + batch).to(tl.int32)
    first = 0
    if WINDOWED:
        first = tl.maximum(past + 1 - window, 0) // KEYS * KEYS  # the root's window; deeper rows see no earlier key
    before = (past - first + KEYS - 1) // KEYS  # blocks of the context; those of the fed rows begin at slot ``past``
    blocks = before + (columns + WORD - 1) // WORD
    share = (blocks + SPLITS - 1) // SPLITS
    low, high = split * share, tl.minimum(split * share + share, blocks)

    index = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = index < width * GROUPS
    row, query_head = batch * width + index // GROUPS, head * GROUPS + index % GROUPS
    at = (split * (tl.num_programs(0) // key_heads) * width + row) * (key_heads * GROUPS) + query_head
    if low >= blocks:
        tl.store(peaks + at, tl.full([ROWS], LOWEST, tl.float32), mask=real)
        return
    part = tl.arange(0, PADDED)
    whole = real[:, None] & (part < SIZE)[None, :]
    query = tl.load(
        queries + row[:, None] * query_stride + query_head[:, None] * SIZE + part[None, :], mask=whole, other=0.0
    )
    start = batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride
    position = past + tl.load(depths + row, mask=real, other=0).to(tl.int32)
    best, total = tl.full([ROWS], LOWEST, tl.float32), tl.full([ROWS], 0.0, tl.float32)
    mixed = tl.full([ROWS, PADDED], 0.0, tl.float32)
    best, total, mixed = sweep_context(
        query, keys + start, values + start, past, first, position, window, low, tl.minimum(high, before),
        scale, best, total, mixed, SIZE, KEYS, WINDOWED,
    )  # fmt: skip
    best, total, mixed = sweep_fed(
        query, keys + start, values + start, past, bits + row * words, real, columns,
        tl.maximum(low - before, 0), high - before, scale, best, total, mixed, SIZE,
    )  # fmt: skip
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    cell = at[:, None] * SIZE + part[None, :]
    tl.store(partial + cell, mixed.to(partial.dtype.element_ty), mask=whole)
    if SPLITS > 1:
        tl.store(peaks + at, tl.where(total > 0, best + tl.log2(tl.maximum(total, 1e-37)), LOWEST), mask=real)


@triton.jit
def merge_splits(
    partial, peaks, out, count,
    SIZE: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """ITEMS rows of a head. count: of rows times heads. partial, peaks: see above. out: (count, SIZE)."""
    index, part = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS), tl.arange(0, PADDED)
    item = (tl.arange(0, SPLITS) * count)[None, :] + index[:, None]
    real = (index < count)[:, None]
    peak = tl.load(peaks + item, mask=real, other=0.0)
    weight = tl.exp2(peak - tl.max(peak, 1)[:, None])
    used = (real & (peak > LOWEST))[:, :, None] & (part < SIZE)[None, None, :]
    mixed = tl.load(partial + item[:, :, None] * SIZE + part[None, None, :], mask=used, other=0.0)
    mixed = tl.sum(mixed * weight[:, :, None], 1) / tl.sum(weight, 1)[:, None]
    place = index[:, None] * SIZE + part[None, :]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=real & (part < SIZE)[None, :])
