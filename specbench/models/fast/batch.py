"""Batches of the fast engine: packed rows of several requests, by compiled code, by torch, or
recorded.

Where our kernel attends, a step of a batch is two recorded calls, as a step of one request is: the
forward over a frame of packed rows, and acceptance. A frame is of a total number of rows, whoever
takes part: which rows are whose, where their context is and which tile of attention reads it is
content of its buffers, sent in one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.batch import Handle, PackedRows, PaddedRows, SlotBatch, Verified
from specbench.models.engine import Laps, Outcomes
from specbench.models.fast.cache import StaticKV
from specbench.models.fast.compact import ForwardInput, read_prompt
from specbench.models.fast.core import FastCore
from specbench.models.fast.frame import Buffer
from specbench.models.fast.graphs import Frames, Graphs, many_recordings
from specbench.models.fast.host.forward import SHORT, UNLIMITED, PackedLayout
from specbench.models.fast.layout import mark_reach
from specbench.models.fast.masks import PlacesMask, TreeMask, count_words
from specbench.models.transfer import upload
from specbench.models.verify import explain_infinite, read_with_top
from specbench.types import ROOT, CaseError, Draft, Step, TopK

# Rows of a batch's forwards beyond those of one draft. More are not recorded: computing takes
# longer than launching.
WIDE = (512, 768, 1024)
ON_HOST = (range, list)  # the parents of a draft
FAR = 1 << 30  # [positions] a window that no row leaves


class PackedOutcomes(Outcomes):
    """The outcomes of greedy requests, from one list of numbers: a step is made when it is read."""

    def __init__(
        self, numbers: list[int], requests: int, total: int = 0, failed: int = 0, ended: int = 0
    ) -> None:
        """Numbers and the sums after them: of ``CompiledForward.accept_packed``."""
        self.steps, self.errors = [], {}
        self._numbers, self._requests, self._total, self.failed = numbers, requests, total, failed
        self.ended = [each for each in range(requests) if numbers[requests + each]] if ended else []

    def explain(self, error: CaseError) -> None:
        """Enter the error of the requests that failed."""
        self.errors = {
            number: error for number in range(self._requests) if not self._numbers[number]
        }

    @override
    def __len__(self) -> int:
        return self._requests

    @override
    def __getitem__(self, number: Any) -> Any:
        if number >= self._requests:
            raise IndexError(number)
        if (found := self.read(number)) is None:
            return self.errors[number]
        root, done = (self._numbers[row * self._requests + number] for row in (2, 1))
        return Step(root, tuple(found[1]), tuple(found[0]), bool(done))

    def read(self, number: int) -> tuple[list[int], list[int]] | None:
        """Return the accepted nodes of a request and the tokens that it emits; None if its logits
        are not finite.
        """
        numbers, apart = self._numbers, self._requests
        if not (count := numbers[number]):
            return None
        first, end = 3 * apart + number, (2 + 2 * count) * apart
        return numbers[first + apart : end : 2 * apart], numbers[first : end : 2 * apart]

    @override
    def count_tokens(self, number: int) -> int:
        return self._numbers[number]

    @override
    def enter(self, contexts: Sequence[list[int]]) -> int:
        numbers, apart = self._numbers, self._requests
        if len(numbers) == 4 * apart and not self.failed:  # one token each
            for context, token in zip(contexts, numbers[3 * apart :], strict=True):
                context.append(token)
            return self._total
        for number, (context, count) in enumerate(zip(contexts, numbers, strict=False)):
            context += numbers[3 * apart + number : (2 + 2 * count) * apart : 2 * apart]
        return self._total


class Company:
    """The requests of plain steps, one after the other, and their state, which their handles have
    only after ``save``.

    firsts: (B,) of each the first of its slots. state: (3, B), see ``kernels.pack``.
    """

    def __init__(self, handles: Sequence[Handle], room: int) -> None:
        """room: [slots] of a place."""
        self.handles = [*handles]
        self.firsts = np.array([handle.place * room for handle in handles], dtype=np.int64)
        needs = [handle.needs for handle in handles]
        read = any(each.hidden or each.node_topk or each.concurrent for each in needs)
        self.fits = not read and all(handle.walk.picks_best for handle in handles)
        self.state = np.empty((3, len(handles)), dtype=np.int64)
        self._loaded = False

    def load(self) -> None:
        """Read the state from the handles."""
        if not self._loaded:
            self.state[:] = np.array(
                [(each.root, each.length, each.left) for each in self.handles]
            ).T
            self._loaded = True

    def save(self) -> None:
        """Write the state to the handles."""
        if self._loaded:
            for handle, own in zip(self.handles, self.state.T.tolist(), strict=True):
                handle.root, handle.length, handle.left = own
            self._loaded = False


class FastBatch(SlotBatch):
    """The batch of the fast engine, unrecorded: packed rows have the widths that they have."""

    engine: FastCore

    def __init__(self, engine: FastCore, requests: int, tokens: int, laps: Laps) -> None:
        super().__init__(engine, requests, tokens, laps)
        self.cache = self.take_cache()
        self._layout: PackedLayout | None = None  # of the last forward, where it was compiled
        self._company: Company | None = None  # of the last forward by ``feed_plain``
        self._eos = np.array(sorted(engine.eos), dtype=np.int64)

    def take_cache(self) -> StaticKV:
        """Return a cache with the slots of all places."""
        cache = self.engine.compact.new_cache()
        cache.reserve(self.requests * self.room)
        return cache

    @override
    def feed(
        self, rows: PackedRows, taps: Sequence[int], wanted: int
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        engine, handle, alone = self.engine, rows.handles[0], len(rows.handles) == 1
        long = alone and len(rows) > SHORT
        self._layout = None
        if engine.compiled and not long:
            self._layout = engine.compiled.lay_out(rows, self.room)
            return engine.compiled.feed_packed(self.cache, self._layout, wanted, taps)
        fresh = alone and handle.length == 0
        inputs = (
            engine.list_prompt_inputs(rows.ids, handle.place * self.room)
            if fresh
            else iter([self._lay_out(rows)])
        )
        states, hidden = read_prompt(engine.compact, self.cache, inputs, len(rows), tuple(taps))
        return engine.compact.head(states[-wanted:]), hidden

    @override
    def accept_all(
        self, rows: PackedRows, logits: Tensor, top: TopK | None, picks: Tensor | None
    ) -> Verified | None:
        compiled, layout = self.engine.compiled, self._layout
        if compiled is None or layout is None:
            return None
        for number, handle in enumerate(rows.handles):
            if handle.draft.passenger is not None:
                part = rows.slice_of(number)
                layout.reach[part] = mark_reach(
                    layout.reach[part], rows.parents[number], handle.draft.passenger
                )
        state = np.full((3, len(rows.handles)), UNLIMITED)
        numbers = compiled.accept_packed(logits, layout, self.cache, picks, state)[0]
        outcomes = PackedOutcomes(numbers, state.shape[1])
        return [outcomes.read(number) for number in range(len(outcomes))], top

    @override
    def feed_plain(self, handles: list[Handle], drafts: Sequence[Draft | None]) -> bool:
        compiled, company = self.engine.compiled, self._company
        if compiled is None:
            return False
        if company is None or handles != company.handles:
            self.sync()
            company = self._company = Company(handles, self.room)
        most, whole, counts, tokens, parents = (
            0,
            self.engine.max_nodes,
            list[int](),
            list[int](),
            list[int](),
        )
        for draft in drafts if company.fits else ():
            if draft is None or not (nodes := len(own := draft.tokens)):
                counts.append(0)
                continue
            above = draft.parents
            if (
                type(own) is not list
                or type(above) not in ON_HOST
                or nodes != len(above)
                or nodes > whole
            ):
                break
            if draft.passenger is not None or draft.probs is not None:
                break
            counts.append(nodes)
            tokens += own
            parents += above
            most = max(most, nodes)
        if len(counts) < len(handles) or not handles:
            self.sync()
            return False
        self._laps.lap("prepare")
        company.load()
        self._layout = layout = compiled.pack(
            [*counts, *tokens, *parents], most, company.firsts, company.state
        )
        if not layout.depth:
            self.sync()
            return False
        self._plain = handles
        self.fed = len(layout.ids)
        self._logits, _ = compiled.feed_packed(self.cache, layout, self.fed, ())
        return True

    @override
    def settle_plain(self) -> Outcomes:
        compiled, company, layout = self.engine.compiled, self._company, self._layout
        assert compiled is not None
        assert company is not None
        assert layout is not None
        numbers, *sums = compiled.accept_packed(
            self._logits, layout, self.cache, None, company.state, self._eos
        )
        outcomes = PackedOutcomes(numbers, len(company.handles), *sums)
        if outcomes.failed:
            outcomes.explain(explain_infinite(self._logits.dtype))
        return outcomes

    def sync(self) -> None:
        """Write to the handles what plain steps have changed."""
        if self._company is not None:
            self._company.save()

    @override
    def lengths(self) -> list[int]:
        self.sync()
        return super().lengths()

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

    @override
    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        base, device = np.array(places) * self.room, self.engine.device
        self.cache.move(upload(base + sources, device), upload(base + targets, device))

    @override
    def wipe(self, place: int) -> None:
        self.cache.whole[:, :, place * self.room : (place + 1) * self.room] = 0

    @override
    def nbytes(self) -> int:
        return self.cache.nbytes()

    @override
    def end(self) -> None:
        self.cache = self.engine.compact.new_cache()


def _on_host(values: Sequence[int] | Tensor) -> Sequence[int]:
    """The values, or the same number of others where they stay on the device."""
    return [ROOT] * len(values) if isinstance(values, Tensor) else values


class PackedFrame:
    """The buffers of a forward over ``width`` packed rows, whoever takes part.

    Rows after those of the requests are padding: they see nothing, and write to the slot after all
    places. ids, parents, firsts, past, slots, free: (width,) int64 of each row its token, the row
    that it hangs from, its request's root, the root's position, its cache slot, and 0 where it is
    never accepted. spans: (requests, 2) int64 first row and rows of each request. tiles, items: see
    ``TreeMask``. depths, positions, bits: computed from these. bits: by sliding window. deepest:
    the most rows of one request. logits: (width, V) memory of a recorded forward's result; None: it
    is not recorded.
    """

    def __init__(self, width: int, places: RecordedPlaces, logits: Tensor | None = None) -> None:
        """places: whose requests are fed."""
        # needs Triton, as below
        from specbench.models.fast.kernels.tree_attention import choose_tile

        engine, device = places.engine, places.engine.device
        self.width, self.logits, self._places = width, logits, places
        self.deepest, requests = min(width, engine.max_nodes + 1), min(width, places.requests)
        share = -(-width // requests) * engine.compact.groups
        self.items = choose_tile(share, engine.dtype == torch.float32).rows
        # The last tile of a request, and of the padding, may be full in part.
        tiles = (width * engine.compact.groups + (requests + 1) * (self.items - 1)) // self.items
        even = width + width % 2  # so that each buffer begins at a multiple of 16 bytes
        ends = 6 * even, 6 * even + 2 * requests
        self._sent = Buffer(ends[1] + 5 * tiles, torch.int64, device, pinned=True)
        sent: list[Any] = [self._sent.values, self._sent.device]
        (self._rows, rows), (self._spans, self.spans), (self._tiles, self.tiles) = zip(
            *((each[: ends[0]].reshape(6, even)[:, :width], each[ends[0] : ends[1]].reshape(-1, 2),
               each[ends[1] :].reshape(-1, 5)) for each in sent),
            strict=True,
        )  # fmt: skip
        self.ids, self.parents, self.firsts, self.past, self.slots, self.free = rows.unbind()
        own, zeros = np.arange(width), np.zeros(width, dtype=np.int64)
        self._padding = np.stack(
            [zeros, own, own, zeros, zeros + places.requests * places.room, zeros + 1]
        )
        self.depths, self.positions = (
            torch.zeros(width, dtype=torch.int64, device=device) for _ in range(2)
        )
        words = 1 << (count_words(self.deepest) - 1).bit_length()
        self.bits = {window: torch.zeros(width, words, dtype=torch.int32, device=device)
                     for window in engine.windows.values()}  # fmt: skip

    def fill(self, handles: Sequence[Handle]) -> None:
        """Enter the drafts of requests, in which parents come before their children."""
        tokens, above = list[int](), list[int]()
        for handle in handles:
            tokens += [handle.root, *_on_host(handle.draft.tokens)]
            above += [ROOT, *_on_host(handle.parents)]
        about = [
            (handle.place * self._places.room, handle.length, 1 + len(handle.draft))
            for handle in handles
        ]
        starts, lengths, counts = np.array(about, dtype=np.int64).reshape(-1, 3).T
        roots, count, hung = np.cumsum(counts) - counts, len(above), np.array(above, dtype=np.int64)
        number = np.repeat(np.arange(len(handles)), counts)
        own, first = np.arange(count) - roots[number], roots[number]
        self._rows[:] = self._padding
        self._rows[:5, :count] = (
            tokens,
            hung + 1 + first,
            first,
            lengths[number],
            (starts + lengths)[number] + own,
        )
        drafted = [
            slice(root + 1, root + rows)
            for root, rows in zip(roots.tolist(), counts.tolist(), strict=True)
        ]
        for handle, part in zip(handles, drafted, strict=True):
            if handle.draft.passenger is not None:
                self._rows[5, part] = np.logical_not(handle.draft.passenger)
        self._spans[:] = 0
        self._spans[: len(handles)] = np.stack([roots, counts], 1)
        padding = self._padding[4, 0], 0, 0, count, self.width - count
        self._enter_tiles(
            np.vstack([np.stack([starts, lengths, counts, roots, counts], 1), padding])
        )
        self._sent.send()
        for handle, part in zip(handles, drafted, strict=True):
            if isinstance(handle.draft.tokens, Tensor):
                self.ids[part] = handle.draft.tokens.to(self.ids.device)
            if isinstance(handle.parents, Tensor):
                self.parents[part] = handle.parents.to(self.ids.device) + part.start

    def _enter_tiles(self, groups: np.ndarray) -> None:
        """groups: (g, 5) as tiles, of any number of rows in place of items."""
        groups[:, 3:] *= self._places.engine.compact.groups
        pieces = -(-groups[:, 4] // self.items)
        tiles = np.repeat(groups, pieces, axis=0)
        before = self.items * (
            np.arange(len(tiles)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        )
        tiles[:, 3] += before
        tiles[:, 4] = np.minimum(tiles[:, 4] - before, self.items)
        self._tiles[len(tiles) :] = 0
        self._tiles[: len(tiles)] = tiles

    def make_input(self, slots: int) -> ForwardInput:
        """Lay the rows out; returns the input of a forward over a cache of ``slots``."""
        from specbench.models.fast.kernels.packed_rows import lay_out

        engine, masks = self._places.engine, dict[str, TreeMask]()
        assert engine.attend is not None
        for window, bits in self.bits.items():
            lay_out(
                self.parents,
                self.firsts,
                self.past,
                self.depths,
                self.positions,
                bits,
                window or FAR,
            )
        for kind, window in engine.windows.items():
            given = self.past, self.depths, self.bits[window], window
            masks[kind] = TreeMask(
                engine.attend, *given, None, self.tiles, self.items, self._places.room
            )
        return ForwardInput(self.ids, self.positions, self.slots, slots, masks)


class RecordedPlaces:
    """The cache of a batch with ``requests`` places of ``room`` slots, and the frames and
    recordings that use it.

    They outlive the batch, since recording takes longer than many steps.
    """

    def __init__(self, engine: FastCore, requests: int, room: int) -> None:
        self.engine, self.requests, self.room = engine, requests, room
        self.cache = engine.compact.new_cache()
        self.cache.reserve(requests * room + 1)  # and one for padding
        widths = engine.buckets.widths
        widths += tuple(size for size in WIDE if widths and size > widths[-1])
        self._buckets = replace(engine.buckets, widths=widths)
        self.frames = Frames(
            partial(PackedFrame, places=self), self._buckets, engine.compact.head.weight
        )
        # Their own memory, as the engine's.
        self.graphs, self.acceptances = Graphs(engine.device), Graphs(engine.device)
        self._prepared: set[tuple[tuple[int, ...], bool]] = set()

    def find_frame(self, rows: int) -> PackedFrame:
        """Return the buffers for a forward of ``rows``; beyond the widest recording, new ones."""
        widths = self._buckets.widths
        if widths and rows > widths[-1]:
            return PackedFrame(rows, self)
        return self.frames.find(self._buckets.width(rows), most=max(self._list_widths(), default=0))

    def _list_widths(self) -> list[int]:
        """The widths of recordings."""
        most = self.requests * (self.engine.max_nodes + 1)
        return [size for size in self._buckets.widths if size <= self._buckets.width(most)]

    def prepare(self) -> None:
        """Record every width for what the engine is prepared for."""
        wanted = [each for each in self.engine.prepared if each not in self._prepared]
        if not wanted or not self.graphs.capturing:
            return
        with many_recordings():
            for taps, greedy in wanted:
                for width in self._list_widths():
                    frame = self.find_frame(width)
                    frame.fill([])
                    logits, _ = self.feed(frame, taps)
                    if greedy:
                        self.accept(frame, logits)
        self._prepared.update(wanted)

    def feed(self, frame: PackedFrame, taps: tuple[int, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        """Enqueue a forward: logits (width, V), and layer -> (width, D) hidden states."""
        call = partial(self._compute, frame, taps)
        found: tuple[Tensor, dict[int, Tensor]]
        found = call() if frame.logits is None else self.graphs.run((frame.width, taps), call)
        return found

    def _compute(
        self, frame: PackedFrame, taps: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        compact = self.engine.compact
        states, hidden = compact(frame.make_input(self.requests * self.room + 1), self.cache, taps)
        return compact.head(states, frame.logits), hidden

    def accept(self, frame: PackedFrame, logits: Tensor) -> Tensor:
        """Enqueue acceptance and the move of all accepted paths; returns ``found`` of
        ``packed_rows.accept_rows``.
        """
        from specbench.models.fast.kernels.packed_rows import accept

        rows = frame.ids, frame.parents, frame.free, frame.slots
        call = partial(accept, logits, *rows, frame.spans, self.cache.whole, frame.deepest)
        found: Tensor = call() if frame.logits is None else self.acceptances.run(frame.width, call)
        return found


class RecordedBatch(FastBatch):
    """A batch whose steps are recorded on a GPU. Prompts are read in chunks that are not
    recorded.
    """

    lays_out = True

    @override
    def take_cache(self) -> StaticKV:
        found: RecordedPlaces | None = self.engine.places
        self.engine.places = None
        if found is None or found.room != self.room or found.requests < self.requests:
            found = None  # frees its memory before more is taken
            found = RecordedPlaces(self.engine, self.requests, self.room)
        found.prepare()
        self._places = found
        return found.cache

    @override
    def pack(self, handles: Sequence[Handle]) -> PackedRows:
        if not handles:
            return super().pack(handles)
        bounds = [0, *accumulate(1 + len(handle.draft) for handle in handles)]
        self._frame = self._places.find_frame(bounds[-1])
        self._frame.fill(handles)
        # not read where they stay on the device
        parents = [_on_host(handle.parents) for handle in handles]
        return PackedRows(handles, parents, bounds, self._frame.ids[: bounds[-1]])

    @override
    def feed(
        self, rows: PackedRows, taps: Sequence[int], wanted: int
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        if rows is not self._rows:  # of a prompt
            return super().feed(rows, taps, wanted)
        logits, hidden = self._places.feed(self._frame, tuple(taps))
        return logits[: len(rows)], {tap: states[: len(rows)] for tap, states in hidden.items()}

    @override
    def accept_all(
        self, rows: PackedRows, logits: Tensor, top: TopK | None, picks: Tensor | None
    ) -> Verified | None:
        if picks is not None:
            return None
        frame = self._frame
        parts = [self._places.accept(frame, logits if frame.logits is None else frame.logits)]
        on_device = [isinstance(handle.parents, Tensor) for handle in rows.handles]
        if any(on_device):
            parts.append(frame.parents)
        (found, *above), top = read_with_top(
            parts, top, any(handle.asked.read_topk for handle in rows.handles)
        )
        numbers, nodes = [*map(int, found)], frame.spans.numel()
        for number, handle in enumerate(rows.handles):
            if on_device[number]:
                part = rows.slice_of(number)
                handle.parents = [int(row) - part.start - 1 for row in above[0][part][1:]]

        done = list[tuple[list[int], list[int]] | None]()
        for number, first in enumerate(rows.bounds[:-1]):
            (count, last), start = numbers[2 * number : 2 * number + 2], nodes + first
            chosen = numbers[start + frame.width : start + frame.width + count]
            done.append(None if count < 0 else (numbers[start : start + count], [*chosen, last]))
        return done, top

    @override
    def end(self) -> None:
        for handle in [*self._open.values()]:
            self.close(handle)
        if self._places.graphs.capturing:
            self.engine.places = self._places
        super().end()
