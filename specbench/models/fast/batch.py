"""Many requests through the compact forward: their rows are packed, and each has a stretch of one cache's slots.

So one product reads the weights for the rows of all, and one operation moves all accepted paths. Attention is to each
request's own slots: in torch as a padded batch of sequences, in compiled code request by request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specbench.models.batch import Accepted, SlotBatch
from specbench.models.engine import Laps
from specbench.models.fast.attention import PlacesMask
from specbench.models.fast.compact import ForwardInput
from specbench.models.fast.host.forward import SHORT, PackedLayout
from specbench.models.fast.layout import mark_reach
from specbench.models.fast.prompt import read_prompt
from specbench.models.packed import PackedRows
from specbench.models.padded import PaddedRows
from specbench.models.transfer import upload
from specbench.models.verify import require_finite

NAN = float("nan")

if TYPE_CHECKING:
    from specbench.models.fast.engine import FastEngine


class FastBatch(SlotBatch):
    """The fast engine's. On a GPU nothing is recorded: packed rows have the widths that they have."""

    engine: FastEngine

    def __init__(self, engine: FastEngine, requests: int, tokens: int, laps: Laps) -> None:
        """See ``Batch``."""
        super().__init__(engine, requests, tokens, laps)
        self.cache = engine.compact.new_cache()
        self.cache.reserve(requests * self.room)
        self._layout: PackedLayout | None = None  # of the last forward, where it was compiled

    def feed(self, rows: PackedRows, taps: Sequence[int], wanted: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        """See ``Batch``."""
        engine, handle, alone = self.engine, rows.handles[0], len(rows.handles) == 1
        long = alone and len(rows) > SHORT
        self._layout = None
        if engine.compiled and not long:
            self._layout = engine.compiled.lay_out(rows, self.room)
            return engine.compiled.feed_packed(self.cache, rows.ids, self._layout, wanted, taps)
        fresh = alone and handle.length == 0
        inputs = engine.list_prompt_inputs(rows.ids, handle.place * self.room) if fresh else iter([self._lay_out(rows)])
        states, hidden = read_prompt(engine.compact, self.cache, inputs, len(rows), tuple(taps))
        return engine.compact.head(states[-wanted:]), hidden

    def accept_greedily(self, rows: PackedRows, logits: Tensor) -> Accepted | None:
        """See ``SlotBatch``."""
        compiled, layout = self.engine.compiled, self._layout
        if compiled is None or layout is None:
            return None
        moved = max(1, int(layout.reach.max()))
        for number, handle in enumerate(rows.handles):
            if handle.draft.passenger is not None:
                part = rows.slice_of(number)
                layout.reach[part] = mark_reach(layout.reach[part], rows.parents[number], handle.draft.passenger)
        found = compiled.accept_packed(logits, rows.ids, layout, self.cache, moved)

        def read(number: int) -> tuple[list[int], list[int]]:
            numbers = found[number]
            count = numbers[0]
            if count < 0:
                require_finite([NAN], logits.dtype)
            return numbers[2 + moved : 2 + moved + count], [*numbers[2 : 2 + count], numbers[1]]

        return read

    def _lay_out(self, rows: PackedRows) -> ForwardInput:
        """The input of torch's forward."""
        engine, device = self.engine, self.engine.device
        padded = PaddedRows(rows, self.lengths(), engine.context)
        laid = np.zeros(padded.slots.size, dtype=np.int64)
        laid[padded.nodes] = np.arange(len(rows))
        at = upload(laid, device), upload(padded.nodes, device)
        groups, masks = engine.compact.groups, {}
        for kind, window in engine.windows.items():
            seen = padded.build_mask(window, engine.dtype).to(device).repeat(1, 1, groups, 1)
            masks[kind] = PlacesMask(self.room, padded.places, padded.end, *at, seen)
        slots = (padded.slots + padded.numbers * self.room).reshape(-1)[padded.nodes]
        positions = padded.positions.reshape(-1)[padded.nodes]
        used = self.requests * self.room
        return ForwardInput(rows.ids, upload(positions, device), upload(slots, device), used, masks)

    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """See ``Batch``."""
        base, device = np.array(places) * self.room, self.engine.device
        self.cache.move(upload(base + sources, device), upload(base + targets, device))

    def wipe(self, place: int) -> None:
        """See ``Batch``."""
        self.cache.whole[:, :, place * self.room : (place + 1) * self.room] = 0

    def nbytes(self) -> int:
        """See ``Batch``."""
        return self.cache.nbytes()

    def end(self) -> None:
        """See ``Batch``."""
        self.cache = self.engine.compact.new_cache()
