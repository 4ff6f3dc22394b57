"""The layout of a draft in a forward: a tree below one root, or a forest with a root for each row
of a batch.

So one mask, one acceptance and one compaction serve chains, trees and batches, and no row needs a
copy of the keys and values it shares. Parents that are on the device are laid out there, and the
host reads them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from specbench.models.tree import RowBatch, compute_depths, is_chain
from specbench.types import ROOT, Draft


class _RowsOfNodes:
    """The rows of a draft's nodes: ``source`` of each row and ``nodes``; None = in the draft's
    order.
    """

    __slots__ = ()
    source: np.ndarray | None
    nodes: np.ndarray | None

    def node_of(self, row: int) -> int:
        """Return the draft's node in a row."""
        return (row if self.source is None else int(self.source[row])) - 1

    def rows_to_move(self, path: Sequence[int]) -> list[int]:
        """Return the rows of an accepted path; none if they follow the root without a gap."""
        rows = [node + 1 if self.nodes is None else int(self.nodes[node + 1]) for node in path]
        return [] if rows == list(range(1, len(rows) + 1)) else rows


@dataclass(frozen=True, slots=True)
class DraftLayout(_RowsOfNodes):
    """The n rows of a forward, in numpy arrays of int64.

    reach: (n,) the depth where a row may be accepted, else -1 (passengers, their descendants,
    padding of a short row). source: (n,) index into root and draft (0 = the root) of what is fed in
    each row; None = in their own order.
    """

    parents: np.ndarray  # (n,) row of each row's parent; a root is its own
    depths: np.ndarray  # (n,) 0 = a root
    reach: np.ndarray
    depth: int  # the largest
    chain: bool  # row i hangs from row i - 1
    source: np.ndarray | None = None
    # (N+1,) the row of the root and of each node; None = in their own order
    nodes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.parents)

    def seen(self) -> np.ndarray:
        """(n, n) bool: the rows that each row sees, its ancestors and itself."""
        if self.chain:
            return np.tri(len(self), dtype=bool)
        bits: list[int] = []
        for row, parent in enumerate(self.parents.tolist()):
            bits.append(1 << row | (bits[parent] if parent != row else 0))
        width = (len(self) + 7) // 8
        packed = np.frombuffer(
            b"".join(each.to_bytes(width, "little") for each in bits), dtype=np.uint8
        )
        return np.unpackbits(
            packed.reshape(-1, width), axis=1, count=len(self), bitorder="little"
        ).view(bool)


def lay_out(parents: Sequence[int], draft: Draft, batch: RowBatch | None) -> DraftLayout:
    """Lay out a draft. parents: of the draft, on the host. batch: set if it is fed as rows.

    Raises CaseError when a parent does not come before its child.
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
    return DraftLayout(
        rows, depths, mark_reach(depths, parents, draft.passenger), max(found), is_chain(parents)
    )


def mark_reach(
    depths: np.ndarray, parents: Sequence[int], passenger: Sequence[bool] | None
) -> np.ndarray:
    """The ``reach`` of a tree's rows, root and nodes in the draft's order."""
    if passenger is None:
        return depths
    reach = depths.copy()
    for node, parent in enumerate(parents):
        if passenger[node] or (parent != ROOT and reach[parent + 1] < 0):
            reach[node + 1] = -1
    return reach


def _forest(
    batch: RowBatch, parents_of_nodes: Sequence[int], passenger: Sequence[bool] | None
) -> DraftLayout:
    places = batch.places.numpy()
    rows, width = places.shape
    depths = np.tile(np.arange(width), rows)
    parents = np.arange(rows * width) - (depths > 0)
    source = places.ravel()
    reach_of_nodes = mark_reach(
        np.array([0, *compute_depths(parents_of_nodes)]), parents_of_nodes, passenger
    )
    reach = np.where((source > 0) | (depths == 0), reach_of_nodes[source], -1)
    return DraftLayout(parents, depths, reach, width - 1, False, source, batch.nodes.numpy())


LAYOUTS = 1024  # are remembered


@dataclass(frozen=True, slots=True)
class DeviceLayout(_RowsOfNodes):
    """The same as ``DraftLayout`` for a tree below one root whose rows are in the draft's order."""

    above: Tensor  # (N,) int64 parents of the draft's nodes
    depth: int  # the most levels there may be
    chain: bool = False
    nodes: None = None
    source: None = None

    def __len__(self) -> int:
        return len(self.above) + 1


Layout = DraftLayout | DeviceLayout


class Layouts:
    """Layouts by the shapes of drafts, so that chains and fixed trees are laid out once."""

    def __init__(self) -> None:
        self._known: dict[object, Layout] = {}

    def find(self, parents: Sequence[int] | Tensor, draft: Draft, as_rows: bool) -> Layout:
        """The layout of a draft. parents: its own, on the host unless they stay on the device."""
        if isinstance(parents, Tensor):
            return DeviceLayout(parents, draft.depth or len(parents))
        shape = parents if isinstance(parents, range) else tuple(parents)
        key = shape, None if draft.passenger is None else tuple(draft.passenger), as_rows
        if key not in self._known:
            if len(self._known) == LAYOUTS:
                self._known.clear()
            batch = RowBatch.of(parents, compute_depths(parents)) if as_rows else None
            self._known[key] = lay_out(parents, draft, batch)
        return self._known[key]
