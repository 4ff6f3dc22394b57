"""Keys and values of one request in one tensor, so that one operation moves an accepted path in every layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROWTH = 256  # [slots] room is made in multiples of this, so that requests of like length share one allocation


class StaticKV:
    """Slots for tokens, written by index and read as views; the engine counts which of them are held.

    whole: (layers, 2K, slots, size) all of them, of each layer the keys' heads and the values'.
    """

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """heads: of keys (K). size: of a head."""
        self._shape = (layers, heads, size)
        self._options: Any = {"dtype": dtype, "device": device}
        self.capacity = 0  # [slots]
        self._all = self.whole = torch.empty(0)
        self.layers: list[Tensor] = []

    def reserve(self, slots: int, keep: int = 0) -> bool:
        """Make room for ``slots``; True if the memory is another now, which has the first ``keep`` slots' content.

        Where it cannot be had the error is torch's, and there is no room at all until the next call.
        """
        if slots <= self.capacity:
            return False
        layers, heads, size = self._shape
        capacity = -(-slots // GROWTH) * GROWTH
        held = self._all[..., :keep, :] if keep else None
        self.capacity, self.layers = 0, []
        self._all = self.whole = torch.empty(0)  # frees the old memory before taking the new
        self._all = torch.zeros(2 * layers, 1, heads, capacity, size, **self._options)
        if held is not None:
            self._all[..., :keep, :] = held
        self.whole = self._all.view(layers, 2 * heads, capacity, size)
        self.layers = list(self.whole.unbind(0))
        self.capacity = capacity
        return True

    def read(self, length: int, first: int = 0) -> tuple[Tensor, ...]:
        """Layer by layer the keys, then the values of the slots from ``first`` on: views (1, K, length, size)."""
        return self._all.narrow(3, first, length).unbind(0)

    def clear(self) -> None:
        """Zero every slot: what is masked must still be finite."""
        self._all.zero_()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots (m,) to slots (m,), in every layer at once; both may overlap."""
        flat = self._all.view(-1, self.capacity, self._shape[2])
        flat.index_copy_(1, target, flat.index_select(1, source))

    def nbytes(self) -> int:
        """Bytes held."""
        return self._all.nbytes
