"""A batch of requests on one model: each request has a place with cache slots, a draft, and its own
random numbers.

A forward feeds the rows of its requests one after the other, packed or padded to sequences of one
length; a row sees its own request alone. Places, prompts in chunks and verification with one
read-back are the same for every engine, which adds the forward and the compaction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.engine import (
    Batch,
    Engine,
    Laps,
    Outcomes,
    Verifier,
    inferring,
    require_place,
)
from specbench.models.transfer import upload
from specbench.models.tree import (
    build_additive_mask,
    compute_depths,
    list_masked_chunks,
    mark_ancestors,
    require_order,
)
from specbench.models.verify import (
    ActiveRequest,
    continues,
    cut,
    find_top,
    read_with_top,
    require_finite,
)
from specbench.types import EMPTY, ROOT, CaseError, Draft, Needs, Prefill, Step, TopK

NOTHING = Needs()
NO_STATES: Mapping[int, Tensor] = {}


@dataclass(slots=True, eq=False)
class Handle(ActiveRequest):
    """A request of a batch."""

    prompt: Sequence[int] = ()
    left: int = 0  # [tokens] that it may still emit
    # its number in the batch: the lowest free one, so that the requests are adjacent
    place: int = ROOT
    asked: Needs = NOTHING  # what its last forward returns
    plain: Needs = NOTHING  # what a forward without a draft returns
    # [tokens] cached: of the prompt while it is read, then the context without its last one, the
    # root
    length: int = 0
    clean: bool = True  # its slots contain finite numbers
    refused: CaseError | None = None  # the error of its last draft, if it was not fed

    @property
    def prompt_read(self) -> int:
        """[tokens] of the prompt that have been read."""
        return min(self.length, len(self.prompt))


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The n rows of a forward: of each request its root, then its nodes; or a chunk of its prompt,
    as a chain.
    """

    handles: Sequence[Handle]
    parents: Sequence[Sequence[int]]  # of each request (N,), as in its draft
    bounds: Sequence[int]  # (B + 1,) where the rows of each begin, and n
    ids: Tensor  # (n,) int64

    def __len__(self) -> int:
        return self.bounds[-1]

    def slice_of(self, number: int) -> slice:
        """Return the rows of one request."""
        return slice(self.bounds[number], self.bounds[number + 1])

    def depths_of(self, number: int) -> list[int]:
        """Return the (N + 1,) depths of one request's rows, 0 = the root."""
        parents = self.parents[number]
        return (
            [*range(len(parents) + 1)]
            if isinstance(parents, range)
            else [0, *compute_depths(parents)]
        )


