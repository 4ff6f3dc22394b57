"""The compact forward as one compiled call, for drafts on a CPU, of one request or of several.

Each row is computed by the same operations in the same order whichever other rows are fed: its
products by ``dot_tile``, its attention over the tokens that it sees in the order of the text. So
verifying a draft gives the bits that decoding token by token gives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import config, prange, set_num_threads
from numba.extending import overload

from specbench.models.compiled_code import njit
from specbench.models.fast.host.vectors import (
    BFLOAT16,
    ITEM,
    LANES,
    PAIRED,
    add_sums,
    dot_slice,
    dot_tile,
    exponential,
    mix_tile,
    narrow,
    widen,
)

# one row's sums may be reordered: the same way for every row
ORDER = {"reassoc", "nsz", "contract", "arcp"}
BLOCK = 128  # numbers among which the largest is looked for one by one
# of bits
LEAST, REST, INFINITE, SIGN = (
    np.int32(-(2**31)),
    np.int32(2**31 - 1),
    np.int32(0x7F800000),
    np.int32(31),
)
ZERO, ONE = np.float32(0), np.float32(1)


@njit(error_model="numpy", fastmath=ORDER | {"nnan"})
def soften(scores):
    """Scores to their exponentials over the largest, in place; returns the largest and the sum."""
    peak = scores[0]
    for place in range(len(scores)):
        peak = max(peak, scores[place])
    total = ZERO
    for place in range(len(scores)):
        scores[place] = exponential(scores[place] - peak)
        total += scores[place]
    return peak, total


@njit(error_model="numpy")
def _find_largest(numbers):
    """The bits of the largest number, ordered as numbers are, and of the largest size: vectors have
    no such maximum.
    """
    largest, size = LEAST, np.int32(0)
    for place in range(len(numbers)):
        bits = np.float32(widen(numbers[place])).view(np.int32)
        largest, size = max(largest, _order(bits)), max(size, np.int32(bits & REST))
    return largest, size


@njit(error_model="numpy")
def _order(bits):
    """The bits of a number as an integer whose order is that of the numbers, and back."""
    return np.int32(bits ^ ((bits >> SIGN) & REST))


@njit(error_model="numpy")
def find_peak(numbers):
    """The largest of (V,) stored numbers and the first place that has it; NaN where one of them is
    not a number.
    """
    peak, place, size = LEAST, 0, np.int32(0)
    for first in range(0, len(numbers), BLOCK):
        largest, widest = _find_largest(numbers[first : first + BLOCK])
        size = max(size, widest)
        largest = np.int32(largest + (largest == -1))  # -0.0 equals 0.0
        if largest > peak:
            peak, place = largest, first
    if size > INFINITE:
        return np.float32(np.nan), place
    found = np.int32(_order(peak)).view(np.float32)
    while widen(numbers[place]) != found:
        place += 1
    return found, place


@njit(error_model="numpy", fastmath=ORDER)
def normalise(row, weight, epsilon, like, out):
    """Out = row over its root mean square, times weight, (size,) each; rounded as ``like`` is
    stored.
    """
    total = ZERO
    for place in range(len(row)):
        total += row[place] * row[place]
    scale = np.float32(1 / np.sqrt(total / len(row) + epsilon))
    for place in range(len(row)):
        out[place] = widen(narrow(weight[place] * widen(narrow(row[place] * scale, like)), like))


@njit(error_model="numpy")
def add_norm(rows, added, weight, epsilon, like, normed):
    """Rows += added, (n, D); normed: (n, D) the sums, normalised."""
    for row in range(len(rows)):
        summed, new = rows[row], added[row]
        for place in range(len(summed)):
            summed[place] = widen(narrow(summed[place] + widen(narrow(new[place], like)), like))
        normalise(summed, weight, epsilon, like, normed[row])


@njit(error_model="numpy")
def finish(heads, bias, weights, epsilon, like):
    """Heads (n, H + 2K, size) += bias, and its first rows normalised by their weights (H + K,
    size); none: no rows.
    """
    for row in range(len(heads)):
        for head in range(heads.shape[1]):
            each = heads[row, head]
            for place in range(len(each)):
                number = each[place] + bias[head, place] if len(bias) else each[place]
                each[place] = widen(narrow(number, like))
            if head < len(weights):
                normalise(each, weights[head], epsilon, like, each)


@njit(error_model="numpy")
def rotate(heads, queries, cos, sin, positions, slots, start):
    """Turn q and k of heads (n, H + 2K, size) to their positions, scale q, and write k and v to
    ``slots``.

    queries: H. cos, sin: (P, size), the sine with the sign of its half. slots: (2K, S, size); row i
    goes to start + i.
    """
    size, keys = heads.shape[2], len(slots) // 2
    half, scale = size // 2, np.float32(1 / math.sqrt(size))
    for row in range(len(heads)):
        position = positions[row]
        low_cos, high_cos = cos[position, :half], cos[position, half:]
        low_sin, high_sin = sin[position, :half], sin[position, half:]
        for head in range(queries + keys):
            low, high, factor = (
                heads[row, head, :half],
                heads[row, head, half:],
                scale if head < queries else ONE,
            )
            for place in range(half):
                left, right = low[place], high[place]
                low[place] = (
                    widen(narrow(left * low_cos[place] + right * low_sin[place], slots)) * factor
                )
                high[place] = (
                    widen(narrow(right * high_cos[place] + left * high_sin[place], slots)) * factor
                )
        for head in range(2 * keys):
            each, slot = heads[row, queries + head], slots[head, start + row]
            for place in range(size):
                slot[place] = narrow(each[place], slots)


@njit(error_model="numpy")
def gate(pairs, like, out):
    """(n, 2I) -> (n, I): SiLU of the first half, times the second."""
    size = out.shape[1]
    for row in range(len(out)):
        first, second, result = pairs[row, :size], pairs[row, size:], out[row]
        for place in range(size):
            number, other = widen(narrow(first[place], like)), widen(narrow(second[place], like))
            result[place] = widen(
                narrow(widen(narrow(number / (ONE + exponential(-number)), like)) * other, like)
            )


@njit(error_model="numpy")
def copy(rows, out):
    """(n, D) -> (n, D)."""
    for row in range(len(rows)):
        for place in range(rows.shape[1]):
            out[row, place] = rows[row, place]


def enter(rows, like):
    """(n, D) rows in single precision as products with weights stored as ``like`` read them."""


@overload(enter)
def _enter(rows, like):
    if like.dtype != BFLOAT16 or not PAIRED:
        return lambda rows, like: rows

    def store(rows, like):
        out = np.empty(rows.shape, np.int16)
        for row in range(len(rows)):
            for place in range(rows.shape[1]):
                out[row, place] = narrow(rows[row, place], like)
        return out

    return store


SETTINGS: Any = config  # numba's, from the environment
# Each row of weights of a tile is the next one of its own part of the matrix: several streams, each
# of which the processor fetches ahead by itself. Otherwise the rows of a tile are neighbours, and
# are fetched ahead here (measured, on AVX-512).
FAR = LANES == 8
# Rows of weights that are multiplied together by one row of inputs, by up to 4, and by 8: the sums
# fit the registers.
ALONE, HIGH, LOW, MANY = (4, 2, 2, 8) if FAR else (8, 4, 2, 8)
FETCHED = 0 if FAR else 1  # 1: weights are fetched ahead for one row of inputs, too
AHEAD, PART = (
    64 << 10,
    64,
)  # [bytes] neighbouring weights are fetched ahead, or one of so many parts of a smaller matrix
# [numbers] More than 4 longer rows of inputs do not stay in the first cache: slices are multiplied
# by GROUP rows of weights, whose sums with MANY rows of inputs wait in memory. Far rows are never
# cut.
WHOLE, SLICE, GROUP = 1024, 512, 16
LINE = 16  # numbers in a line of the cache; a line of results is written by one thread
# vectors that one or two rows are mixed from: sums that do not wait for others
WIDE, HALF = 32 // LANES, 16 // LANES
# of a request attend to one key head at a time: their scores take memory for every slot of its
# context
ROWS = 64


def wake(threads):
    """Limit numba's threads, one per core, to those that the calling thread's next forward
    needs.
    """
    set_num_threads(min(threads, SETTINGS.NUMBA_NUM_THREADS))


@njit(error_model="numpy")
def multiply_slices(rows, count, size, weights, like, out, width, start, stop):
    """See ``multiply``: more than 4 long rows, in slices, by neighbouring rows of weights; rows are
    added as zeros.
    """
    stored, item, padded = like.itemsize, rows.itemsize, count + MANY
    slices, sums = (
        np.zeros((-(-size // SLICE) * padded, SLICE), rows.dtype),
        np.empty(GROUP * MANY * LANES, np.float32),
    )
    for row in range(count):
        for place in range(size):
            slices[place // SLICE * padded + row, place % SLICE] = rows[row, place]
    for block in range(start, stop, GROUP):
        end = min(block + GROUP, stop)
        for row in range(0, count, MANY):
            for each in range(len(sums)):
                sums[each] = 0
            for place in range(0, size, SLICE):
                span = min(SLICE, size - place)
                ahead = SLICE if place + span < size else GROUP * size - place
                vectors = slices.ctypes.data + (place // SLICE * padded + row) * SLICE * item
                weight, kept = weights + (block * size + place) * stored, sums.ctypes.data
                high = LOW if count - row > 4 else HIGH
                for _ in range(block, end, high):
                    if high == LOW:
                        dot_slice(
                            LOW,
                            MANY,
                            MANY,
                            weight,
                            size,
                            vectors,
                            SLICE,
                            span,
                            ahead,
                            kept,
                            like,
                            rows,
                        )
                    else:
                        dot_slice(
                            HIGH,
                            4,
                            MANY,
                            weight,
                            size,
                            vectors,
                            SLICE,
                            span,
                            ahead,
                            kept,
                            like,
                            rows,
                        )
                    weight, kept = weight + high * size * stored, kept + high * MANY * LANES * ITEM
            for column in range(min(count - row, MANY)):
                kept, made = (
                    sums.ctypes.data + column * LANES * ITEM,
                    out + ((row + column) * width + block) * ITEM,
                )
                for pair in range(0, end - block, 2):
                    add_sums(kept + pair * MANY * LANES * ITEM, MANY * LANES, made + pair * ITEM)


@njit(error_model="numpy")
def multiply(rows, count, size, weights, like, out, width, start, stop):
    """out[m, n] = weights[n] . rows[m]. rows: (M, K). weights, out: addresses of (N, K) and (M, N).

    count, size, width: M, K, N. start, stop: of n.
    """
    stored, item, given = like.itemsize, rows.itemsize, rows.ctypes.data
    at_once = not FAR and count == MANY and size <= WHOLE
    high = ALONE if count == 1 else LOW if at_once else HIGH
    part = max(stop - start, 0) // high
    step, apart, ahead = (
        (1, part, size * ITEM // stored)
        if FAR
        else (high, 1, min(AHEAD // stored, part * high * size // PART))
    )
    if not FAR and count > 4 and size > WHOLE:
        multiply_slices(rows, count, size, weights, like, out, width, start, start + part * high)
    else:
        for first in range(start, start + part * step, step):
            weight, row = weights + first * size * stored, 0
            while row < count:
                vectors, made, left = (
                    given + row * size * item,
                    out + (row * width + first) * ITEM,
                    count - row,
                )
                # none of them is left alone
                taken = MANY if at_once else 2 if left == 5 else min(left, 4)
                if not FAR and at_once:
                    dot_tile(
                        LOW, MANY, 1, weight, apart, vectors, size, ahead, made, width, like, rows
                    )
                elif taken == 4:
                    dot_tile(
                        HIGH, 4, 1, weight, apart, vectors, size, ahead, made, width, like, rows
                    )
                elif taken == 3:
                    dot_tile(
                        HIGH, 3, 1, weight, apart, vectors, size, ahead, made, width, like, rows
                    )
                elif taken == 2:
                    dot_tile(
                        HIGH, 2, 1, weight, apart, vectors, size, ahead, made, width, like, rows
                    )
                else:
                    dot_tile(
                        ALONE,
                        1,
                        FETCHED,
                        weight,
                        apart,
                        vectors,
                        size,
                        ahead,
                        made,
                        width,
                        like,
                        rows,
                    )
                row += taken
    for first in range(start + part * high, stop):
        for row in range(count):
            vectors, made = given + row * size * item, out + (row * width + first) * ITEM
            dot_tile(
                1,
                1,
                0,
                weights + first * size * stored,
                1,
                vectors,
                size,
                0,
                made,
                width,
                like,
                rows,
            )


@njit(error_model="numpy", parallel=True)
def multiply_shared(rows, count, size, weights, like, out, width, threads):
    """See ``multiply``; each thread computes its share of the N."""
    share = -(-width // (LINE * threads)) * LINE
    for thread in prange(threads):
        multiply(
            rows,
            count,
            size,
            weights,
            like,
            out,
            width,
            thread * share,
            min((thread + 1) * share, width),
        )


@njit(error_model="numpy")
def project(rows, weights, like, out, width, threads):
    """Out (M, N), an address, = weights (N, K) times rows (M, K), which are rounded as ``like`` is
    stored already.
    """
    entered = enter(rows, like)
    count, size = entered.shape
    if threads is None:
        multiply(entered, count, size, weights, like, out, width, 0, width)
    else:
        multiply_shared(entered, count, size, weights, like, out, width, threads)


@njit(error_model="numpy")
def mix(shares, step, values, like, start, stop, out, count, size):
    """out[m, :] += shares[m, t] values[t, :] for t in [start, stop), in order.

    shares, values, out: addresses, of rows ``step`` apart, and of rows of ``size`` numbers, whole
    vectors. count: M.
    """
    row = 0
    while row < count:
        left, place = count - row, 0
        high = 4 if left >= 4 else 2 if left >= 2 and size % (WIDE * LANES) == 0 else 1
        most = 2 if high == 4 else WIDE
        while place < size:
            given, target = shares + row * step * ITEM, out + (row * size + place) * ITEM
            source, wide = values + place * like.itemsize, size - place >= most * LANES
            if high == 4 and wide:
                mix_tile(4, 2, given, step, source, size, start, stop, target, size, like)
            elif high == 4:
                mix_tile(4, 1, given, step, source, size, start, stop, target, size, like)
            elif high == 2:
                mix_tile(2, WIDE, given, step, source, size, start, stop, target, size, like)
            elif wide:
                mix_tile(1, WIDE, given, step, source, size, start, stop, target, size, like)
            else:
                mix_tile(1, HALF, given, step, source, size, start, stop, target, size, like)
            place += (most if wide else most // 2) * LANES
        row += high


@njit(error_model="numpy")
def list_seen(bias, positions, window, span, order, seen, oldest):
    """List what rows see: cached slots from ``oldest`` (n,) on, then the first ``seen`` (n,) slots
    of ``order``.

    bias: (n, m) 0 where a row sees the j-th slot after the cached ones. window: [positions], below
    0 for all. span: of the n rows, see ``forward``. order: (n, m) slots, counted from the request's
    first.
    """
    _, count, _, begin, cached = span
    for row in range(count):
        oldest[row] = 0 if window < 0 else min(max(positions[row] - window + 1, 0), cached)
        seen[row] = 0
        for other in range(begin + count - cached):
            if bias[row, other] == 0:
                order[row, seen[row]] = cached + other
                seen[row] += 1


@njit(error_model="numpy")
def attend_head(heads, slots, key, span, order, seen, oldest, room, query, mixed, out):
    """out[i, h] = attention of row i, heads h that read one key head. heads: (n, H + 2K, size), q
    scaled.

    slots: (2K, S, size), as stored. span: of the request that the rows are of, see ``forward``.
    order, seen, oldest: see ``list_seen``.
    room: (n * groups, cached + m) scratch, or more. query, mixed: (n * groups, size) scratch. out:
    (n, H, size).
    """
    (count, _, size), (_, fed, base, begin, cached) = heads.shape, span
    keys, step, end = len(slots) // 2, room.shape[1], begin + fed
    groups, head = out.shape[1] // keys, slots.shape[1] * size * slots.itemsize
    first, start = cached, slots.ctypes.data + key * head + base * size * slots.itemsize
    values = start + keys * head
    for row in range(count):
        first = min(first, oldest[row])
        for group in range(groups):
            for place in range(size):
                query[row * groups + group, place] = heads[row, key * groups + group, place]
                mixed[row * groups + group, place] = 0
    multiply(query, count * groups, size, start, slots, room.ctypes.data, step, 0, end)
    for place in range(count * groups):
        row, scores = place // groups, room[place]
        for each in range(seen[row]):
            scores[cached + each] = scores[order[row, each]]
        peak, total = soften(scores[oldest[row] : cached + seen[row]])
        query[place, 0] = 1 / total if abs(peak) < np.inf else np.nan
        for each in range(oldest[row]):
            scores[each] = 0
    mix(
        room.ctypes.data,
        step,
        values,
        slots,
        first,
        cached,
        mixed.ctypes.data,
        count * groups,
        size,
    )
    for place in range(count * groups):
        row, result = place // groups, mixed.ctypes.data + place * size * ITEM
        for each in range(seen[row]):
            share = room.ctypes.data + (place * step + cached + each) * ITEM
            mix(
                share,
                step,
                values + order[row, each] * size * slots.itemsize,
                slots,
                0,
                1,
                result,
                1,
                size,
            )
        for number in range(size):
            out[row, key * groups + place % groups, number] = widen(
                narrow(mixed[place, number] * query[place, 0], slots)
            )


@njit(error_model="numpy")
def attend(heads, slots, start, every, spans, order, seen, oldest, room, query, mixed, out):
    """See ``attend_head``, for pairs of a request and a key head, from ``start`` on, one of
    ``every``.
    """
    keys = len(slots) // 2
    for pair in range(start, len(spans) * keys, every):
        span = spans[pair // keys]
        end = span[0] + span[1]
        for row in range(span[0], end, ROWS):
            own = slice(row, min(row + ROWS, end))
            shape = span, order[own], seen[own], oldest[own]
            attend_head(heads[own], slots, pair % keys, *shape, room, query, mixed, out[own])


@njit(error_model="numpy", parallel=True)
def attend_shared(heads, slots, spans, order, seen, oldest, room, query, mixed, out):
    """See ``attend``; each thread has its share of the pairs, and of the scratch."""
    threads = len(room)
    for thread in prange(threads):
        attend(
            heads,
            slots,
            thread,
            threads,
            spans,
            order,
            seen,
            oldest,
            room[thread],
            query[thread],
            mixed[thread],
            out,
        )


@njit(error_model="numpy")
def rotate_all(heads, queries, cos, sin, positions, slots, spans):
    """See ``rotate``, for the rows of each request."""
    for first, count, base, begin, _ in spans:
        own = slice(first, first + count)
        rotate(heads[own], queries, cos, sin, positions[own], slots, base + begin)


@njit(error_model="numpy")
def make_rows(count, width, queries, keys, size, inner):
    """Memory of what n rows are on their way through a layer."""
    rows, normed = np.empty((count, width), np.float32), np.empty((count, width), np.float32)
    added, mixed = (
        np.empty((count, width), np.float32),
        np.empty((count, queries, size), np.float32),
    )
    heads, gated = (
        np.empty((count, queries + 2 * keys, size), np.float32),
        np.empty((count, inner), np.float32),
    )
    return rows, normed, added, heads, mixed, np.empty((count, 2 * inner), np.float32), gated


@njit(error_model="numpy")
def make_scratch(shares, count, size, columns):
    """Memory of attention to one key head, for each thread: queries, results and scores."""
    query, result = (
        np.empty((shares, count, size), np.float32),
        np.empty((shares, count, size), np.float32),
    )
    return query, result, np.empty((shares, count, columns), np.float32)


@njit(error_model="numpy")
def require_rows(ids, turned, table, cos):
    """Raises IndexError where memory beyond a table would be read."""
    for each in ids:
        if not 0 <= each < len(table):
            raise IndexError(
                "a token id has no row in the embedding; expected ids that the model's vocabulary"
                " holds"
            )
    for each in turned:
        if not 0 <= each < len(cos):
            raise IndexError(
                "a position has no row in the table of rotations; expected those of the model's"
                " context"
            )


@njit(error_model="numpy")
def read_rows(
    given,
    heads,
    queries,
    weights,
    bias,
    norms,
    epsilon,
    like,
    cos,
    sin,
    turned,
    slots,
    spans,
    threads,
):
    """The first half of a layer: heads (n, H + 2K, size) of what attention reads (n, W); k and v go
    to their slots.
    """
    project(given, weights, like, heads.ctypes.data, heads.shape[1] * heads.shape[2], threads)
    finish(heads, bias, norms, epsilon, like)
    rotate_all(heads, queries, cos, sin, turned, slots, spans)


@njit(error_model="numpy")
def write_rows(
    heads,
    slots,
    spans,
    order,
    seen,
    oldest,
    room,
    query,
    result,
    mixed,
    added,
    rows,
    pairs,
    gated,
    normed,
    addresses,
    after,
    before,
    epsilon,
    like,
    threads,
):
    """The second half of a layer: rows (n, D) += attention and what follows it; normed: the rows
    for the next layer.

    after, before: (D,) norms after attention, and before the next layer's. The rest: see
    ``forward``, ``make_rows`` and ``make_scratch``.
    """
    count, width = rows.shape
    if threads is None:
        attend(heads, slots, 0, 1, spans, order, seen, oldest, room[0], query[0], result[0], mixed)
    else:
        attend_shared(heads, slots, spans, order, seen, oldest, room, query, result, mixed)
    wide = mixed.shape[1] * mixed.shape[2]
    project(mixed.reshape(count, wide), addresses[1], like, added.ctypes.data, width, threads)
    add_norm(rows, added, after, epsilon, like, normed)
    project(normed, addresses[2], like, pairs.ctypes.data, pairs.shape[1], threads)
    gate(pairs, like, gated)
    project(gated, addresses[3], like, added.ctypes.data, width, threads)
    add_norm(rows, added, before, epsilon, like, normed)


@njit(error_model="numpy", nogil=True)
def forward(
    ids,
    places,
    turned,
    spans,
    bias,
    other_bias,
    windows,
    kinds,
    queries,
    inner,
    table,
    addresses,
    norms,
    head_norms,
    head_bias,
    epsilons,
    cos,
    sin,
    slots,
    taps,
    tapped,
    logits,
    threads,
):
    """Feed n rows: logits (m, V) of the last m, and tapped (taps, n, D), in single precision.

    ids, places, turned: (n,); positions, and where the embedding turns them to.
    spans: (B, 5) of each request its first row and its rows; the first of its slots, and counted
    from there the slot of its first row, which the others follow, and the cached slots, which all
    rows see. bias, other_bias: see ``list_seen``; one for the layers of each kind, 0 and 1, as are
    windows (2,). kinds: (L,). queries, inner: H, I. table: (V, D) of the embeddings, as stored.
    addresses: (L + 1, 4) of the weights of q, k and v, of what follows attention, of gate and up,
    of down; in the last row of the head. norms: (2L + 1, D). head_norms: (L, H + K, size), or (L,
    0, size). head_bias: (L, H + 2K, size), or (L, 0, size). epsilons: (2,), of norms of states and
    of heads. cos, sin: (P, size). slots: (L, 2K, S, size), as stored. taps: which states,
    ascending.
    """
    require_rows(ids, turned, table, cos)
    count, width, layers, shares = (
        len(ids),
        table.shape[1],
        len(slots),
        1 if threads is None else threads,
    )
    keys, size = slots.shape[1] // 2, slots.shape[3]
    rows, normed, added, heads, mixed, pairs, gated = make_rows(
        count, width, queries, keys, size, inner
    )
    most, columns = 0, 0
    for span in spans:
        most, columns = max(most, span[1]), max(columns, span[3] + span[1])
    query, result, room = make_scratch(shares, min(most, ROWS) * queries // keys, size, columns)
    order, seen, oldest = (
        np.empty(bias.shape, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
    for row in range(count):
        for place in range(width):
            rows[row, place] = widen(table[ids[row], place])
        normalise(rows[row], norms[0], epsilons[0], table, normed[row])
    tap, kind = 0, -1
    for layer in range(layers):
        if tap < len(taps) and taps[tap] == layer:
            copy(rows, tapped[tap])
            tap += 1
        if kinds[layer] != kind:
            kind = kinds[layer]
            for span in spans:
                own, given = slice(span[0], span[0] + span[1]), other_bias if kind else bias
                list_seen(
                    given[own], places[own], windows[kind], span, order[own], seen[own], oldest[own]
                )
        read_rows(
            normed, heads, queries, addresses[layer, 0], head_bias[layer], head_norms[layer],
            epsilons[1], table, cos, sin, turned, slots[layer], spans, threads,
        )  # fmt: skip
        write_rows(
            heads, slots[layer], spans, order, seen, oldest, room, query, result, mixed, added,
            rows, pairs, gated, normed, addresses[layer], norms[2 * layer + 1],
            norms[2 * layer + 2], epsilons[0], table, threads,
        )  # fmt: skip
    if tap < len(taps):
        copy(normed, tapped[tap])
    project(
        normed[count - len(logits) :],
        addresses[layers, 0],
        table,
        logits.ctypes.data,
        logits.shape[1],
        threads,
    )


@njit(error_model="numpy", nogil=True)
def read_layers(
    given,
    residual,
    turned,
    begin,
    cached,
    bias,
    queries,
    inner,
    like,
    addresses,
    norms,
    head_norms,
    head_bias,
    epsilon,
    cos,
    sin,
    slots,
    out,
    threads,
):
    """Feed n rows of one request through layers without embedding and output head: out (m, D) of
    the last m rows.

    given: (n, W), what attention of the first layer reads. residual: (n, D). turned: (n,)
    positions. begin, cached: the slot of the first row, and the cached slots, which all rows see.
    bias: (n, begin + n - cached), 0 where a row sees the j-th slot after the cached ones, as
    stored. like: an array of the stored type. out: (m, D). The rest: see ``forward``.
    """
    (count, width), layers, shares = residual.shape, len(slots), 1 if threads is None else threads
    keys, size, wanted = slots.shape[1] // 2, slots.shape[3], len(out)
    rows, normed, added, heads, mixed, pairs, gated = make_rows(
        count, width, queries, keys, size, inner
    )
    query, result, room = make_scratch(
        shares, min(count, ROWS) * queries // keys, size, begin + count
    )
    order, seen, oldest = (
        np.empty(bias.shape, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
    spans = np.array([[0, count, 0, begin, cached]])
    copy(residual, rows)
    list_seen(bias, turned, -1, spans[0], order, seen, oldest)
    for layer in range(layers):
        read_rows(
            normed if layer else given, heads, queries, addresses[layer, 0], head_bias[layer],
            head_norms[layer], epsilon, like, cos, sin, turned, slots[layer], spans, threads,
        )  # fmt: skip
        # keys and values of the other rows are all that is wanted of them
        if layer == layers - 1 and wanted < count:
            cut = count - wanted
            rows, normed, added, heads, mixed = (
                rows[cut:],
                normed[cut:],
                added[cut:],
                heads[cut:],
                mixed[cut:],
            )
            pairs, gated, order, seen, oldest = (
                pairs[cut:],
                gated[cut:],
                order[cut:],
                seen[cut:],
                oldest[cut:],
            )
            spans[0, 1], spans[0, 3] = wanted, begin + cut
        write_rows(
            heads, slots[layer], spans, order, seen, oldest, room, query, result, mixed, added,
            rows, pairs, gated, normed, addresses[layer], norms[2 * layer], norms[2 * layer + 1],
            epsilon, like, threads,
        )  # fmt: skip
    copy(rows, out)


@njit(error_model="numpy", nogil=True)
def normalise_rows(rows, weight, epsilon, like, out):
    """Out (M, D) = rows (M, D), normalised; see ``normalise``."""
    for row in range(len(rows)):
        normalise(rows[row], weight, epsilon, like, out[row])


@njit(error_model="numpy", nogil=True)
def multiply_rows(rows, weights, like, out, threads):
    """Out (M, N) = rows (M, K) times weights, the address of (N, K), stored as ``like``."""
    project(rows, weights, like, out.ctypes.data, out.shape[1], threads)


@njit(error_model="numpy")
def lay_out(parents, spans, windows, places, reach, biases):
    """Fill places (n,), positions; reach (n,), depths; and biases (kinds, n, m), 0 where a row sees
    another.

    parents: (n,) of each request its root's, below 0, then its nodes' as in their draft; turned to
    the row of each row's parent, counted from its request's first, where a root is its own. spans:
    see ``kernels.forward``. windows: (kinds,) [positions], below 0 for all. Returns the largest
    depth, at least 1; 0 if a parent does not come before its child.
    """
    seen, deepest = np.zeros(biases.shape[1:], np.bool_), 1
    for span in spans:
        own = slice(span[0], span[0] + span[1])
        if not lay_out_one(parents[own], windows, reach[own], seen[own], biases[:, own]):
            return 0
        for row in range(span[0], span[0] + span[1]):
            places[row] = span[4] + int(reach[row])
            deepest = max(deepest, int(reach[row]))
    return deepest


@njit(error_model="numpy")
def lay_out_one(parents, windows, depths, seen, biases):
    """See ``lay_out``, of one request; returns whether parents come before their children. seen:
    (n, m), of zeros.
    """
    for row in range(len(parents)):
        above = parents[row] = parents[row] + 1
        if not 0 <= above < max(row, 1):
            return False
        depths[row] = depths[above] + 1 if row else 0
        for other in range(row):
            seen[row, other] = seen[above, other]
        seen[row, row] = True
        for kind in range(len(windows)):
            for other in range(len(parents)):
                near = windows[kind] < 0 or depths[row] - depths[other] < windows[kind]
                biases[kind, row, other] = 0 if seen[row, other] and near else 1
    return True


@njit(error_model="numpy", nogil=True)
def accept(logits, forced, ids, parents, reach, past, slots, moved, out):
    """See ``specbench.models.fast.frame.accept``. logits: (n, V) as stored. forced: (n,) picks, or
    none of them.

    ids, parents, reach: (n,), see ``TreeFrame``. slots: (L, 2K, S, size). out: what
    ``read_outcome`` reads.
    """
    count, best = len(ids), 0
    picks, right, total = np.empty(count, np.int64), np.zeros(count, np.bool_), ZERO
    for row in range(count):
        peak, place = find_peak(logits[row])
        picks[row] = forced[row] if len(forced) else place
        total += peak
    for row in range(count):
        above = parents[row]
        right[row] = above == row or (right[above] and reach[row] >= 0 and picks[above] == ids[row])
        if right[row] and reach[row] > reach[best]:
            best = row
    depth = int(reach[best])
    out[0], out[1], out[2] = depth, picks[best], total
    if not moved:
        for row in range(count):
            out[3 + row] = ids[row]
        return
    row = best
    for place in range(depth - 1, -1, -1):
        out[3 + place], out[3 + moved + place] = ids[row], row
        row = parents[row]
    # a path's rows ascend, so that none is written over before it is read
    for place in range(depth):
        move(slots, past + int(out[3 + moved + place]), past + 1 + place)


@njit(error_model="numpy")
def move(slots, source, target):
    """Copy keys and values of one slot to another, in all layers and heads. slots: (L, 2K, S,
    size).
    """
    for layer in range(len(slots) if source != target else 0):
        for head in range(slots.shape[1]):
            for place in range(slots.shape[3]):
                slots[layer, head, target, place] = slots[layer, head, source, place]


@njit(error_model="numpy", nogil=True)
def accept_all(logits, forced, ids, parents, reach, spans, slots, state, eos, moved, found):
    """See ``specbench.models.fast.frame.accept``, for each of B requests; their accepted paths are
    moved together.

    logits: (n, V) as stored. forced: (n,) picks, or none of them. ids, reach: (n,). parents, spans:
    see ``lay_out``. slots: (L, 2K, S, size). state: (3, B), see ``pack``; a request whose logits
    are finite emits up to the first token of ``eos``, and no more than are left, and is then in the
    state after them. moved: no draft is deeper. found: (4 + 2 moved, B), or more rows, of each
    request how many tokens it emits, 0 where logits are not finite; whether it ends; its root; its
    first token; and then in turn an accepted node and the token after it. Returns the most tokens
    of a request, at least 1; the tokens of all; the requests that failed, and that end.
    """
    out, most, total, failed, ended = np.empty(3 + 2 * moved, np.float32), 1, 0, 0, 0
    for number in range(len(spans)):
        first, count, base, begin, _ = spans[number]
        own, row = slice(first, first + count), found[:, number]
        given = forced[own] if len(forced) else forced
        accept(
            logits[own], given, ids[own], parents[own], reach[own], base + begin, slots, moved, out
        )
        depth, emitted, done, left = int(out[0]), 0, False, state[2, number]
        while np.isfinite(out[2]) and not done and emitted <= depth:
            token = int(out[3 + emitted]) if emitted < depth else int(out[1])
            row[3 + 2 * emitted] = token
            if emitted < depth:
                row[4 + 2 * emitted] = int(out[3 + moved + emitted]) - 1
            emitted += 1
            done = emitted == left
            for end in eos:
                done = done or token == end
        row[0], row[1], row[2], most = emitted, done, state[0, number], max(most, emitted)
        total, failed, ended = total + emitted, failed + (emitted == 0), ended + done
        if emitted:
            state[0, number] = row[1 + 2 * emitted]
            state[1, number] += emitted
            state[2, number] -= emitted
    return most, total, failed, ended


@njit(error_model="numpy")
def pack(given, firsts, state, windows, ids, parents, spans, places, reach, biases):
    """Fill the n rows of B drafts, and what ``lay_out`` fills; returns the same.

    given: (B + 2N,) the number of nodes of each draft, then the tokens and the parents of all
    nodes. firsts: (B,) of each request the first of its slots. state: (3, B) its root, its cached
    tokens, and how many tokens are left to emit. ids, parents: (n,). spans: (B, 5).
    """
    row = 0
    for number in range(len(firsts)):
        size, length, span = given[number], state[1, number], spans[number]
        span[0], span[1], span[2], span[3], span[4] = row, 1 + size, firsts[number], length, length
        ids[row], parents[row] = state[0, number], -1
        for node in range(row - number, row - number + size):
            row += 1
            ids[row], parents[row] = given[len(firsts) + node], given[len(ids) + node]
        row += 1
    return lay_out(parents, spans, windows, places, reach, biases)
