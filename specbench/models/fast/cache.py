"""Keys and values of one request in one tensor, so that one operation moves an accepted path in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.fast.graphs import Graphs
from specbench.models.transfer import upload

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


class _Held:
    """Slots from ``base`` of ``memory`` on, of which the first ``length`` are held."""

    length = 0
    base = 0
    memory: StaticKV

    def truncate(self, length: int) -> None:
        """See ``HeldCache.truncate``."""
        self.length = length

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """See ``HeldCache.keep``."""
        if any(slot != start + place for place, slot in enumerate(slots)):
            device, first = self.memory.whole.device, self.base + start
            source = upload([self.base + slot for slot in slots], device)
            self.memory.move(source, torch.arange(first, first + len(slots), device=device))
        self.length = start + len(slots)


class HeldKV(_Held, StaticKV):
    """A memory of its own. graphs: recorded calls on it; they are dropped when it moves."""

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """See ``StaticKV``."""
        super().__init__(layers, heads, size, dtype, device)
        self.graphs = Graphs(device)

    @property
    def memory(self) -> StaticKV:  # type: ignore[override]
        """Itself."""
        return self

    def grow(self, slots: int) -> None:
        """See ``HeldCache.grow``."""
        if slots > self.capacity:
            self.graphs.drop()  # before memory is asked for, which there may not be
        held, self.length = self.length, 0
        self.reserve(slots, held)
        self.length = held


class SharedKV(StaticKV):
    """One memory of several requests, each with ``room`` slots, so that one forward feeds them all."""

    def __init__(self, layers: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """See ``StaticKV``."""
        super().__init__(layers, heads, size, dtype, device)
        self.room = 0
        self._places: list[HeldPlace] = []

    def add(self) -> HeldPlace:
        """An empty place."""
        self._places.append(HeldPlace(self, len(self._places)))
        return self._places[-1]

    def make_room(self, slots: int) -> None:
        """``slots`` for each place; what they hold stays, here too where there is no memory for it."""
        room, count = max(self.room, -(-slots // GROWTH) * GROWTH), 1 << (len(self._places) - 1).bit_length()
        fresh = StaticKV(*self._shape, **self._options)
        fresh.reserve(room * count)
        for place in self._places:
            held = slice(place.base, place.base + place.length)
            if place.length:
                first = place.number * room
                fresh.whole[:, :, first : first + place.length] = self.whole[:, :, held]
        self._all, self.whole, self.layers, self.capacity = fresh._all, fresh.whole, fresh.layers, fresh.capacity
        self.room = room


class HeldPlace(_Held):
    """One request's."""

    memory: SharedKV

    def __init__(self, memory: SharedKV, number: int) -> None:
        self.memory, self.number = memory, number

    @property
    def base(self) -> int:  # type: ignore[override]
        """[slots] of the places before it."""
        return self.number * self.memory.room

    @property
    def capacity(self) -> int:
        """[slots]"""
        return self.memory.room if self.base < self.memory.capacity else 0

    def grow(self, slots: int) -> None:
        """See ``HeldCache.grow``."""
        self.memory.make_room(slots)
