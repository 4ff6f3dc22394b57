"""The operations between the products of a layer, each over the rows one by one."""

from __future__ import annotations

import math

import numpy as np
from numba.extending import overload

from specbench.models.compiled_code import njit
from specbench.models.fast.host.vectors import BFLOAT16, PAIRED, exponential, narrow, widen

ORDER = {"reassoc", "nsz", "contract", "arcp"}  # one row's sums may be reordered: the same way for every row
BLOCK = 64  # numbers among which the largest is looked for one by one
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


@njit(error_model="numpy", fastmath=ORDER | {"nnan"})
def _find_largest(numbers):
    peak = widen(numbers[0])
    for place in range(len(numbers)):
        peak = max(peak, widen(numbers[place]))
    return peak


@njit(error_model="numpy")
def find_peak(numbers):
    """The largest of (V,) stored numbers and the first place that has it; NaN where one of them is not a number."""
    peak, place, broken = widen(numbers[0]), 0, 0
    for first in range(0, len(numbers), BLOCK):
        largest = _find_largest(numbers[first : first + BLOCK])
        if largest > peak:
            peak, place = largest, first
    for each in range(len(numbers)):
        number = widen(numbers[each])
        broken += number != number
    while place < len(numbers) - 1 and widen(numbers[place]) != peak:
        place += 1
    return np.float32(np.nan) if broken else peak, place


@njit(error_model="numpy", fastmath=ORDER)
def normalise(row, weight, epsilon, like, out):
    """Out = row over its root mean square, times weight, (size,) each; rounded as ``like`` is stored."""
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
    """Heads (n, H + 2K, size) += bias, and its first rows normalised by their weights (H + K, size); none: no rows."""
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
    """Turn q and k of heads (n, H + 2K, size) to their positions, scale q, and write k and v to ``slots``.

    queries: H. cos, sin: (P, size), the sine with the sign of its half. slots: (2K, S, size); row i goes to start + i.
    """
    size, keys = heads.shape[2], len(slots) // 2
    half, scale = size // 2, np.float32(1 / math.sqrt(size))
    for row in range(len(heads)):
        position = positions[row]
        low_cos, high_cos = cos[position, :half], cos[position, half:]
        low_sin, high_sin = sin[position, :half], sin[position, half:]
        for head in range(queries + keys):
            low, high, factor = heads[row, head, :half], heads[row, head, half:], scale if head < queries else ONE
            for place in range(half):
                left, right = low[place], high[place]
                low[place] = widen(narrow(left * low_cos[place] + right * low_sin[place], slots)) * factor
                high[place] = widen(narrow(right * high_cos[place] + left * high_sin[place], slots)) * factor
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
            result[place] = widen(narrow(widen(narrow(number / (ONE + exponential(-number)), like)) * other, like))


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
