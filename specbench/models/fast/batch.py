"""Batches of the fast engine: packed rows of several requests, by compiled code, by torch, or recorded.

Where our kernel attends, a step of a batch is two recorded calls, as a step of one request is: the forward over a frame
of packed rows, and acceptance. A frame is of a total number of rows, whoever takes part: which rows are whose, where
their context is and which tile of attention reads it is content of its buffers, sent in one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.batch import Accepted, Handle, PackedRows, PaddedRows, SlotBatch
from specbench.models.engine import Laps
from specbench.models.fast.attention import PlacesMask, TreeMask, count_words
from specbench.models.fast.compact import ForwardInput, read_prompt
from specbench.models.fast.frame import Buffer
from specbench.models.fast.graphs import Frames, Graphs, many_recordings
from specbench.models.fast.host.forward import SHORT, PackedLayout
from specbench.models.fast.layout import mark_reach
from specbench.models.transfer import upload
from specbench.models.tree import compute_depths
from specbench.models.verify import read_with_top, require_finite
from specbench.types import ROOT, TopK

if TYPE_CHECKING:
    from specbench.models.fast.engine import FastEngine

NAN = float("nan")
WIDE = (512, 768, 1024)  # rows of a batch's forwards beyond those of one draft
FAR = 1 << 30  # [positions] a window that no row leaves


class FastBatch(SlotBatch):
    """The batch of the fast engine, unrecorded: packed rows have the widths that they have."""

    engine: FastEngine

    def __init__(self, engine: FastEngine, requests: int, tokens: int, laps: Laps) -> None:
        super().__init__(engine, requests, tokens, laps)
        self.cache = engine.compact.new_cache()
        self.cache.reserve(requests * self.room)
        self._layout: PackedLayout | None = None  # of the last forward, where it was compiled

    @override
    def feed(self, rows: PackedRows, taps: Sequence[int], wanted: int) -> tuple[Tensor, Mapping[int, Tensor]]:
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

    @override
    def accept_greedily(self, rows: PackedRows, logits: Tensor, top: TopK | None) -> tuple[Accepted, TopK | None] | None:
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

        return read, top

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


class PackedFrame:
    """The buffers of a forward over ``width`` packed rows of at most ``requests`` requests.

    Rows after those of the requests are padding: they see nothing, and write to the slot after all places.
    ids, parents, firsts, past, slots, free: (width,) int64 of each row its token, the row that it hangs from, its
    request's root, the root's position, its cache slot, and 0 where it is never accepted.
    spans: (requests, 2) int64 first row and rows of each request. tiles: see ``TreeMask``.
    depths, positions, bits: computed from these. bits: by sliding window.
    logits: (width, V) memory of a recorded forward's result; None: new at every call.
    """

    def __init__(self, width: int, places: RecordedPlaces, logits: Tensor | None = None) -> None:
        """places: whose requests are fed."""
        from specbench.models.fast.kernels.tree_attention import choose_tile  # needs Triton, as below

        engine, device = places.engine, places.engine.device
        self.width, self.logits, self._places = width, logits, places
        self.requests, self.deepest = min(places.requests, width), min(width, engine.max_nodes + 1)
        self._groups, single = engine.compact.groups, engine.dtype == torch.float32
        share = -(-width // self.requests) * self._groups
        self.items = choose_tile(share, single).rows
        # The last tile of a request, and of the padding, is full in part.
        tiles = (width * self._groups + (self.requests + 1) * (self.items - 1)) // self.items
        sizes = [*[width] * 6, 2 * self.requests, 5 * tiles]
        ends = np.cumsum([size + size % 2 for size in sizes])  # each begins at a multiple of 16 bytes
        self._sent = Buffer(int(ends[-1]), torch.int64, device, pinned=True)
        parts = [slice(int(end) - size - size % 2, int(end) - size % 2)
                 for end, size in zip(ends, sizes, strict=True)]  # fmt: skip
        self._rows = [self._sent.values[part] for part in parts[:6]]
        self._spans, self._tiles = (self._sent.values[part] for part in parts[6:])
        self.ids, self.parents, self.firsts, self.past, self.slots, self.free = (
            self._sent.device[part] for part in parts[:6]
        )
        self.spans, self.tiles = self._sent.device[parts[6]], self._sent.device[parts[7]].view(tiles, 5)
        self.depths, self.positions = (torch.zeros(width, dtype=torch.int64, device=device) for _ in range(2))
        words = 1 << (count_words(self.deepest) - 1).bit_length()
        self.bits = {window: torch.zeros(width, words, dtype=torch.int32, device=device)
                     for window in engine.windows.values()}  # fmt: skip

    def fill(self, handles: Sequence[Handle]) -> None:
        """Enter the drafts of requests. Raises ValueError when a parent does not come before its child."""
        above: list[int] = []
        tokens: list[int] = []
        on_device = []
        for handle in handles:
            draft = handle.draft
            drafted, parents = draft.tokens, handle.parents
            if isinstance(drafted, Tensor) or isinstance(parents, Tensor):
                on_device.append((len(above) + 1, drafted, parents))
            tokens.append(handle.root)
            tokens.extend([0] * len(draft) if isinstance(drafted, Tensor) else drafted)
            above.append(ROOT)
            above.extend([ROOT] * len(draft) if isinstance(parents, Tensor) else parents)
        count, width, room = len(above), self.width, self._places.room
        counts = np.array([1 + len(handle.draft) for handle in handles], dtype=np.int64)
        roots = np.cumsum(counts) - counts
        starts = np.array([handle.place * room for handle in handles], dtype=np.int64)
        lengths = np.array([handle.length for handle in handles], dtype=np.int64)
        ids, parents, firsts, past, slots, free = self._rows
        number = np.repeat(np.arange(len(handles)), counts)
        own, hung = np.arange(count) - roots[number], np.array(above, dtype=np.int64)
        if ((hung < ROOT) | (hung >= np.maximum(own - 1, 0))).any():
            for handle in handles:
                compute_depths([] if isinstance(handle.parents, Tensor) else handle.parents)
        ids[:count], ids[count:] = tokens, 0
        firsts[:] = parents[:] = np.arange(width)
        firsts[:count] = roots[number]
        parents[:count] = hung + 1 + roots[number]
        past[:count], past[count:] = lengths[number], 0
        slots[:count], slots[count:] = (starts + lengths)[number] + own, room * self._places.requests
        free[:] = 1
        for handle, root in zip(handles, roots, strict=True):
            if handle.draft.passenger is not None:
                free[root + 1 : root + 1 + len(handle.draft)] = np.logical_not(handle.draft.passenger)
        self._spans[:] = 0
        self._spans[: 2 * len(handles)] = np.stack([roots, counts], 1).ravel()
        rest = room * self._places.requests, 0, 0, count, width - count
        groups = np.vstack([np.stack([starts, lengths, counts, roots, counts], 1), rest])
        groups[:, 3:] *= self._groups
        self._enter_tiles(groups)
        self._sent.send()
        for first, drafted, parents_of in on_device:
            part = slice(first, first + len(drafted))
            if isinstance(drafted, Tensor):
                self.ids[part] = drafted.to(self.ids.device)
            if isinstance(parents_of, Tensor):
                self.parents[part] = parents_of.to(self.ids.device) + first

    def _enter_tiles(self, groups: np.ndarray) -> None:
        """groups: (g, 5) as tiles, of any number of items."""
        pieces = -(-groups[:, 4] // self.items)
        tiles = np.repeat(groups, pieces, axis=0)
        before = self.items * (np.arange(len(tiles)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
        tiles[:, 3] += before
        tiles[:, 4] = np.minimum(tiles[:, 4] - before, self.items)
        self._tiles[:] = 0
        self._tiles[: tiles.size] = tiles.ravel()

    def make_input(self, slots: int) -> ForwardInput:
        """Lay the rows out; returns the input of a forward over a cache of ``slots``."""
        from specbench.models.fast.kernels.packed_rows import lay_out

        engine, masks = self._places.engine, dict[str, TreeMask]()
        for window, bits in self.bits.items():
            lay_out(self.parents, self.firsts, self.past, self.depths, self.positions, bits, window or FAR)
        for kind, window in engine.windows.items():
            given = self.past, self.depths, self.bits[window], window
            masks[kind] = TreeMask(engine.attend, *given, None, self.tiles, self.items, self._places.room)
        return ForwardInput(self.ids, self.positions, self.slots, slots, masks)


class RecordedPlaces:
    """The cache of a batch with ``requests`` places of ``room`` slots, and the frames and recordings that use it.

    They outlive the batch, since recording takes longer than many steps.
    """

    def __init__(self, engine: FastEngine, requests: int, room: int) -> None:
        self.engine, self.requests, self.room = engine, requests, room
        self.cache = engine.compact.new_cache()
        self.cache.reserve(requests * room + 1)  # and one for padding
        widths = engine.buckets.widths
        widths += tuple(size for size in WIDE if widths and size > widths[-1])
        self._buckets = replace(engine.buckets, widths=widths)
        self.frames = Frames(partial(PackedFrame, places=self), self._buckets, engine.compact.head.weight)
        # Their own memory, as the engine's.
        self.graphs, self.acceptances = Graphs(engine.device), Graphs(engine.device)
        self._prepared: set[tuple[tuple[int, ...], bool]] = set()

    def find_frame(self, rows: int) -> PackedFrame:
        """Return the buffers for a forward of ``rows``."""
        return self.frames.find(self._buckets.width(rows), most=self._widest)

    @property
    def _widest(self) -> int:
        return self._buckets.width(self.requests * (self.engine.max_nodes + 1))

    def prepare(self) -> None:
        """Record every width for what the engine is prepared for."""
        wanted = [each for each in self.engine.prepared if each not in self._prepared]
        if not wanted or not self.graphs.capturing:
            return
        with many_recordings():
            for taps, greedy in wanted:
                for width in (size for size in self._buckets.widths if size <= self._widest):
                    frame = self.find_frame(width)
                    frame.fill([])
                    logits, _ = self.feed(frame, taps)
                    if greedy:
                        self.accept(frame, logits)
        self._prepared.update(wanted)

    def feed(self, frame: PackedFrame, taps: tuple[int, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        """Enqueue a forward: logits (width, V), and layer -> (width, D) hidden states."""
        found: tuple[Tensor, dict[int, Tensor]]
        found = self.graphs.run((frame.width, taps), partial(self._compute, frame, taps))
        return found

    def _compute(self, frame: PackedFrame, taps: tuple[int, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        compact = self.engine.compact
        states, hidden = compact(frame.make_input(self.requests * self.room + 1), self.cache, taps)
        return compact.head(states, frame.logits), hidden

    def accept(self, frame: PackedFrame, logits: Tensor) -> Tensor:
        """Enqueue acceptance and the move of all accepted paths; returns ``found`` of ``packed_rows.accept_rows``."""
        from specbench.models.fast.kernels.packed_rows import accept

        rows = frame.ids, frame.parents, frame.free, frame.slots
        call = partial(accept, logits, *rows, frame.spans.view(-1, 2), self.cache.whole, frame.deepest)
        found: Tensor = self.acceptances.run(frame.width, call)
        return found


class RecordedBatch(FastBatch):
    """A batch whose steps are recorded on a GPU. Prompts are read in chunks that are not recorded."""

    lays_out = True

    def __init__(self, engine: FastEngine, requests: int, tokens: int, laps: Laps) -> None:
        SlotBatch.__init__(self, engine, requests, tokens, laps)
        found, engine.places = engine.places, None
        if found is None or found.room != self.room or found.requests < requests:
            found = None  # frees its memory before more is taken
            found = RecordedPlaces(engine, requests, self.room)
        self._places = found
        self._places.prepare()
        self.cache = self._places.cache

    @override
    def pack(self, handles: Sequence[Handle]) -> PackedRows:
        if not handles:
            return super().pack(handles)
        bounds = [0, *np.cumsum([1 + len(handle.draft) for handle in handles]).tolist()]
        self._frame = self._places.find_frame(bounds[-1])
        self._frame.fill(handles)
        return PackedRows(handles, [handle.parents for handle in handles], bounds, self._frame.ids[: bounds[-1]])

    @override
    def feed(self, rows: PackedRows, taps: Sequence[int], wanted: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        if rows is not self._rows:  # of a prompt
            return super().feed(rows, taps, wanted)
        logits, hidden = self._places.feed(self._frame, tuple(taps))
        return logits[: len(rows)], {tap: states[: len(rows)] for tap, states in hidden.items()}

    @override
    def accept_greedily(self, rows: PackedRows, logits: Tensor, top: TopK | None) -> tuple[Accepted, TopK | None] | None:
        frame = self._frame
        parts = [self._places.accept(frame, logits if frame.logits is None else frame.logits)]
        on_device = [isinstance(handle.parents, Tensor) for handle in rows.handles]
        if any(on_device):
            parts.append(frame.parents)
        (found, *above), top = read_with_top(parts, top, any(handle.asked.read_topk for handle in rows.handles))
        numbers, nodes = [*map(int, found)], 2 * frame.requests
        for number, handle in enumerate(rows.handles):
            if on_device[number]:
                part = rows.slice_of(number)
                handle.parents = [int(row) - part.start - 1 for row in above[0][part][1:]]

        def read(number: int) -> tuple[list[int], list[int]]:
            count, last = numbers[2 * number : 2 * number + 2]
            if count < 0:
                require_finite([NAN], logits.dtype)
            first = nodes + rows.bounds[number]
            chosen = numbers[first + frame.width : first + frame.width + count]
            return numbers[first : first + count], [*chosen, last]

        return read, top

    @override
    def end(self) -> None:
        for handle in [*self._open.values()]:
            self.close(handle)
        if self._places.graphs.capturing:
            self.engine.places = self._places
        del self._places
        super().end()
