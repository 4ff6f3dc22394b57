"""Tensor parallelism for the fast engine: rank 0 drafts, verifies and records; the others run its forwards.

Before each piece of work rank 0 broadcasts one message: the tokens fed, their parents, and which rows of the step
before were accepted. So only rank 0 uses logits, clocks and random numbers, and the devices exchange two sums a layer
(Megatron-LM, Shoeybi et al. 2019). Ranks that draft independently can differ, and then wait for each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.models.batch import Handle, PackedRows
from specbench.models.engine import SILENT, Laps, Verifier
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.compact import ForwardInput
from specbench.models.fast.engine import STANDARD, FastBatch, FastEngine
from specbench.models.fast.frame import FastRequest, Frame
from specbench.models.fast.graphs import Buckets
from specbench.models.tensor_parallel.team import (
    Message,
    Op,
    RankLog,
    Ranks,
    Summed,
    Team,
    TeamError,
    require_equal_steps,
)
from specbench.models.tree import build_additive_mask
from specbench.types import ROOT, Draft, Needs, Prefill, Step


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


APART = 1024  # [tokens] of the sequences that are read with the request in one forward


class RankEngine(FastEngine):
    """The engine of every rank: the fast engine on a share of the weights, whose layers end in sums over the ranks."""

    lays_out = False  # a draft's parents are sent from the host

    def __init__(
        self,
        share: Any,
        context: int,
        eos: frozenset[int],
        max_nodes: int,
        team: Team,
        buckets: Buckets | None = None,
        options: FastOptions = STANDARD,
        check: bool = False,
    ) -> None:
        """share: see ``load_share``. check: compare the ranks after every step. Others: ``FastEngine``."""
        options = replace(options, compiled=False)  # its layers end in sums over the ranks
        super().__init__(share, context, eos, max_nodes, buckets, options)
        self.team, self.check = team, check
        self._log = RankLog(context + self._widest) if check else None
        self._apart = self.compact.new_cache()
        self.compact.layers = [
            replace(layer, out=Summed(layer.out, team.add_up), down=Summed(layer.down, team.add_up))
            for layer in self.compact.layers
        ]

    def read_prompt(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """See ``FastEngine``."""
        found = super().read_prompt(prompt, taps)
        if self._log:
            self._log.enter(0, prompt)
        return found

    def compute(self, frame: Frame, length: int, taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """See ``FastEngine``; with the check, the last states are among the taps."""
        return super().compute(frame, length, (*taps, len(self.compact.layers)) if self._log else taps)

    def forward(self, draft: Draft) -> None:
        """See ``Engine.forward``; with the check, every rank sends the step's figures and rank 0 compares them."""
        super().forward(draft)
        if self._log is None:
            return
        request = self.request
        width, length, _ = request.key
        self._log.enter(request.length, request.frame.ids[: self.fed])
        states = request.hidden[len(self.compact.layers)][: self.fed]
        self.compare(self._log.close_step(request.length, width, length, request.length + self.fed, states))

    def compare(self, step: Tensor) -> None:
        """Raise TeamError on rank 0 where a rank's step (6,) is another one; see ``RankLog.close_step``."""
        steps = self.team.gather(step)
        if self.team.rank == 0:
            require_equal_steps(steps, self.dtype)

    def _read_apart(self, ids: Tensor, length: int) -> Tensor:
        """States after the last token of sequences of ``length``, laid behind each other in one forward."""
        self._apart.reserve(len(ids))
        place = torch.arange(len(ids), device=self.device)
        row, at = place // length, place % length
        masks: dict[str, Tensor | None] = {}
        for kind, window in self.windows.items():
            seen = (row[:, None] == row) & (place[:, None] >= place)
            if window is not None:
                seen &= at[:, None] - at < window
            masks[kind] = build_additive_mask(seen.cpu().numpy(), self.dtype)[0, 0].to(self.device)
        rows = ForwardInput(ids.to(self.device), at, place, len(ids), masks, prompt=True)
        states, _ = self.compact(rows, self._apart)
        return states[length - 1 :: length]


