"""Tensor parallelism for the fast engine: rank 0 drafts, verifies and records; the others run its
forwards.

Before each piece of work rank 0 broadcasts one message: the tokens fed, their parents, and which
rows of the step before were accepted. So only rank 0 uses logits, clocks and random numbers, and
the devices exchange two sums a layer (Megatron-LM, Shoeybi et al. 2019). Ranks that draft
independently can differ, and then wait for each other.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.batch import Handle, PackedRows
from specbench.models.engine import SILENT, Laps
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.batch import FastBatch
from specbench.models.fast.compact import ForwardInput
from specbench.models.fast.core import STANDARD
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import FastRequest, TreeFrame
from specbench.models.tensor_parallel.team import (
    Op,
    RankLog,
    Ranks,
    Summed,
    Team,
    TeamError,
    require_equal_steps,
)
from specbench.models.tree import build_additive_mask
from specbench.types import ROOT, Draft, Needs


class RankBatch(FastBatch):
    """A batch on a share of the weights. With the engine's check, the ranks are compared after
    every forward.
    """

    engine: RankEngine

    def __init__(self, engine: RankEngine, requests: int, tokens: int, laps: Laps = SILENT) -> None:
        super().__init__(engine, requests, tokens, laps)
        self._log = RankLog(requests * self.room) if engine.check else None

    @override
    def feed(
        self, rows: PackedRows, taps: Sequence[int], wanted: int
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        if self._log is None:
            return super().feed(rows, taps, wanted)
        last = len(self.engine.compact.layers)
        logits, hidden = super().feed(rows, (*taps, last), wanted)
        for number, handle in enumerate(rows.handles):
            self._log.enter(
                handle.place * self.room + handle.length, rows.ids[rows.slice_of(number)]
            )
        slots = self.requests * self.room
        self.engine.compare(
            self._log.close_step(sum(self.lengths()), len(rows), wanted, slots, hidden[last])
        )
        return logits, hidden

    @override
    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        super().move(places, sources, targets)
        if self._log:
            base = np.array(places) * self.room
            self._log.move(base + sources, base + targets)


class LeaderBatch(RankBatch):
    """The batch of rank 0. Its methods raise TeamError when a rank is lost, stuck or differs."""

    engine: Leader

    def __init__(self, engine: Leader, requests: int, tokens: int, laps: Laps) -> None:
        with engine.together(Op.BATCH, [requests, tokens]):
            super().__init__(engine, requests, tokens, laps)

    @override
    def feed(
        self, rows: PackedRows, taps: Sequence[int], wanted: int
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        places, counts = (
            [handle.place for handle in rows.handles],
            [end - start for start, end in pairwise(rows.bounds)],
        )
        ids, parents = rows.ids.tolist(), chain(*rows.parents)
        with self.engine.together(
            Op.FEED, [wanted], taps, self.lengths(), places, counts, ids, parents
        ):
            return super().feed(rows, taps, wanted)

    @override
    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        with self.engine.together(Op.MOVE, places, sources, targets):
            super().move(places, sources, targets)

    @override
    def wipe(self, place: int) -> None:
        with self.engine.together(Op.WIPE, [place]):
            super().wipe(place)

    @override
    def end(self) -> None:
        with self.engine.together(Op.END):
            super().end()


class FollowerBatch(RankBatch):
    """The batch of any other rank. cached: [tokens] in each place, as rank 0 counts them."""

    cached: Sequence[int] = ()

    @override
    def lengths(self) -> list[int]:
        return [*self.cached]

    def follow(self, wanted: int, *lists: Sequence[int]) -> None:
        """Feed the rows of rank 0. lists: those of ``Op.FEED`` after the first."""
        taps, self.cached, places, counts, ids, parents = lists
        given = iter(parents)
        shapes = [list(islice(given, count - 1)) for count in counts]
        handles = [
            Handle(Needs(), SILENT, place=place, length=self.cached[place]) for place in places
        ]
        bounds = [0, *accumulate(counts)]
        rows = PackedRows(
            handles, [*map(_as_chain, shapes)], bounds, torch.tensor(ids, device=self.engine.device)
        )
        self.feed(rows, taps, wanted)


def _as_chain(parents: Sequence[int]) -> Sequence[int]:
    """Turn the parents of a chain into a range, which is laid out faster."""
    links = range(ROOT, len(parents) - 1)
    return links if parents == [*links] else parents


APART = 1024  # [tokens] of the sequences that one forward reads for ``Leader.logits``


class RankEngine(FastEngine):
    """The engine of every rank: the fast engine on a share of the weights, whose layers end in sums
    over the ranks.
    """

    lays_out = False  # a draft's parents are sent from the host

    def __init__(
        self,
        share: Any,
        *given: Any,
        team: Team,
        options: FastOptions = STANDARD,
        check: bool = False,
        **others: Any,
    ) -> None:
        """share: see ``load_share``. check: compare the ranks after every step. Others:
        ``FastEngine``.
        """
        # its layers end in sums over the ranks
        others["options"] = replace(options, compiled=False)
        super().__init__(share, *given, **others)
        self.team, self.check = team, check
        self._log = RankLog(self.context + self._widest) if check else None
        self._apart = self.compact.new_cache()
        self.compact.layers = [
            replace(layer, out=Summed(layer.out, team.add_up), down=Summed(layer.down, team.add_up))
            for layer in self.compact.layers
        ]

    @override
    def keep_prefix(self, tokens: int) -> int:
        return 0  # the ranks are sent whole prompts

    @override
    def read_prompt(
        self, prompt: Sequence[int], taps: Sequence[int], kept: int = 0
    ) -> tuple[Tensor, dict[int, Tensor]]:
        found = super().read_prompt(prompt, taps, kept)
        if self._log:
            self._log.enter(0, prompt)
        return found

    def compute(
        self, frame: TreeFrame, length: int, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """See ``FastEngine``; with the check, the last states are among the taps."""
        return super().compute(
            frame, length, (*taps, len(self.compact.layers)) if self._log else taps
        )

    def forward(self, draft: Draft) -> None:
        """See ``Engine.forward``; with the check, every rank sends the step's figures and rank 0
        compares them.
        """
        super().forward(draft)
        if self._log is None:
            return
        request = self.request
        width, length, _ = request.key
        self._log.enter(request.length, request.frame.ids[: self.fed])
        states = request.hidden[len(self.compact.layers)][: self.fed]
        self.compare(
            self._log.close_step(request.length, width, length, request.length + self.fed, states)
        )

    def compare(self, step: Tensor) -> None:
        """Raise TeamError on rank 0 where a rank's step (6,) is another one; see
        ``RankLog.close_step``.
        """
        steps = self.team.gather(step)
        if self.team.rank == 0:
            require_equal_steps(steps, self.dtype)

    def _read_apart(self, ids: Tensor, length: int) -> Tensor:
        """Return the states after the last token of sequences of ``length``, concatenated in one
        forward.
        """
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


Work = TypeVar("Work", bound=Callable[..., Any])


def _by_all_ranks(work: Work) -> Work:
    """Make a method of the engine one of ``Leader``, which names the rank that is lost."""

    @functools.wraps(work)
    def run(self: Leader, *given: Any, **options: Any) -> Any:
        with self.together():
            return work(self, *given, **options)

    return cast(Work, run)


class Leader(RankEngine):
    """Rank 0. Its methods raise TeamError when a rank is lost, stuck or differs."""

    def __init__(self, *given: Any, ranks: Ranks, **options: Any) -> None:
        """ranks: the processes of the others. The rest: ``RankEngine``."""
        self._ranks = ranks
        self._moves: list[int] = []  # rows that the others have still to move together
        super().__init__(*given, **options)

    @contextlib.contextmanager
    def together(self, op: Op | None = None, *lists: Iterable[int]) -> Iterator[None]:
        """Do work of all ranks: the others are sent a message first, and an error names the rank
        that is lost.
        """
        self._ranks.require_all()
        try:
            if op is not None:
                self.team.send(op, *lists)
            yield
        except (TeamError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            self._ranks.explain(error)
            raise
        self._ranks.require_all()

    start = _by_all_ranks(RankEngine.start)
    forward = _by_all_ranks(RankEngine.forward)
    settle = _by_all_ranks(RankEngine.settle)
    gaps = _by_all_ranks(RankEngine.gaps)

    @override
    def reserve(self, tokens: int) -> None:
        grows = self.count_slots(tokens) > self.cache.capacity
        with self.together(Op.RESERVE if grows else None, [tokens]):
            super().reserve(tokens)

    @override
    def prepare(self, needs: Needs, greedy: bool) -> None:
        with self.together(Op.PREPARE, [greedy, needs.rows], needs.hidden):
            super().prepare(needs, greedy)

    @override
    def read_prompt(
        self, prompt: Sequence[int], taps: Sequence[int], kept: int = 0
    ) -> tuple[Tensor, dict[int, Tensor]]:
        self._moves = []
        self.team.send(Op.READ, prompt, taps)
        return super().read_prompt(prompt, taps, kept)

    def announce(self, width: int) -> None:
        """Send the draft to the others; one that is not valid has raised before."""
        request = self.request
        tokens, needs = request.draft.tokens, request.needs
        numbers = request.length, request.root, width, needs.rows
        listed = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        self.team.send(Op.STEP, numbers, needs.hidden, self._moves, listed, request.host_parents)
        self._moves = []

    @override
    def batch(self, requests: int, tokens: int, laps: Laps = SILENT) -> LeaderBatch:
        return LeaderBatch(self, requests, tokens, laps)

    def note_accepted(self, path: Sequence[int]) -> None:
        """Keep an accepted path's rows for the others' next message."""
        if rows := self.request.layout.rows_to_move(path):
            self._moves = rows
            if self._log:
                self._log.move_behind(self.request.length, rows)

    @torch.inference_mode()
    def logits(self, ids: Tensor) -> Tensor:
        """(rows, T) sequences, each from an empty cache -> (rows, V) logits after the last
        token.
        """
        length = ids.shape[1]
        found = []
        for some in ids.cpu().split(max(1, APART // length)):
            flat = some.reshape(-1)
            with self.together(Op.LOGITS, [length], flat.tolist()):
                found.append(self.compact.head(self._read_apart(flat, length)))
        return torch.cat(found)

    def close(self) -> None:
        """End the other ranks, once no recording has their sums: a group of NCCL's cannot be left
        before.
        """
        self.drop_recordings()
        self._ranks.close(self.team)


class Follower(RankEngine):
    """Any other rank's engine: it does what rank 0's messages request. batched: the last batch that
    rank 0 opened.
    """

    batched: FollowerBatch

    @torch.inference_mode()
    def serve(self) -> None:
        """Work until rank 0 ends the run."""
        while (message := self.team.receive())[0] is not Op.STOP:
            self.obey(*message)
        self.drop_recordings()

    def obey(self, op: Op, lists: Sequence[list[int]]) -> None:
        """Do one piece of work. lists: see ``Op``."""
        numbers, *others = lists or [[]]
        if op is Op.RESERVE:
            self.reserve(*numbers)
        elif op is Op.PREPARE:
            greedy, rows = numbers
            self.prepare(Needs(hidden=tuple(others[0]), rows=bool(rows)), bool(greedy))
        elif op is Op.READ:
            self.read_prompt(numbers, others[0])
        elif op is Op.LOGITS:
            self._read_apart(torch.tensor(others[0]), *numbers)
        elif op is Op.STEP:
            self.step(numbers, *others)
        elif op is Op.BATCH:
            self.batched = FollowerBatch(self, numbers[0], numbers[1])
        elif op is Op.FEED:
            self.batched.follow(numbers[0], *others)
        elif op is Op.MOVE:
            self.batched.move(numbers, *others)
        elif op is Op.WIPE:
            self.batched.wipe(*numbers)
        else:
            self.batched.end()

    def step(self, *lists: Sequence[int]) -> None:
        """Run a forward over what rank 0 feeds, after moving what it accepted before. lists: those
        of ``Op.STEP``.
        """
        (past, root, self._width, rows), taps, moves, tokens, parents = lists
        if moves:
            self.keep(moves)
        self.request = FastRequest(Needs(rows=bool(rows), hidden=tuple(taps)), SILENT, root)
        self.request.length = past
        self.forward(Draft(tokens, _as_chain(parents)))

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
