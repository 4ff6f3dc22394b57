"""Draft rows verified as a batch: chains from one root, each a row over the context's keys and values (N-Grammys).

A row is root, tokens, padding; every row is plainly causal, so no mask of a tree is needed. The one idea: the batch is
only another lay-out of the draft, so what comes out is put back in the draft's own order and walked as any tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.types import ROOT, CaseError


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Where each token of the root and the draft (N+1, row 0 the root) lies in a (k, w+1) batch.

    starts: (k,) first node of each row. width: w, the longest row's tokens. places: (k, w+1) index into the N+1, the
    root in every row's first column and where a shorter row is padded. nodes: (N+1,) index into the flattened batch.
    """

    starts: tuple[int, ...]
    width: int
    places: Tensor
    nodes: Tensor

    @classmethod
    def of(cls, parents: Sequence[int], depths: Sequence[int]) -> RowBatch | None:
        """Lay out chains; parents ``[-1, 0, -1]``, depths ``[1, 2, 1]`` -> places ``[[0, 1, 2], [0, 3, 0]]``.

        None for fewer than two rows: a forward of one sequence does it. Raises CaseError when a node hangs neither
        from the root nor from the node before it.
        """
        for node, parent in enumerate(parents):
            if parent not in (ROOT, node - 1):
                raise CaseError(
                    f"draft is not rows: node {node} hangs from node {parent}; expected the root ({ROOT}) or node"
                    f" {node - 1}, as the method declares Needs(rows=True)"
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
        """k."""
        return len(self.starts)

    def lay_out(self, fed: Tensor) -> Tensor:
        """(N+1,) token ids -> (k, w+1), padded with the root."""
        return fed[self.places.to(fed.device, non_blocking=True)]

    def collect(self, computed: Tensor) -> Tensor:
        """(k, w+1, X) -> (N+1, X) in the draft's order; the root is the first row's."""
        return computed.flatten(0, 1)[self.nodes.to(computed.device, non_blocking=True)]

    def row_of(self, path: Sequence[int]) -> int:
        """The row that holds an accepted path; the first one for an empty path."""
        return self.starts.index(path[0]) if path else 0
