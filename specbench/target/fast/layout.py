"""How a draft lies in the rows of a forward: a tree below one root, or a forest, a root for each row of a batch.

The one idea: a batch of rows over a shared prefix is a tree whose root is fed once a row. So one mask, one acceptance
and one compaction serve chains, trees and batches, and no row needs a copy of the keys and values it shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.target.rows import RowBatch
from specbench.target.tree import depths_of, is_chain
from specbench.types import ROOT, Draft


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """Rows (n,) of a forward. All arrays are numpy.

    parents: row of each row's parent, roots their own. depths: 0 = a root. reach: the depth where a row may be
    accepted, else -1 (passengers and what hangs below them, padding of a short row). chain: row i hangs from row i - 1.
    source: (n,) index into root and draft (0 = the root) of what is fed in each row; None = in their own order.
    nodes: (N+1,) the row of the root and of each node; None = in their own order.
    """

    parents: np.ndarray
    depths: np.ndarray
    reach: np.ndarray
    chain: bool
    source: np.ndarray | None = None
    nodes: np.ndarray | None = None

    def __len__(self) -> int:
        """n."""
        return len(self.parents)

    def seen(self) -> np.ndarray:
        """(n, n) bool: what a row sees of the rows, its ancestors and itself."""
        if self.chain:
            return np.tri(len(self), dtype=bool)
        bits: list[int] = []
        for row, parent in enumerate(self.parents.tolist()):
            bits.append(1 << row | (bits[parent] if parent != row else 0))
        width = (len(self) + 7) // 8
        packed = np.frombuffer(b"".join(each.to_bytes(width, "little") for each in bits), dtype=np.uint8)
        return np.unpackbits(packed.reshape(-1, width), axis=1, count=len(self), bitorder="little").view(bool)

    def node_of(self, row: int) -> int:
        """The draft's node that a row holds."""
        return (row if self.source is None else int(self.source[row])) - 1


def lay_out(parents: Sequence[int], draft: Draft, batch: RowBatch | None) -> DraftLayout:
    """The layout of a draft. parents: its own, on the host. batch: where it is fed as rows.

    Raises ValueError when a parent does not stand before its child.
    """
    if batch is not None:
        return _forest(batch, parents, draft.passenger)
    if parents == range(ROOT, len(parents) - 1) and draft.passenger is None:
        depths = np.arange(len(parents) + 1)
        return DraftLayout(np.maximum(depths - 1, 0), depths, depths, True)
    depths = np.array([0, *depths_of(parents)])
    rows = np.array([0, *parents]) + 1
    rows[0] = 0
    return DraftLayout(rows, depths, _reach(depths, parents, draft.passenger), is_chain(parents))


def _reach(depths: np.ndarray, parents: Sequence[int], passenger: Sequence[bool] | None) -> np.ndarray:
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
    judged = _reach(np.array([0, *depths_of(parents_of_nodes)]), parents_of_nodes, passenger)
    reach = np.where((source > 0) | (depths == 0), judged[source], -1)
    return DraftLayout(parents, depths, reach, False, source, batch.nodes.numpy())
