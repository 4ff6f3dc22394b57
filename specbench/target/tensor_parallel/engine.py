"""Tensor parallelism for the fast engine: rank 0 drafts, decides and records, the others run what it says.

Before each piece of work rank 0 broadcasts one message: the tokens fed, where they hang, and which rows of the step
before were accepted. So no rank but rank 0 ever looks at a logit, a clock or a random number, and two sums a layer are
all that the devices exchange (Megatron-LM, Shoeybi et al. 2019; independent drafting on every rank is how others hung).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.target.engine import Laps, Silent, Verifier
from specbench.target.fast.compact import ForwardInput
from specbench.target.fast.engine import FastEngine
from specbench.target.fast.frame import Frame
from specbench.target.fast.graphs import Buckets, Graphs
from specbench.target.tensor_parallel.ranks import Ranks
from specbench.target.tensor_parallel.team import Book, Message, Op, Summed, Team, TeamError, compare
from specbench.target.tree import additive
from specbench.target.verify import require_fitting
from specbench.types import ROOT, Draft, Needs, Prefill, Step

APART = 1024  # [tokens] of the sequences that are read beside the request in one forward


class RankEngine(FastEngine):
    """What every rank is: the fast engine on a share of the weights, whose layers end in sums over the ranks."""

    def __init__(
        self,
        share: Any,
        context: int,
        eos: frozenset[int],
        max_nodes: int,
        team: Team,
        buckets: Buckets | None = None,
        pack: bool = True,
        check: bool = False,
    ) -> None:
        """share: see ``load_share``. check: compare the ranks' books after every step. Others: ``FastEngine``."""
        super().__init__(share, context, eos, max_nodes, buckets, pack)
        self._team = team
        self._graphs = Graphs(self.device)
        self._book = Book(context + self._widest) if check else None
        self._apart = self.compact.new_cache()
        self.compact.layers = [
            replace(layer, out=Summed(layer.out, team.total), down=Summed(layer.down, team.total))
            for layer in self.compact.layers
        ]

    def _read(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        found = super()._read(prompt, taps)
        if self._book:
            self._book.fed(0, prompt)
        return found

    def _target(self, frame: Frame, length: int, taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor], Tensor]:
        shown = (*taps, len(self.compact.layers)) if self._book else taps
        return super()._target(frame, length, shown)

    def _page(self) -> Tensor | None:
        """What the books of all ranks must agree on after a forward; None without them."""
        if self._book is None or self._outputs is None:
            return None
        width, length, _ = self._step
        self._book.fed(self.length, self._active.ids[: self.fed])
        states = self._outputs[1][len(self.compact.layers)]
        return self._book.page(self.length, width, length, self.fed, states)

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
            masks[kind] = additive(seen.cpu().numpy(), self.dtype)[0, 0].to(self.device)
        rows = ForwardInput(ids.to(self.device), at, place, len(ids), masks, prompt=True)
        states, _ = self.compact(rows, self._apart)
        return states[length - 1 :: length]


