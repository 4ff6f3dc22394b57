"""A draft model's keys and values: those of one request, and what is recorded on their memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.target.fast.graphs import Graphs
from specbench.target.fast.static_kv import StaticKV
from specbench.target.transfer import upload


class HeldKV(StaticKV):
    """A ``StaticKV`` with the number of held slots. graphs: recorded calls on it; they are dropped when it moves."""

    length = 0

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """See ``StaticKV``."""
        super().__init__(layers, heads, size, dtype, device)
        self.graphs = Graphs(device)

    def truncate(self, length: int) -> None:
        """See ``HeldCache.truncate``."""
        self.length = length

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """See ``HeldCache.keep``."""
        if any(slot != start + place for place, slot in enumerate(slots)):
            source = upload(slots, self._all.device)
            self.move(source, torch.arange(start, start + len(slots), device=self._all.device))
        self.length = start + len(slots)

    def grow(self, slots: int) -> None:
        """See ``HeldCache.grow``."""
        if slots > self.capacity:
            self.graphs.drop()  # before memory is asked for, which there may not be
        held, self.length = self.length, 0
        self.reserve(slots, held)
        self.length = held