class Leader(RankEngine):
    """Rank 0. Its methods raise TeamError when a rank is lost, stuck or differs."""

    def __init__(self, *given: Any, ranks: Ranks, **options: Any) -> None:
        """ranks: the processes of the others. The rest: ``RankEngine``."""
        self._ranks = ranks
        self._moves: list[int] = []  # rows that the others have still to move together
        super().__init__(*given, **options)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Work of all ranks: an error names the rank that is lost."""
        self._ranks.require_all()
        try:
            yield
        except (TeamError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            self._ranks.explain(error)
            raise
        self._ranks.require_all()

    def reserve(self, tokens: int) -> None:
        """See ``Engine.reserve``."""
        with self.together():
            if self.count_slots(tokens) > self.cache.capacity:
                self.team.send(Message(Op.RESERVE, size=tokens))
            super().reserve(tokens)

    def prepare(self, needs: Needs, greedy: bool) -> None:
        """See ``Engine.prepare``."""
        with self.together():
            self.team.send(Message(Op.PREPARE, taps=needs.hidden, flag=greedy, size=int(needs.rows)))
            super().prepare(needs, greedy)

    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """See ``Engine.start``."""
        with self.together():
            return super().start(prompt, limit, walk, needs, laps)

    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """See ``Engine.gaps``."""
        with self.together():
            return super().gaps(prompt, ids)

    def read_prompt(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """See ``FastEngine``."""
        self._moves = []
        ids = torch.tensor(prompt, dtype=torch.int64)
        self.team.send(Message(Op.READ, size=len(ids), taps=tuple(taps)), ids)
        return super().read_prompt(prompt, taps)

    def forward(self, draft: Draft) -> None:
        """See ``Engine.forward``."""
        with self.together():
            super().forward(draft)

    def announce(self, width: int) -> None:
        """Send the draft to the others; one that is not valid has raised before."""
        request = self.request
        tokens = request.draft.tokens
        message = Message(
            op=Op.STEP,
            past=request.length,
            root=request.root,
            width=width,
            flag=request.needs.rows,
            taps=request.needs.hidden,
            moves=self._moves,
            tokens=tokens.tolist() if isinstance(tokens, Tensor) else tokens,
            parents=request.host_parents,
        )
        self.team.send(message)
        self._moves = []

    def batch(self, requests: int, tokens: int, laps: Laps = SILENT) -> LeaderBatch:
        """See ``Engine.batch``."""
        return LeaderBatch(self, requests, tokens, laps)

    def settle(self, left: int, late: Draft | None = None) -> Step:
        """See ``Engine.settle``."""
        with self.together():
            return super().settle(left, late)

    def note_accepted(self, path: Sequence[int]) -> None:
        """Keep an accepted path's rows for the others' next message."""
        if rows := self.request.layout.rows_to_move(path):
            self._moves = rows
            if self._log:
                self._log.move_behind(self.request.length, rows)

    @torch.inference_mode()
    def logits(self, ids: Tensor) -> Tensor:
        """(rows, T) sequences, each from an empty cache -> (rows, V) logits after the last token."""
        length = ids.shape[1]
        found = []
        for some in ids.cpu().split(max(1, APART // length)):
            flat = some.reshape(-1).contiguous()
            with self.together():
                self.team.send(Message(Op.LOGITS, size=len(flat), past=length), flat)
                found.append(self.compact.head(self._read_apart(flat, length)))
        return torch.cat(found)

    def close(self) -> None:
        """End the other ranks, once no recording holds their sums: no group of NCCL's can be left before."""
        self.drop_recordings()
        self._ranks.close(self.team)


class Follower(RankEngine):
    """Any other rank: it does what rank 0's messages say. batched: the last batch that rank 0 opened."""

    batched: FollowerBatch

    @torch.inference_mode()
    def serve(self) -> None:
        """Work until rank 0 ends the run."""
        while (message := self.team.receive()).op is not Op.STOP:
            self.obey(message)
        self.drop_recordings()

    def obey(self, message: Message) -> None:
        """One piece of work."""
        if message.op is Op.RESERVE:
            self.reserve(message.size)
        elif message.op is Op.PREPARE:
            self.prepare(Needs(hidden=message.taps, rows=bool(message.size)), message.flag)
        elif message.op is Op.READ:
            self.read_prompt(self.team.receive_ids(message.size).tolist(), message.taps)
        elif message.op is Op.LOGITS:
            self._read_apart(self.team.receive_ids(message.size), message.past)
        elif message.op is Op.BATCH:
            self.batched = FollowerBatch(self, message.size, message.past)
        elif message.op is Op.STEP:
            self.step(message)
        else:
            numbers = message.op in (Op.FEED, Op.MOVE)
            self.batched.obey(message, self.team.receive_ids(message.size).tolist() if numbers else ())

    def step(self, message: Message) -> None:
        """A forward over what rank 0 feeds, behind what it accepted before."""
        if message.moves:
            self.keep(message.moves)
        self.request = FastRequest(Needs(rows=message.flag, hidden=message.taps), SILENT, message.root)
        self.request.length, self._width = message.past, message.width
        count = len(message.tokens)
        chain = range(ROOT, count - 1)
        parents = chain if list(message.parents) == list(chain) else message.parents
        self.forward(Draft(message.tokens, parents))

    def keep(self, rows: Sequence[int]) -> None:
        """Move the accepted rows of the last frame together, as rank 0 has done."""
        start = self.request.length
        source = torch.tensor(rows, device=self.device) + start
        self.cache.move(source, torch.arange(1, len(rows) + 1, device=self.device) + start)
        if self._log:
            self._log.move_behind(start, rows)

    def announce(self, width: int) -> None:
        """A sum over inputs of two sizes would be wrong on every rank, so it is not begun."""
        if width != self._width:
            raise TeamError(f"it feeds {width} rows, rank 0 {self._width}")

    def record(self, taps: tuple[int, ...], greedy: bool) -> None:
        """See ``FastEngine``; acceptance is rank 0's."""
        super().record(taps, False)