class PaddedRows:
    """Packed rows as k sequences of q tokens, one per place; between and after them is padding.

    Padding comes after the cached tokens of its place, so it overwrites none of them, and no other
    row sees it.

    places: from the first to the last one that takes part. numbers: (k, 1). slots, positions: (k,
    q). end: [slots] that are read of each place. nodes: (n,) index of each packed row among the k
    q.
    """

    def __init__(self, rows: PackedRows, lengths: Sequence[int], context: int) -> None:
        """lengths: [tokens] cached in each place of the batch.

        context: [tokens] of the model: nodes beyond it can never be accepted, but their position
        must exist.
        """
        taken = [handle.place for handle in rows.handles]
        first, self._rows = min(taken), rows
        self._sequences = [place - first for place in taken]
        self.places = slice(first, max(taken) + 1)
        self.numbers = np.arange(first, max(taken) + 1)[:, None]
        width = max(end - start for start, end in zip(rows.bounds, rows.bounds[1:], strict=False))
        self._depths = np.tile(np.arange(width), (len(self.numbers), 1))
        nodes = []
        for number, sequence in enumerate(self._sequences):
            own = rows.depths_of(number)
            self._depths[sequence, : len(own)] = own
            nodes.append(np.arange(len(own)) + sequence * width)
        self._cached, self.nodes = np.array(lengths[self.places])[:, None], np.concatenate(nodes)
        self.slots: np.ndarray = self._cached + np.arange(width)
        self.positions = np.minimum(self._cached + self._depths, context - 1)
        self.end = int(self.slots.max()) + 1

    def build_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Build the additive mask (k, 1, q, end): a row sees its context in the window, its
        ancestors and itself.
        """
        count, width = self.slots.shape
        column = np.arange(self.end)
        seen = np.repeat(column < self._cached[..., None], width, axis=1)
        seen |= self.slots[..., None] == column
        for number, sequence in enumerate(self._sequences):
            own, start = mark_ancestors(self._rows.parents[number]), self.slots[sequence, 0]
            seen[sequence, : len(own), start : start + len(own)] = own
        if window is not None:
            places = np.repeat(column[None], count, axis=0)
            np.put_along_axis(places, self.slots, self._cached + self._depths, axis=1)
            seen &= (self._cached + self._depths)[..., None] - places[:, None] < window
        return build_additive_mask(seen.reshape(-1, self.end), dtype).view(
            count, 1, width, self.end
        )


# Of each request the accepted nodes and the tokens to emit, None if a logit is not finite; and the
# rows' best tokens.
Verified = tuple[list[tuple[list[int], list[int]] | None], TopK | None]
NAN = float("nan")


class SlotBatch(Batch):
    """The batch of an engine with a model: each place has its own cache slots."""

    def __init__(self, engine: Engine, requests: int, tokens: int, laps: Laps) -> None:
        self.requests, self.tokens = requests, min(tokens, engine.context)
        self.room = self.tokens + engine.max_nodes + 1  # [slots] of a place
        self.fed = 0
        self.engine, self._laps = engine, laps
        self._open: dict[int, Handle] = {}  # by place
        # of the last forward, those whose draft was refused among them
        self._drafted: Sequence[Handle] = ()
        self._plain: Sequence[Handle] = ()  # of a forward by ``feed_plain`` that is not settled
        self._rows = PackedRows((), (), (0,), torch.empty(0))
        self._logits = torch.empty(0)
        self._hidden: Mapping[int, Tensor] = {}
        self._greedy = True  # of the last forward: every row's pick is its argmax

    lays_out = False  # greedy drafts whose parents are on the device, without reading them

    @abstractmethod
    def feed(
        self, rows: PackedRows, taps: Sequence[int], wanted: int
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Enqueue a forward: logits (wanted, V) of the last rows, and layer -> (n, D) hidden
        states.

        Row i of a request goes to slot ``length`` + i of its place.
        """

    def feed_plain(self, handles: list[Handle], drafts: Sequence[Draft | None]) -> bool:
        """Enqueue a forward for ``settle_plain``, with no work in Python for each request; False if
        not possible.
        """
        return False

    def settle_plain(self) -> Outcomes:
        """See ``settle``, after ``feed_plain``."""
        raise NotImplementedError

    @abstractmethod
    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy keys and values (m,) from slots to slots of the same place, all in one operation;
        both may overlap.
        """

    def accept_all(
        self, rows: PackedRows, logits: Tensor, top: TopK | None, picks: Tensor | None
    ) -> Verified | None:
        """Verify every draft and move the accepted paths, all in one call; None if not possible.

        picks: (n,) of the rows; None: their argmax. Returns ``top`` too, with its ids on the host
        if a method reads them there.
        """
        return None

    @abstractmethod
    def wipe(self, place: int) -> None:
        """Zero the slots of a place, where a request may have left numbers that are not finite."""

    @property
    @override
    def free(self) -> int:
        return self.requests - len(self._open)

    def lengths(self) -> list[int]:
        """[tokens] cached in each place."""
        found = [0] * self.requests
        for place, handle in self._open.items():
            found[place] = handle.length
        return found

    @override
    def open(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs) -> Handle:
        if len(prompt) + limit > self.tokens:
            raise CaseError(
                f"prompt of {len(prompt)} and answer of {limit} tokens; expected at most"
                f" {self.tokens} together, which a place in the batch has room for"
            )
        require_place(self)
        place = next(each for each in range(self.requests) if each not in self._open)
        handle = self._open[place] = Handle(
            needs, self._laps, prompt=prompt, left=limit, place=place
        )
        handle.plain, handle.walk = Needs(hidden=needs.hidden), self.engine.bound_walk(walk)
        return handle

    @torch.inference_mode()
    @override
    def close(self, handle: Handle) -> None:
        if self._open.get(handle.place) is handle:
            del self._open[handle.place]
            if not handle.clean or handle in self._plain:
                self.wipe(handle.place)

    @torch.inference_mode()
    @override
    def prefill(self, handle: Handle, most: int | None = None) -> Prefill | None:
        handle.clean = False
        end = len(handle.prompt) if most is None else min(handle.length + most, len(handle.prompt))
        for part in list_masked_chunks(end, handle.length):
            logits, hidden = self._read_chunk(handle, part.stop)
        if end < len(handle.prompt):
            return None
        prefill = handle.emit_first(logits, hidden)
        handle.clean, handle.left = True, handle.left - 1
        return prefill

    def _read_chunk(self, handle: Handle, end: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Read the prompt up to ``end``; what the method asks for is stored, except of the prompt's
        last chunk.
        """
        needs, chunk = handle.needs, handle.prompt[handle.length : end]
        rows = PackedRows(
            [handle],
            [range(ROOT, len(chunk) - 2)],
            [0, len(chunk)],
            upload(chunk, self.engine.device),
        )
        logits, hidden = self.feed(rows, needs.hidden, len(chunk) if needs.prompt_topk else 1)
        handle.length = end
        if end < len(handle.prompt):
            handle.keep_chunk(logits if needs.prompt_topk else None, hidden)
        return logits, hidden

    @inferring
    @override
    def forward(self, handles: list[Handle], drafts: Sequence[Draft | None]) -> None:
        if self.feed_plain(handles, drafts):
            self._laps.lap("forward")
            return
        self._plain = ()  # of a forward that raised an exception
        self._drafted, fed, most = handles, [], self.engine.max_nodes
        self._greedy = all(handle.walk.picks_best for handle in self._drafted)
        stay = self.lays_out and self._greedy
        for handle, draft in zip(handles, drafts, strict=True):
            handle.refused, handle.clean, handle.topk = None, False, None
            handle.asked = handle.needs if draft is not None else handle.plain
            try:
                handle.take(EMPTY if draft is None else draft, most, stay)
                if not isinstance(handle.parents, Tensor):
                    require_order(handle.parents)
                fed.append(handle)
            except CaseError as error:
                handle.refused = error
        self._rows = rows = self.pack(fed)
        self._laps.lap("prepare")
        if fed:
            asked = [handle.asked.hidden for handle in fed if handle.asked.hidden]
            self._logits, self._hidden = self.feed(
                rows, sorted({tap for taps in asked for tap in taps}), len(rows)
            )
        self.fed = len(rows)
        self._laps.lap("forward")

    def pack(self, handles: Sequence[Handle]) -> PackedRows:
        """Concatenate the rows of requests, of their last drafts."""
        # parts: ids on the device; ids: those behind them, on the host
        bounds, parts, ids, end = [0], [], [], 0
        for handle in handles:
            tokens = handle.draft.tokens
            ids.append(handle.root)
            if isinstance(tokens, Tensor):
                parts += [upload(ids, self.engine.device), tokens.to(self.engine.device)]
                ids = []
            else:
                ids += tokens
            end += 1 + len(tokens)
            bounds.append(end)
        rest = upload(ids, self.engine.device)
        packed = torch.cat([*parts, rest]) if parts else rest
        return PackedRows(handles, [handle.host_parents for handle in handles], bounds, packed)

    @inferring
    @override
    def settle(self, lates: Sequence[Draft | None] | None = None) -> Outcomes:
        if self._plain:
            outcomes = self.settle_plain()
            for number in outcomes.errors:
                self._plain[number].clean = False
            self._plain = ()
            self._laps.lap("verify")
            return outcomes
        back = (
            self._read_back(lates is not None)
            if self._rows.handles
            else _ReadBack([], [], None, None)
        )
        found: list[Step | CaseError] = []
        fed = iter(range(len(self._rows.handles)))
        for handle, late in zip(
            self._drafted, lates or repeat(None, len(self._drafted)), strict=True
        ):
            if handle.refused is not None:
                found.append(handle.refused)
                continue
            try:
                found.append(self._accept(handle, next(fed), back, late))
            except CaseError as error:
                found.append(error)
        if back.moves:
            self.move(*zip(*back.moves, strict=True))
        self._laps.lap("verify")
        return Outcomes(found)

    def _read_back(self, late: bool) -> _ReadBack:
        """Read the results back: the only wait for the device, except for drafts whose nodes were
        drawn.

        late: drafts may continue after those that were fed.
        """
        rows, logits, handles, picks = self._rows, self._logits, self._rows.handles, None
        top = find_top(logits, max([handle.asked.node_topk for handle in handles]))
        drawn = [] if self._greedy else [handle.is_drawn(None) for handle in handles]
        if not all(drawn) or self._greedy:
            picks = None if self._greedy else self._draw()
            if (self._greedy or not (late or any(drawn))) and (
                done := self.accept_all(rows, logits, top, picks)
            ):
                return _ReadBack([], [], None, done[1], done[0])
        peaks, best = logits.max(-1)
        # no pick is read where distributions are compared
        parts = [peaks, best if picks is None else picks]
        if any(isinstance(handle.draft.tokens, Tensor) for handle in handles):
            parts.append(rows.ids)
        read, top = read_with_top(parts, top, any(handle.asked.read_topk for handle in handles))
        return _ReadBack(
            read[0],
            [int(pick) for pick in read[1]],
            [*map(int, read[2])] if parts[2:] else None,
            top,
        )

    def _draw(self) -> Tensor:
        """Draw the rows' picks (n,), each by its own request's numbers; in one operation if all
        sample alike.
        """
        rows, walks = self._rows, [handle.walk for handle in self._rows.handles]
        depths = [rows.depths_of(number) for number in range(len(walks))]
        numbers = [walk.numbers(own) for walk, own in zip(walks, depths, strict=True)]
        if None not in numbers and all(walk.sampling == walks[0].sampling for walk in walks):
            return walks[0].draw(self._logits, [number for own in numbers if own for number in own])
        parts = map(rows.slice_of, range(len(walks)))
        return torch.cat([
            walk.pick(self._logits[part], own) for walk, own,
            part in zip(walks, depths, parts, strict=True)
        ])  # fmt: skip

    def _accept(self, handle: Handle, number: int, back: _ReadBack, late: Draft | None) -> Step:
        """Return the step of the request with the ``number``-th rows. Raises CaseError."""
        past, fed, hidden, kept = handle.length, None, NO_STATES, False
        if back.accepted:
            if (accepted := back.accepted[number]) is None:
                require_finite([NAN], self._logits.dtype)
            assert accepted is not None
            path, tokens = accepted
            if late is not None:
                kept = continues(late, len(path) == len(handle.draft), tokens[-1])
        else:
            part = self._rows.slice_of(number)
            require_finite(back.peaks[part], self._logits.dtype)
            if handle.is_drawn(late):
                path, tokens, kept = handle.verify_drawn(
                    self._logits[part], self._rows.ids[part], late
                )
            else:
                path, tokens, kept = handle.follow(
                    back.picks[part], back.ids[part] if back.ids else None, late
                )
        emitted, done = cut(tokens, self.engine.eos, handle.left)
        if not back.accepted:
            moved = enumerate(path[: len(emitted) - 1])
            back.moves += [
                (handle.place, past + 1 + node, past + 1 + to) for to, node in moved if node != to
            ]
        handle.length, handle.left, handle.clean = (
            past + len(emitted),
            handle.left - len(emitted),
            True,
        )
        if back.top is not None or self._hidden:
            part, needs = self._rows.slice_of(number), handle.asked
            if (k := needs.node_topk) and back.top is not None:
                handle.topk = TopK(back.top.ids[part, :k], back.top.logits[part, :k])
            hidden = {layer: self._hidden[layer][part] for layer in needs.hidden}
            fed = self._rows.ids[part] if needs.node_topk or hidden else None
        return handle.close_step(
            emitted, path, done, kept and len(emitted) == len(tokens), fed, hidden
        )


@dataclass(slots=True)
class _ReadBack:
    """The results of a forward's n rows: the largest logits, the picks, and the ids if some were on
    the device.

    moves: (place, source, target) of accepted nodes, in the order in which they are found.
    """

    peaks: list[float]
    picks: list[int]
    ids: list[int] | None
    top: TopK | None  # (n, k)
    # set if all was done in one call
    accepted: list[tuple[list[int], list[int]] | None] = field(default_factory=list)
    moves: list[tuple[int, int, int]] = field(default_factory=list)
