"""Keys and values in one tensor, so that one operation moves an accepted path in every layer.

``StaticKV`` is the cache of the target. ``SharedKV`` is the cache of a draft model: one or several
requests have places in its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.fast.graphs import Graphs
from specbench.models.transfer import stored, upload

# [slots] capacity grows in multiples of this, so that requests of similar length share one
# allocation
GROWTH = 256


class StaticKV:
    """Slots for tokens, written by index and read as views; the engine counts which of them are in
    use.

    whole: (layers, 2K, slots, size) all slots; of each layer the heads of the keys, then those of
    the values. array: the same memory for compiled code, on a CPU.
    """

    def __init__(
        self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """heads: of keys (K). size: of a head."""
        self._shape = (layers, heads, size)
        self._options: Any = {"dtype": dtype, "device": device}
        self._allocate(0)

    def _allocate(self, capacity: int) -> None:
        """Take new memory of ``capacity`` slots; 0 frees the memory."""
        layers, heads, size = self._shape
        self._all = torch.zeros(2 * layers, 1, heads, capacity, size, **self._options)
        self.whole = self._all.view(layers, 2 * heads, capacity, size)
        self.array = stored(self.whole) if self.whole.device.type == "cpu" else None
        self.layers = list(self.whole.unbind(0))
        self.capacity = capacity  # [slots]

    def reserve(self, slots: int, keep: int = 0) -> bool:
        """Make room for ``slots``; True if the memory has moved. The content of the first ``keep``
        slots is kept.

        If the allocation fails, the error is torch's, and the cache has no slots until the next
        call.
        """
        if slots <= self.capacity:
            return False
        kept = self._all[..., :keep, :] if keep else None
        self._allocate(0)  # frees the old memory before taking the new
        self._allocate(-(-slots // GROWTH) * GROWTH)
        if kept is not None:
            self._all[..., :keep, :] = kept
        return True

    def read(self, length: int, first: int = 0) -> tuple[Tensor, ...]:
        """Return views (1, K, length, size) of slots from ``first`` on: layer by layer the keys,
        then the values.
        """
        return self._all.narrow(3, first, length).unbind(0)

    def clear(self, first: int = 0) -> None:
        """Zero every slot from ``first`` on: masked numbers must be finite, too."""
        self._all[..., first:, :].zero_()

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots (m,) to slots (m,), in every layer in one operation; both may overlap."""
        flat = self._all.view(-1, self.capacity, self._shape[2])
        flat.index_copy_(1, target, flat.index_select(1, source))

    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self._all.nbytes


class SharedKV(StaticKV):
    """One memory of the requests of a draft model, each with ``room`` slots, so that one forward
    feeds all of them.
    """

    def __init__(
        self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers, heads, size, dtype, device)
        self.room = 0
        self._places: list[CachedPlace] = []

    def add(self) -> CachedPlace:
        """Add an empty place."""
        self._places.append(CachedPlace(self, len(self._places), Graphs(self._options["device"])))
        return self._places[-1]

    def make_room(self, slots: int) -> None:
        """Make room for ``slots`` in each place; cached tokens stay, also if there is not enough
        memory.
        """
        room, count = (
            max(self.room, -(-slots // GROWTH) * GROWTH),
            1 << (len(self._places) - 1).bit_length(),
        )
        cached = {place: self.whole[:, :, place.base : place.base + place.length]
                  for place in self._places if place.length}  # fmt: skip
        for place in self._places:
            place.graphs.drop()  # before more memory is allocated, which may fail
        if not cached:
            self._allocate(0)
        self._allocate(room * count)
        self.room = room
        for place, kept in cached.items():
            self.whole[:, :, place.base : place.base + place.length] = kept


class CachedPlace:
    """The cache of one request in a shared memory, which begins at ``base``; its first ``length``
    slots are cached.

    graphs: recorded calls on it; they are dropped when the memory moves.
    """

    def __init__(self, memory: SharedKV, number: int, graphs: Graphs) -> None:
        self.memory, self.number, self.graphs, self.length = memory, number, graphs, 0

    @property
    def base(self) -> int:
        """[slots] of the places before it."""
        return self.number * self.memory.room

    @property
    def capacity(self) -> int:
        """[slots] of the place."""
        return self.memory.room if self.base < self.memory.capacity else 0

    def grow(self, slots: int) -> None:
        """Make room for ``slots``; cached tokens stay."""
        self.memory.make_room(slots)

    def truncate(self, length: int) -> None:
        """Forget every token from ``length`` on."""
        self.length = length

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """Keep only ``slots`` (absolute, in path order) of the tokens from ``start`` on, moved
        together.
        """
        if any(slot != start + place for place, slot in enumerate(slots)):
            device, first = self.memory.whole.device, self.base + start
            source = upload([self.base + slot for slot in slots], device)
            self.memory.move(source, torch.arange(first, first + len(slots), device=device))
        self.length = start + len(slots)
