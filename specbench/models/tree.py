"""The shape of a draft: depths and tree-attention masks, the same draft as a batch of rows, and
chunks of a prompt.

A row sees the context, its ancestors and itself. Slots and positions differ: tree node i is in
cache slot ``past + 1 + i`` but has position ``past + depth``. A sliding window is measured in
positions, so it is taken from depths, never from slots. Prompts and answers are fed in chunks:
memory grows with their length, not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from operator import lt

import numpy as np
import torch
from torch import Tensor

from specbench.models.transfer import upload
from specbench.types import ROOT, CaseError


def compute_depths(parents: Sequence[int]) -> list[int]:
    """Return the (N,) depth of each node, 1 = child of the root.

    Raises CaseError, as ``require_order``. ``[-1, 0, 0, -1]`` -> ``[1, 2, 2, 1]``.
    """
    require_order(parents)
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return depths


def require_order(parents: Sequence[int]) -> None:
    """Raise CaseError when a parent does not come before its child."""
    if min(parents, default=ROOT) < ROOT or not all(map(lt, parents, count())):
        node, parent = next(each for each in enumerate(parents) if not ROOT <= each[1] < each[0])
        raise CaseError(
            f"parent of node {node} is {parent}; expected {ROOT} (root) or a smaller node number"
        )


def is_chain(parents: Sequence[int]) -> bool:
    """Returns whether every node is the child of the one before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def mark_ancestors(parents: Sequence[int]) -> np.ndarray:
    """Return (N+1, N+1) bool: row 0 is the root, row i+1 node i; True for the row itself and its
    ancestors.
    """
    rows = len(parents) + 1
    if is_chain(parents):
        return np.tri(rows, dtype=bool)
    seen = np.zeros((rows, rows), dtype=bool)
    seen[:, 0] = True
    for node, parent in enumerate(parents):
        row = node + 1
        if parent != ROOT:
            seen[row] = seen[parent + 1]
        seen[row, row] = True
    return seen


def build_tree_mask(
    parents: Sequence[int], depths: Sequence[int], past: int, window: int | None, dtype: torch.dtype
) -> Tensor:
    """Build the additive attention mask (1, 1, N+1, past+N+1): 0 where a row may look, else the
    dtype's minimum.

    past: [tokens] already in the cache, at positions 0..past-1; the root has position ``past``.
    window: [positions] a row sees those less than ``window`` before it; None = all.
    """
    rows = TreeRows(mark_ancestors(parents), [past, *(past + depth for depth in depths)])
    return rows.build_mask(window, dtype, past)


def build_causal_mask(
    length: int, window: int | None, dtype: torch.dtype, start: int = 0
) -> Tensor:
    """Build the additive mask (1, 1, T - start, T) of the last tokens of T, with a sliding window
    in positions.

    start: [tokens] read before; 0 = a prompt.
    """
    visible = np.tri(length - start, length, k=start, dtype=bool)
    if window is not None:
        visible &= ~np.tri(length - start, length, k=start - window, dtype=bool)
    return build_additive_mask(visible, dtype)


