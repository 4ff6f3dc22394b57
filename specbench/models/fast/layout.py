"""A draft in the rows of a forward: a tree below one root, or a forest with a root for each row of a batch.

So one mask, one acceptance and one compaction serve chains, trees and batches, and no row needs a copy of the keys and
values it shares.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from specbench.models.tree import RowBatch, compute_depths, is_chain
from specbench.types import ROOT, Draft

if TYPE_CHECKING:
    from specbench.models.fast.frame import Frame

Run = Callable[[Hashable, Callable[[], Any]], Any]  # ``Graphs.run``


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """The n rows of a forward, in numpy arrays of int64.

    parents: (n,) row of each row's parent; a root is its own.
    depths: (n,) 0 = a root. depth: the largest.
    reach: (n,) the depth where a row may be accepted, else -1 (passengers, their descendants, padding of a short row).
    chain: row i hangs from row i - 1.
    source: (n,) index into root and draft (0 = the root) of what is fed in each row; None = in their own order.
    nodes: (N+1,) the row of the root and of each node; None = in their own order.
    """

    parents: np.ndarray
    depths: np.ndarray
    reach: np.ndarray
    depth: int
    chain: bool
    source: np.ndarray | None = None
    nodes: np.ndarray | None = None

    def __len__(self) -> int:
        """N."""
        return len(self.parents)

    def seen(self) -> np.ndarray:
        """(n, n) bool: the rows that each row sees, its ancestors and itself."""
        if self.chain:
            return np.tri(len(self), dtype=bool)
        bits: list[int] = []
        for row, parent in enumerate(self.parents.tolist()):
            bits.append(1 << row | (bits[parent] if parent != row else 0))
        width = (len(self) + 7) // 8
        packed = np.frombuffer(b"".join(each.to_bytes(width, "little") for each in bits), dtype=np.uint8)
        return np.unpackbits(packed.reshape(-1, width), axis=1, count=len(self), bitorder="little").view(bool)

    def enter(self, frame: Frame, run: Run | None) -> None:
        """Write it into the frame's buffers."""
        frame.lay_out(self)

    def depths_in(self, frame: Frame) -> Sequence[int] | Tensor:
        """(N+1,) depths of the root and of each node."""
        found: list[int] = (self.depths if self.nodes is None else self.depths[self.nodes]).tolist()
        return found

    def node_of(self, row: int) -> int:
        """The draft's node that a row holds."""
        return (row if self.source is None else int(self.source[row])) - 1

    def rows_to_move(self, path: Sequence[int]) -> list[int]:
        """The rows of an accepted path; none where they lie together behind the root already."""
        rows = [node + 1 if self.nodes is None else int(self.nodes[node + 1]) for node in path]
        return [] if rows == list(range(1, len(rows) + 1)) else rows


class Layout(Protocol):
    """A ``DraftLayout``, or one that only the device knows (``device_layout``)."""

    @property
    def depth(self) -> int:
        """The deepest row's, or more."""

    @property
    def chain(self) -> bool:
        """See ``DraftLayout``, as for the others."""

    @property
    def source(self) -> np.ndarray | None:
        """Index into root and draft of each row."""

    @property
    def nodes(self) -> np.ndarray | None:
        """Row of the root and of each node."""

    def __len__(self) -> int:
        """Rows."""

    def enter(self, frame: Frame, run: Run | None) -> None:
        """Write it into the frame's buffers."""

    def depths_in(self, frame: Frame) -> Sequence[int] | Tensor:
        """(N+1,) depths of the root and of each node."""

    def node_of(self, row: int) -> int:
        """The draft's node that a row holds."""

    def rows_to_move(self, path: Sequence[int]) -> list[int]:
        """The rows of an accepted path."""


def lay_out(parents: Sequence[int], draft: Draft, batch: RowBatch | None) -> DraftLayout:
    """The layout of a draft. parents: its own, on the host. batch: where it is fed as rows.

    Raises ValueError when a parent does not stand before its child.
    """
    if batch is not None:
        return _forest(batch, parents, draft.passenger)
    if parents == range(ROOT, len(parents) - 1) and draft.passenger is None:
        depths = np.arange(len(parents) + 1)
        return DraftLayout(np.maximum(depths - 1, 0), depths, depths, len(parents), True)
    found = [0, *compute_depths(parents)]
    depths = np.array(found)
    rows = np.array([0, *parents]) + 1
    rows[0] = 0
    return DraftLayout(rows, depths, mark_reach(depths, parents, draft.passenger), max(found), is_chain(parents))


def mark_reach(depths: np.ndarray, parents: Sequence[int], passenger: Sequence[bool] | None) -> np.ndarray:
    """The ``reach`` of a tree's rows, root and nodes in the draft's order."""
    if passenger is None:
        return depths
    reach = depths.copy()
    for node, parent in enumerate(parents):
        if passenger[node] or (parent != ROOT and reach[parent + 1] < 0):
            reach[node + 1] = -1
    return reach


def _forest(batch: RowBatch, parents_of_nodes: Sequence[int], passenger: Sequence[bool] | None) -> DraftLayout:
    places = batch.places.numpy()
    rows, width = places.shape
    depths = np.tile(np.arange(width), rows)
    parents = np.arange(rows * width) - (depths > 0)
    source = places.ravel()
    reach_of_nodes = mark_reach(np.array([0, *compute_depths(parents_of_nodes)]), parents_of_nodes, passenger)
    reach = np.where((source > 0) | (depths == 0), reach_of_nodes[source], -1)
    return DraftLayout(parents, depths, reach, width - 1, False, source, batch.nodes.numpy())
