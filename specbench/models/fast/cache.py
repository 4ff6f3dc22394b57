"""Keys and values in one tensor, so that one operation moves an accepted path in every layer.

The cache of the target (``StaticKV``), and those of draft models: of one request with the calls recorded on it, or of
several requests in one memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.fast.graphs import Graphs
from specbench.models.transfer import upload

GROWTH = 256  # [slots] room is made in multiples of this, so that requests of like length share one allocation


class StaticKV:
    """Slots for tokens, written by index and read as views; the engine counts which of them are in use.

    whole: (layers, 2K, slots, size) all slots; of each layer the heads of the keys, then those of the values.
    """

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """heads: of keys (K). size: of a head."""
        self._shape = (layers, heads, size)
        self._options: Any = {"dtype": dtype, "device": device}
        self.capacity = 0  # [slots]
        self._all = self.whole = torch.empty(0)
        self.layers: list[Tensor] = []

    def reserve(self, slots: int, keep: int = 0) -> bool:
        """Make room for ``slots``; True if the memory has moved. The content of the first ``keep`` slots is kept.

        If the allocation fails, the error is torch's, and there are no slots at all until the next call.
        """
        if slots <= self.capacity:
            return False
        layers, heads, size = self._shape
        capacity = -(-slots // GROWTH) * GROWTH
        kept = self._all[..., :keep, :] if keep else None
        self.capacity, self.layers = 0, []
        self._all = self.whole = torch.empty(0)  # frees the old memory before taking the new
        self._all = torch.zeros(2 * layers, 1, heads, capacity, size, **self._options)
        if kept is not None:
            self._all[..., :keep, :] = kept
        self.whole = self._all.view(layers, 2 * heads, capacity, size)
        self.layers = list(self.whole.unbind(0))
        self.capacity = capacity
        return True

    def read(self, length: int, first: int = 0) -> tuple[Tensor, ...]:
        """Return views (1, K, length, size) of slots from ``first`` on: layer by layer the keys, then the values."""
        return self._all.narrow(3, first, length).unbind(0)

    def clear(self) -> None:
        """Zero every slot: masked numbers must be finite, too."""
        self._all.zero_()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots (m,) to slots (m,), in every layer in one operation; both may overlap."""
        flat = self._all.view(-1, self.capacity, self._shape[2])
        flat.index_copy_(1, target, flat.index_select(1, source))

    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self._all.nbytes


class _CachedSlots:
    """The slots of one request in ``memory``, from ``base`` on; the first ``length`` of them are cached."""

    length = 0
    base = 0
    memory: StaticKV

    def truncate(self, length: int) -> None:
        """See ``DraftCache.truncate``."""
        self.length = length

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """See ``DraftCache.keep``."""
        if any(slot != start + place for place, slot in enumerate(slots)):
            device, first = self.memory.whole.device, self.base + start
            source = upload([self.base + slot for slot in slots], device)
            self.memory.move(source, torch.arange(first, first + len(slots), device=device))
        self.length = start + len(slots)


class CachedKV(_CachedSlots, StaticKV):
    """The cache of one request in its own memory. graphs: recorded calls on it; they are dropped when it moves."""

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers, heads, size, dtype, device)
        self.graphs = Graphs(device)

    @property
    def memory(self) -> StaticKV:  # type: ignore[override]
        """The cache itself."""
        return self

    def grow(self, slots: int) -> None:
        """See ``DraftCache.grow``."""
        if slots > self.capacity:
            self.graphs.drop()  # before more memory is allocated, which may fail
        length, self.length = self.length, 0
        self.reserve(slots, length)
        self.length = length


class SharedKV(StaticKV):
    """One memory of several requests, each with ``room`` slots, so that one forward feeds all of them."""

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers, heads, size, dtype, device)
        self.room = 0
        self._places: list[CachedPlace] = []

    def add(self) -> CachedPlace:
        """Add an empty place."""
        self._places.append(CachedPlace(self, len(self._places)))
        return self._places[-1]

    def make_room(self, slots: int) -> None:
        """Make room for ``slots`` in each place; cached tokens stay, also if there is not enough memory."""
        room, count = max(self.room, -(-slots // GROWTH) * GROWTH), 1 << (len(self._places) - 1).bit_length()
        fresh = StaticKV(*self._shape, **self._options)
        fresh.reserve(room * count)
        for place in self._places:
            if place.length:
                first = place.number * room
                cached = self.whole[:, :, place.base : place.base + place.length]
                fresh.whole[:, :, first : first + place.length] = cached
        self._all, self.whole, self.layers, self.capacity = fresh._all, fresh.whole, fresh.layers, fresh.capacity
        self.room = room


class CachedPlace(_CachedSlots):
    """The cache of one request in a shared memory."""

    memory: SharedKV

    def __init__(self, memory: SharedKV, number: int) -> None:
        self.memory, self.number = memory, number

    @property
    def base(self) -> int:  # type: ignore[override]
        """[slots] of the places before it."""
        return self.number * self.memory.room

    @property
    def capacity(self) -> int:
        """[slots] of the place."""
        return self.memory.room if self.base < self.memory.capacity else 0

    def grow(self, slots: int) -> None:
        """See ``DraftCache.grow``."""
        self.memory.make_room(slots)
