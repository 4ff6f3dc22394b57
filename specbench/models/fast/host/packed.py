"""What lies around the forward, compiled: the layout of drafts of several requests, and acceptance."""

from __future__ import annotations

import numpy as np

from specbench.models.compiled_code import njit
from specbench.models.fast.host.small_kernels import ZERO, find_peak


@njit(error_model="numpy")
def lay_out(parents, spans, windows, places, reach, biases):
    """Fill places (n,), positions; reach (n,), depths; and biases (kinds, n, m), 0 where a row sees another.

    parents: (n,) of each request its root's, below 0, then its nodes' as in their draft; turned to the row of each
    row's parent, counted from its request's first, where a root is its own.
    spans: see ``kernels.forward``. windows: (kinds,) [positions], below 0 for all.
    """
    seen = np.zeros(biases.shape[1:], np.bool_)
    for span in spans:
        own = slice(span[0], span[0] + span[1])
        lay_out_one(parents[own], windows, reach[own], seen[own], biases[:, own])
        for row in range(span[0], span[0] + span[1]):
            places[row] = span[4] + int(reach[row])


@njit(error_model="numpy")
def lay_out_one(parents, windows, depths, seen, biases):
    """See ``lay_out``, of one request. seen: (n, m), of zeros."""
    for row in range(len(parents)):
        above = parents[row] = max(parents[row] + 1, 0)
        depths[row] = depths[above] + 1 if row else 0
        for other in range(row):
            seen[row, other] = seen[above, other]
        seen[row, row] = True
        for kind in range(len(windows)):
            for other in range(len(parents)):
                near = windows[kind] < 0 or depths[row] - depths[other] < windows[kind]
                biases[kind, row, other] = 0 if seen[row, other] and near else 1


@njit(error_model="numpy", nogil=True)
def accept(logits, forced, ids, parents, reach, past, slots, moved, out):
    """See ``specbench.models.fast.accept.accept``. logits: (n, V) as stored. forced: (n,) picks, or none of them.

    ids, parents, reach: (n,), see ``Frame``. slots: (L, 2K, S, size). out: what ``Outcome`` reads, written here.
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
    for place in range(depth):  # a path's rows ascend, so that none is written over before it is read
        move(slots, past + int(out[3 + moved + place]), past + 1 + place)


@njit(error_model="numpy")
def move(slots, source, target):
    """Copy keys and values of one slot to another, in all layers and heads. slots: (L, 2K, S, size)."""
    for layer in range(len(slots) if source != target else 0):
        for head in range(slots.shape[1]):
            for place in range(slots.shape[3]):
                slots[layer, head, target, place] = slots[layer, head, source, place]


@njit(error_model="numpy", nogil=True)
def accept_all(logits, none, ids, parents, reach, spans, slots, moved, found):
    """See ``specbench.models.fast.accept.accept``, for each of B requests; their accepted paths are moved together.

    logits: (n, V) as stored. none: no forced picks. ids, reach: (n,). parents, spans: see ``lay_out``.
    slots: (L, 2K, S, size). moved: no draft is deeper. found: (B, 2 + 2 moved) of each the number of accepted nodes,
    below 0 where logits are not finite; the tokens to emit, the last of them first; then the nodes.
    """
    out = np.empty(3 + 2 * moved, np.float32)
    for number in range(len(spans)):
        first, count, base, begin, _ = spans[number]
        own, row = slice(first, first + count), found[number]
        accept(logits[own], none, ids[own], parents[own], reach[own], base + begin, slots, moved, out)
        row[0], row[1] = int(out[0]) if np.isfinite(out[2]) else -1, int(out[1])
        for place in range(int(out[0])):
            row[2 + place], row[2 + moved + place] = int(out[3 + place]), int(out[3 + moved + place]) - 1
