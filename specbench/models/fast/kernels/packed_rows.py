"""Kernels for the packed rows of several requests: what each row sees, which are accepted, and the
move of their slots.

A row knows the row that it hangs from, and walks up to its root, a step a level. So the host
uploads parents only, a draft whose parents are on the device stays there, and no operation has a
shape that depends on who takes part. A parent that does not come before its child counts as the
root, so that a walk always ends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2

ROWS = 64  # that one program lays out
HEADS = 8  # that one program moves
SHARE = 64  # rows of a warp that verifies
WORD = tl.constexpr(32)  # bits


@triton.jit
def climb(parents, row, first, going):
    """Return each row's parent, or ``row`` itself where it is not ``going``."""
    above = tl.load(parents + row, mask=going, other=0).to(tl.int32)
    return tl.where(going, tl.where((above < row) & (above > first), above, first), row)


@triton.jit
def lay_out_rows(
    parents,
    firsts,
    past,
    depths,
    positions,
    bits,
    count,
    window,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Fill depths and positions (count,), and bits (count, WORDS) int32: a row's ancestors and
    itself in the window.

    parents, firsts: (count,) the row of each row's parent and of its request's root. past: (count,)
    position of the root. window: [positions]. Bits are counted from the request's root.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real, word = row < count, tl.arange(0, WORDS)[None, :]
    first = tl.load(firsts + row, mask=real, other=0).to(tl.int32)
    here, depth, going = row, tl.full([ROWS], 0, tl.int32), real & (row > first)
    seen = tl.full([ROWS, WORDS], 0, tl.int32)
    near = real
    while tl.max(near.to(tl.int32), 0) > 0:
        place = here - first
        one = tl.full([ROWS], 1, tl.int32) << (place % WORD)
        seen |= tl.where(
            (near & (depth < window))[:, None] & (word == (place // WORD)[:, None]), one[:, None], 0
        )
        near = going
        here = climb(parents, here, first, going)
        depth += going.to(tl.int32)
        going = going & (here > first)
    tl.store(depths + row, depth, mask=real)
    tl.store(positions + row, tl.load(past + row, mask=real, other=0) + depth, mask=real)
    tl.store(bits + row[:, None] * WORDS + word, seen, mask=real[:, None])


@triton.jit
def accept_rows(
    peaks, picks, ids, parents, free, spans, found, requests, count, ROWS: tl.constexpr
):
    """Verify the draft of one request by its rows' picks, as ``find_accepted_path`` does.

    peaks, picks: (count,) largest logit of each row, and its token. ids, parents, free: (count,),
    free is 0 where a row is never accepted. spans: (requests, 2) first row and rows of each. ROWS:
    a power of two, no fewer than a request's. found: (2 * requests + 2 * count,) int64. Of each
    request the number of accepted nodes, below 0 where a logit is not finite, and the token after
    them; then the accepted nodes, and their tokens, each from the request's first row on.
    """
    number = tl.program_id(0)
    first, rows = (
        tl.load(spans + 2 * number).to(tl.int32),
        tl.load(spans + 2 * number + 1).to(tl.int32),
    )
    if rows == 0:
        return
    place = tl.arange(0, ROWS)
    here, real = first + place, place < rows
    peak = tl.load(peaks + here, mask=real, other=0.0).to(tl.float32)
    finite = tl.min((tl.abs(peak) < float("inf")).to(tl.int32), 0)
    right, going, depth = real, real & (place > 0), tl.full([ROWS], 0, tl.int32)
    while tl.max(going.to(tl.int32), 0) > 0:
        above = climb(parents, here, first, going)
        pick, token = (
            tl.load(picks + above, mask=going, other=0),
            tl.load(ids + here, mask=going, other=0),
        )
        wrong = going & ((pick != token) | (tl.load(free + here, mask=going, other=0) == 0))
        right, depth = right & (wrong == 0), depth + going.to(tl.int32)
        here, going = above, going & (wrong == 0) & (above > first)
    # of equally deep rows the first
    best = tl.max(tl.where(right, depth * ROWS + (ROWS - 1 - place), 0), 0)
    steps, last = best // ROWS, first + ROWS - 1 - best % ROWS
    tl.store(found + 2 * number, tl.where(finite > 0, steps, -1))
    tl.store(found + 2 * number + 1, tl.load(picks + last))
    cell = found + 2 * requests + first
    while steps > 0:
        steps -= 1
        tl.store(cell + steps, last - first - 1)
        tl.store(cell + count + steps, tl.load(ids + last))
        above = tl.load(parents + last).to(tl.int32)
        last = tl.where((above < last) & (above > first), above, first)


@triton.jit
def move_rows(
    slots,
    at,
    spans,
    found,
    requests,
    heads,
    slot_stride,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Move the accepted rows of one request together, in HEADS heads.

    slots: (heads, slots, SIZE), a head's ``slot_stride`` apart. at: (n,) each row's slot. spans,
    found: see ``accept_rows``. A path's rows ascend, so none is written over before it is read.
    """
    number, head = tl.program_id(0), (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    first, rows = tl.load(spans + 2 * number), tl.load(spans + 2 * number + 1)
    if rows == 0:
        return
    part = tl.arange(0, PADDED)[None, :]
    real = (head < heads) & (part < SIZE)
    cell = slots + head.to(tl.int64) * slot_stride + part
    steps, root = tl.load(found + 2 * number), tl.load(at + first)
    for step in range(0, steps):
        source = tl.load(at + first + 1 + tl.load(found + 2 * requests + first + step))
        target = root + 1 + step
        if source != target:
            tl.store(
                cell + target * SIZE, tl.load(cell + source * SIZE, mask=real, other=0.0), mask=real
            )


def lay_out(
    parents: Tensor,
    firsts: Tensor,
    past: Tensor,
    depths: Tensor,
    positions: Tensor,
    bits: Tensor,
    window: int,
) -> None:
    """Run ``lay_out_rows``."""
    count = len(parents)
    with torch.cuda.device_of(parents):
        lay_out_rows[(cdiv(count, ROWS),)](
            parents,
            firsts,
            past,
            depths,
            positions,
            bits,
            count,
            window,
            ROWS=ROWS,
            WORDS=bits.shape[1],
        )


def accept(
    logits: Tensor,
    ids: Tensor,
    parents: Tensor,
    free: Tensor,
    at: Tensor,
    spans: Tensor,
    slots: Tensor,
    most: int,
) -> Tensor:
    """Verify the drafts of all requests by each row's argmax, and move their accepted paths;
    returns ``found``.

    logits: (n, V). slots: (layers, 2K, slots, size) of a cache. most: rows of a request. The rest:
    see the kernels.
    """
    peaks, picks = logits.max(-1)
    found, (layers, heads, capacity, size) = ids.new_empty(2 * (len(spans) + len(ids))), slots.shape
    rows = next_power_of_2(most)
    with torch.cuda.device_of(logits):
        accept_rows[(len(spans),)](
            peaks, picks, ids, parents, free, spans, found, len(spans), len(ids),
            ROWS=rows, num_warps=max(1, rows // SHARE),
        )  # fmt: skip
        move_rows[(len(spans), cdiv(layers * heads, HEADS))](
            slots, at, spans, found, len(spans), layers * heads, capacity * size,
            SIZE=size, PADDED=next_power_of_2(size), HEADS=HEADS, num_stages=1,
        )  # fmt: skip
    return found