class Leader(RankEngine):
    """Rank 0. Its methods raise TeamError when a rank is lost, stuck or of another mind."""

    def __init__(self, *given: Any, ranks: Ranks, **options: Any) -> None:
        """ranks: the processes of the others. The rest: ``RankEngine``."""
        self._ranks = ranks
        super().__init__(*given, **options)

    def _begin_request(self) -> None:
        super()._begin_request()
        self._moves: list[int] = []  # rows that the others have still to move together

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Work that all ranks do: who is lost is named."""
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
        with self._together():
            if min(tokens, self.context) + self._widest + 1 > self.cache.capacity:
                self._team.tell(Message(Op.RESERVE, size=tokens))
            super().reserve(tokens)

    def prepare(self, needs: Needs, greedy: bool) -> None:
        """See ``Engine.prepare``."""
        with self._together():
            self._team.tell(Message(Op.PREPARE, taps=needs.hidden, flag=greedy, size=int(needs.rows)))
            super().prepare(needs, greedy)

    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """See ``Engine.start``."""
        with self._together():
            return super().start(prompt, limit, walk, needs, laps)

    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """See ``Engine.gaps``."""
        with self._together():
            return super().gaps(prompt, ids)

    def _read(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        ids = torch.tensor(prompt, dtype=torch.int64)
        self._team.tell(Message(Op.READ, size=len(ids), taps=tuple(taps)), ids)
        return super()._read(prompt, taps)

    def forward(self, draft: Draft) -> None:
        """See ``Engine.forward``; a draft that is none is found before anybody is told of it."""
        self._draft, self._parents = draft, require_fitting(draft, self.max_nodes)
        width = self.buckets.width(len(self._lay_out()))
        tokens = draft.tokens.tolist() if isinstance(draft.tokens, Tensor) else draft.tokens
        message = Message(
            op=Op.STEP,
            past=self.length,
            root=self._root,
            width=width,
            flag=self._needs.rows,
            taps=self._needs.hidden,
            moves=self._moves,
            tokens=tokens,
            parents=self._parents,
        )
        with self._together():
            self._team.tell(message)
            self._moves = []
            super().forward(draft)
            if (page := self._page()) is not None:
                compare(self._team.gather(page), self.dtype)

    def settle(self, left: int, late: Draft | None = None) -> Step:
        """See ``Engine.settle``."""
        with self._together():
            return super().settle(left, late)

    def _accept(self, logits: Tensor, slots: Tensor, late: Draft | None) -> tuple[list[int], list[int], bool]:
        found = super()._accept(logits, slots, late)
        self._note(found[0])
        return found

    def _judge(self, logits: Tensor, slots: Tensor, late: Draft | None) -> tuple[list[int], list[int], bool]:
        found = super()._judge(logits, slots, late)
        self._note(found[0])
        return found

    def _note(self, path: Sequence[int]) -> None:
        """Keep an accepted path's rows for the others."""
        nodes = self._layout.nodes
        rows = [node + 1 if nodes is None else int(nodes[node + 1]) for node in path]
        if rows != list(range(1, len(rows) + 1)):
            self._moves = rows
            if self._book:
                self._book.moved(self.length, rows)

    @torch.inference_mode()
    def logits(self, ids: Tensor) -> Tensor:
        """(rows, T) sequences, each from an empty cache -> (rows, V) logits after the last token."""
        length = ids.shape[1]
        found = []
        for some in ids.cpu().split(max(1, APART // length)):
            flat = some.reshape(-1).contiguous()
            with self._together():
                self._team.tell(Message(Op.LOGITS, size=len(flat), past=length), flat)
                found.append(self.compact.head(self._read_apart(flat, length)))
        return torch.cat(found)

    def close(self) -> None:
        """End the other ranks."""
        self._ranks.close(self._team)


class Follower(RankEngine):
    """Any other rank: it does what it hears, and nothing else."""

    _laps: Laps = Silent()

    @torch.inference_mode()
    def serve(self) -> None:
        """Until the end is said."""
        while (message := self._team.hear()).op is not Op.STOP:
            self.obey(message)

    def obey(self, message: Message) -> None:
        """One piece of work."""
        if message.op is Op.RESERVE:
            self.reserve(message.size)
        elif message.op is Op.PREPARE:
            self.prepare(Needs(hidden=message.taps, rows=bool(message.size)), message.flag)
        elif message.op is Op.READ:
            self._read(self._team.hear_ids(message.size).tolist(), message.taps)
        elif message.op is Op.LOGITS:
            self._read_apart(self._team.hear_ids(message.size), message.past)
        else:
            self.step(message)

    def step(self, message: Message) -> None:
        """A forward over what rank 0 feeds, behind what it accepted before."""
        if message.moves:
            self.keep(message.moves)
        self.length, self._root = message.past, message.root
        self._needs = Needs(rows=message.flag, hidden=message.taps)
        self._width = message.width
        count = len(message.tokens)
        chain = range(ROOT, count - 1)
        parents = chain if list(message.parents) == list(chain) else message.parents
        self.forward(Draft(message.tokens, parents))
        if (page := self._page()) is not None:
            self._team.gather(page)

    def keep(self, rows: Sequence[int]) -> None:
        """Move the accepted rows of the last frame together, as rank 0 has done."""
        source = torch.tensor(rows, device=self.device) + self.length
        self.cache.move(source, torch.arange(1, len(rows) + 1, device=self.device) + self.length)
        if self._book:
            self._book.moved(self.length, rows)

    def _make_room(self, width: int) -> None:
        """A sum over inputs of two sizes would end in neither's favour, so it is not begun."""
        if width != self._width:
            raise TeamError(f"it feeds {width} rows, rank 0 {self._width}")
        super()._make_room(width)

    def _record(self, taps: tuple[int, ...], greedy: bool) -> None:
        super()._record(taps, False)  # acceptance is rank 0's
