"""The rows of several requests as sequences of one length, for attention that takes a batch of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.models.packed import PackedRows
from specbench.models.tree import build_additive_mask, mark_ancestors


class PaddedRows:
    """Packed rows as k sequences of q tokens, one a place; between and behind them is padding.

    Padding stands behind what its place holds, so it writes where nothing is held, and no other row sees it.

    places: from the first to the last one that takes part. numbers: (k, 1). slots, positions: (k, q).
    end: [slots] that are read of each place. nodes: (n,) where each of the packed rows lies among the k q.
    """

    def __init__(self, rows: PackedRows, lengths: Sequence[int], context: int) -> None:
        """lengths: [tokens] that each place of the batch holds.

        context: [tokens] of the model: nodes beyond it can never be accepted, but their position must exist.
        """
        taken = [handle.place for handle in rows.handles]
        first, self._rows = min(taken), rows
        self._sequences = [place - first for place in taken]
        self.places = slice(first, max(taken) + 1)
        self.numbers = np.arange(first, max(taken) + 1)[:, None]
        width = max(end - start for start, end in zip(rows.bounds, rows.bounds[1:], strict=False))
        self._depths = np.tile(np.arange(width), (len(self.numbers), 1))
        nodes = []
        for number, sequence in enumerate(self._sequences):
            own = rows.depths_of(number)
            self._depths[sequence, : len(own)] = own
            nodes.append(np.arange(len(own)) + sequence * width)
        self._held, self.nodes = np.array(lengths[self.places])[:, None], np.concatenate(nodes)
        self.slots: np.ndarray = self._held + np.arange(width)
        self.positions = np.minimum(self._held + self._depths, context - 1)
        self.end = int(self.slots.max()) + 1

    def build_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """(k, 1, q, end) additive: a row sees its place's context within the window, its ancestors and itself."""
        count, width = self.slots.shape
        column = np.arange(self.end)
        seen = np.repeat(column < self._held[..., None], width, axis=1)
        seen |= self.slots[..., None] == column
        for number, sequence in enumerate(self._sequences):
            own, start = mark_ancestors(self._rows.parents[number]), self.slots[sequence, 0]
            seen[sequence, : len(own), start : start + len(own)] = own
        if window is not None:
            places = np.repeat(column[None], count, axis=0)
            np.put_along_axis(places, self.slots, self._held + self._depths, axis=1)
            seen &= (self._held + self._depths)[..., None] - places[:, None] < window
        return build_additive_mask(seen.reshape(-1, self.end), dtype).view(count, 1, width, self.end)
