"""A draft model's keys and values: of one request with what is recorded on them, or of several in one memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.models.fast.graphs import Graphs
from specbench.models.fast.static_kv import GROWTH, StaticKV
from specbench.models.transfer import upload


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
