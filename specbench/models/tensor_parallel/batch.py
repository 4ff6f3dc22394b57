"""Many requests on a model that several processes share: the others feed and move what rank 0's batch feeds and moves.

Each forward, each move and each cleared place is one message. Places, drafts, verification and random numbers are rank
0's alone, as with one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specbench.models.engine import SILENT, Laps
from specbench.models.fast.batch import FastBatch
from specbench.models.packed import Handle, PackedRows
from specbench.models.tensor_parallel.team import Message, Op, RankLog
from specbench.types import ROOT, Needs

if TYPE_CHECKING:
    from specbench.models.tensor_parallel.engine import Leader, RankEngine


class RankBatch(FastBatch):
    """A batch on a share of the weights. With the engine's check, the ranks are compared after every forward."""

    engine: RankEngine

    def __init__(self, engine: RankEngine, requests: int, tokens: int, laps: Laps = SILENT) -> None:
        """See ``Engine.batch``."""
        super().__init__(engine, requests, tokens, laps)
        self._log = RankLog(requests * self.room) if engine.check else None

    def feed(self, rows: PackedRows, taps: Sequence[int], wanted: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        """See ``SlotBatch``."""
        if self._log is None:
            return super().feed(rows, taps, wanted)
        last = len(self.engine.compact.layers)
        logits, hidden = super().feed(rows, (*taps, last), wanted)
        for number, handle in enumerate(rows.handles):
            self._log.enter(handle.place * self.room + handle.length, rows.ids[rows.slice_of(number)])
        slots = self.requests * self.room
        self.engine.compare(self._log.close_step(sum(self.lengths()), len(rows), wanted, slots, hidden[last]))
        return logits, hidden

    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """See ``SlotBatch``."""
        super().move(places, sources, targets)
        if self._log:
            base = np.array(places) * self.room
            self._log.move(base + sources, base + targets)


class LeaderBatch(RankBatch):
    """Rank 0's. Its methods raise TeamError when a rank is lost, stuck or differs."""

    engine: Leader

    def __init__(self, engine: Leader, requests: int, tokens: int, laps: Laps) -> None:
        """See ``Engine.batch``."""
        with engine.together():
            engine.team.send(Message(Op.BATCH, size=requests, past=tokens))
            super().__init__(engine, requests, tokens, laps)

    def feed(self, rows: PackedRows, taps: Sequence[int], wanted: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        """See ``SlotBatch``."""
        numbers = pack(rows, self.lengths())
        with self.engine.together():
            self.engine.team.send(Message(Op.FEED, size=len(numbers), past=wanted, taps=tuple(taps)), numbers)
            return super().feed(rows, taps, wanted)

    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """See ``SlotBatch``."""
        numbers = torch.tensor([*places, *sources, *targets], dtype=torch.int64)
        with self.engine.together():
            self.engine.team.send(Message(Op.MOVE, size=len(numbers)), numbers)
            super().move(places, sources, targets)

    def wipe(self, place: int) -> None:
        """See ``SlotBatch``."""
        with self.engine.together():
            self.engine.team.send(Message(Op.WIPE, size=place))
            super().wipe(place)

    def end(self) -> None:
        """See ``Batch``."""
        with self.engine.together():
            self.engine.team.send(Message(Op.END))
            super().end()


class FollowerBatch(RankBatch):
    """Any other rank's."""

    _lengths: Sequence[int] = ()

    def lengths(self) -> list[int]:
        """See ``SlotBatch``; rank 0's."""
        return [*self._lengths]

    def obey(self, message: Message, numbers: Sequence[int]) -> None:
        """One piece of work. numbers: (message.size,) that came with it."""
        if message.op is Op.FEED:
            rows, self._lengths = unpack(numbers, self.requests, self.engine.device)
            self.feed(rows, message.taps, message.past)
        elif message.op is Op.MOVE:
            third = len(numbers) // 3
            self.move(numbers[:third], numbers[third : 2 * third], numbers[2 * third :])
        elif message.op is Op.WIPE:
            self.wipe(message.size)
        else:
            self.end()


def pack(rows: PackedRows, lengths: Sequence[int]) -> Tensor:
    """Rows as one message, on the host. lengths: (requests,) [tokens] that each place holds.

    Returns int64: the number of requests that take part (B), lengths, B places, B numbers of rows, n ids, and the
    n - B parents.
    """
    places = [handle.place for handle in rows.handles]
    counts = [end - start for start, end in pairwise(rows.bounds)]
    parents = [parent for own in rows.parents for parent in own]
    return torch.tensor([len(places), *lengths, *places, *counts, *rows.ids.tolist(), *parents], dtype=torch.int64)


def unpack(numbers: Sequence[int], requests: int, device: torch.device) -> tuple[PackedRows, list[int]]:
    """Rows and lengths of a message of ``pack``."""
    given: Iterator[int] = iter(numbers)

    def take(count: int) -> list[int]:
        return [next(given) for _ in range(count)]

    count = next(given)
    lengths, places, counts = take(requests), take(count), take(count)
    ids, handles, bounds, parents = take(sum(counts)), [], [0], []
    for place, rows in zip(places, counts, strict=True):
        own = take(rows - 1)
        chain = range(ROOT, rows - 2)
        parents.append(chain if own == [*chain] else own)
        handles.append(Handle(Needs(), SILENT, place=place, length=lengths[place]))
        bounds.append(bounds[-1] + rows)
    return PackedRows(handles, parents, bounds, torch.tensor(ids, device=device)), lengths