def build_additive_mask(visible: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Turn bool (rows, keys) into additive (1, 1, rows, keys): eager attention misreads bool masks
    without an error.
    """
    mask = torch.zeros(visible.shape, dtype=dtype)
    return mask.masked_fill_(torch.from_numpy(~visible), torch.finfo(dtype).min)[None, None]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A draft of chains from one root as a batch of k rows over the context's keys and values.

    A row is the root, its tokens and padding. Every row is causal, so no tree mask is needed; the
    results are put back in the draft's own order and verified like any tree.

    places: (k, w+1) int64 index into root and draft; the root is in every first column and where a
    row is padded.
    """

    starts: tuple[int, ...]  # (k,) first node of each row
    width: int  # w, the tokens of the longest row
    places: Tensor
    nodes: Tensor  # (N+1,) int64 index of the root and of each node into the flattened batch

    @classmethod
    def of(cls, parents: Sequence[int], depths: Sequence[int]) -> RowBatch | None:
        """Build the batch: parents ``[-1, 0, -1]``, depths ``[1, 2, 1]`` -> places ``[[0, 1, 2],
        [0, 3, 0]]``.

        None for fewer than two rows, which need one sequence only. Raises CaseError when a node
        hangs neither from the root nor from the node before it.
        """
        for node, parent in enumerate(parents):
            if parent not in (ROOT, node - 1):
                raise CaseError(
                    f"draft is not rows: node {node} hangs from node {parent}; expected the root"
                    f" ({ROOT}) or node {node - 1}, as the method declares Needs(rows=True)"
                )
        starts = tuple(node for node, depth in enumerate(depths) if depth == 1)
        if len(starts) < 2:
            return None
        column = np.array(depths)
        row = np.cumsum(column == 1) - 1
        width = int(column.max())
        places = np.zeros((len(starts), width + 1), dtype=np.int64)
        places[row, column] = np.arange(1, len(column) + 1)
        nodes = np.concatenate([[0], row * (width + 1) + column])
        return cls(starts, width, torch.from_numpy(places), torch.from_numpy(nodes))

    def __len__(self) -> int:
        return len(self.starts)

    def lay_out(self, fed: Tensor) -> Tensor:
        """Lay out (N+1,) token ids as (k, w+1), padded with the root."""
        return fed[upload(self.places, fed.device)]

    def collect(self, computed: Tensor) -> Tensor:
        """(k, w+1, X) -> (N+1, X) in the draft's order; the root is the first row's."""
        return computed.flatten(0, 1)[upload(self.nodes, computed.device)]

    def row_of(self, path: Sequence[int]) -> int:
        """Return the row of an accepted path; the first one for an empty path."""
        return self.starts.index(path[0]) if path else 0


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The last m of the n nodes after a context, which are fed together.

    seen: (m, n) bool, the nodes that each row sees, including itself; None: itself and those before
    it.
    """

    seen: np.ndarray | None
    places: Sequence[int]  # (n,) positions of all nodes; siblings share one

    def list_near(self, window: int | None) -> np.ndarray:
        """Return (m, n) bool: the nodes seen within a sliding window [positions]."""
        seen = np.tri(len(self.places), dtype=bool) if self.seen is None else self.seen
        if window is None:
            return seen
        at = np.asarray(self.places)
        near: np.ndarray = seen & (at[-len(seen) :, None] - at < window)
        return near

    def build_mask(self, window: int | None, dtype: torch.dtype, past: int) -> Tensor:
        """Build the additive mask (1, 1, m, past + n) over the nodes and the ``past`` [tokens] of
        the context.
        """
        near = self.list_near(window)
        visible = np.ones((len(near), past + near.shape[1]), dtype=bool)
        visible[:, past:] = near
        if window is not None:
            visible[:, :past] = (
                np.asarray(self.places)[-len(near) :, None] - np.arange(past) < window
            )
        return build_additive_mask(visible, dtype)


CHUNK = 2048  # [tokens] of which one forward makes masks or logits
CELLS = CHUNK * 8192  # of a chunk's mask: 64 MiB in float32
LEAST = 64  # [tokens] of a chunk, however many come before it


def list_chunks(end: int, start: int = 0) -> list[slice]:
    """Split the places ``start`` to ``end`` into slices of at most ``CHUNK`` tokens."""
    return [slice(first, min(first + CHUNK, end)) for first in range(start, end, CHUNK)]


def list_masked_chunks(end: int, start: int = 0) -> list[slice]:
    """Split the places ``start`` to ``end`` so that each slice's mask, over all places before its
    end, is small.
    """
    parts: list[slice] = []
    while start < end:
        stop = min(start + CHUNK, end)
        stop = min(stop, start + max(LEAST, CELLS // stop))
        parts.append(slice(start, stop))
        start = stop
    return parts
