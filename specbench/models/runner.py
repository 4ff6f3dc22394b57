"""Runs a draft language model: it reads tokens after those in its cache and returns logits.

The Llama family runs by the compact forward, which is recorded on a GPU as the target's is; all
other models run by the library's own forward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import ge
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.choose import choose_for_draft
from specbench.models.eager.cache import SlotCache
from specbench.models.family import find_windows
from specbench.models.fast.attention import SDPA, find_attention, find_small_ops
from specbench.models.fast.cache import CachedPlace, SharedKV
from specbench.models.fast.compact import explain_unfit, list_prompt_inputs, read_prompt
from specbench.models.fast.engine import STANDING
from specbench.models.fast.frame import Frame
from specbench.models.fast.graphs import EXACT, GRAPHED, Buckets, Frames, many_recordings
from specbench.models.fast.host.forward import SHORT, build_forward
from specbench.models.transfer import upload
from specbench.models.tree import TreeRows
from specbench.types import MOST

ROOMS = (32, 128, 512, 2048)  # nodes that a frame on a GPU has columns for


class RowFrame(Frame):
    """The frame of a draft model's forward: ``width`` rows, the fed ones last, and ``columns``
    nodes with these rows.

    So the logits of the last fed row are always at the same place. The rows before the fed ones are
    padding; their slots come after the others'.
    """

    def fill(
        self, ids: Sequence[int] | Tensor, start: int, rows: TreeRows, masked: Sequence[str]
    ) -> None:
        """Enter m tokens, on the host or the device, into slots from ``start`` on.

        masked: kinds of attention whose mask is built.
        """
        width, count, nodes = self.width, len(ids), len(rows.places)
        padding = width - count
        past = self._past[0] = start + count - nodes
        self._slots[:padding] = range(start + count, start + width)
        self._slots[padding:width] = range(start, start + count)
        self._depths.values[padding:] = np.subtract(rows.places[nodes - count :], past)
        if not isinstance(ids, Tensor):
            self._ids[padding:] = ids
        self._step.send()
        self._depths.send()
        if isinstance(ids, Tensor):
            self.ids[padding:] = ids.to(self.ids.device)
        for kind in masked:
            near = np.zeros((width, self.columns), dtype=bool)
            near[:padding, 0] = True  # padding sees something, so its result is finite
            near[padding:, :nodes] = rows.list_near(self.windows[kind])
            self.write_bias(kind, near)


Ids = Sequence[int] | Tensor
Run = tuple[Any, Ids, Sequence[int], TreeRows | None, int]  # the arguments of ``Runner.run``
# a request is fed with others if the logits of at most this many of its rows are not wanted
EXTRA = 16
# of a forward: rows, nodes after the context with them, rows whose logits are wanted
Shape = tuple[int, int, int]
DraftCache = CachedPlace | SlotCache  # of a context, and of a tree after it


class Runner(ABC):
    """Runs one loaded draft model.

    device, dtype: of its weights. rows: of its embedding. windows: see ``family.find_windows``.
    note: a warning about its attention.
    """

    note: str | None = None

    def __init__(self, model: Any, context: int) -> None:
        """context: [tokens] of the model; every later token is at its last position."""
        embedding = model.get_input_embeddings().weight
        self.device: torch.device = embedding.device
        self.dtype: torch.dtype = embedding.dtype
        self.rows: int = embedding.shape[0]
        self.windows = find_windows(model.config)
        # [tokens]; a new cache has room for ``_standing``
        self._context, self._standing = (context, 0)

    @abstractmethod
    def new_cache(self) -> Any:
        """Make an empty ``DraftCache``."""

    @abstractmethod
    def run(
        self, cache: Any, ids: Ids, places: Sequence[int], tree: TreeRows | None, wanted: int
    ) -> Tensor:
        """Read tokens after those in the cache.

        Args:
            cache: of ``new_cache``.
            ids: (m,) on the host or the device; ids that the embedding lacks (padding of the
                target) are its last one.
            places: (m,) positions.
            tree: which nodes behind the context the tokens see; None = causal attention over
                everything.
            wanted: number of last rows whose logits are returned, 1 to m.

        Returns:
            (wanted, V) logits, valid until the next call.
        """

    def run_together(self, asked: Sequence[Run]) -> list[Tensor]:
        """Call ``run`` for several requests, in one forward if possible; all logits are valid until
        the next call.
        """
        return [self.run(*each).clone() for each in asked]

    def empty(self, cache: Any) -> None:
        """Empty the cache for a new request."""
        cache.truncate(0)

    def prepare(self, cache: Any, shapes: Iterable[Shape]) -> None:
        """Record forwards of these shapes on an empty cache, if forwards are recorded; smaller ones
        are padded.
        """

    def record(self, cache: Any) -> None:
        """Record what was prepared on another empty cache."""

    def _make_room(self, cache: Any, slots: int) -> None:
        """Grow the cache to ``slots``; cached tokens stay."""
        if slots > cache.capacity:
            cache.grow(max(2 * slots, self._standing))

    def _on_device(self, ids: Ids) -> Tensor:
        found = ids.to(self.device) if isinstance(ids, Tensor) else upload(ids, self.device)
        return found.clamp(max=self.rows - 1)


class LibraryRunner(Runner):
    """Runs a draft model by the library's own forward."""

    def __init__(self, model: Any, context: int) -> None:
        super().__init__(model, context)
        self._model = model

    @override
    def new_cache(self) -> SlotCache:
        return SlotCache.for_model(self._model)

    @override
    def run(
        self, cache: SlotCache, ids: Ids, places: Sequence[int], tree: TreeRows | None, wanted: int
    ) -> Tensor:
        self._make_room(cache, cache.length + len(ids))
        output = self._model(
            input_ids=self._on_device(ids)[None],
            attention_mask=None if tree is None else self._masks(tree, cache.length + len(ids)),
            position_ids=upload([[min(place, self._context - 1) for place in places]], self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=wanted,
        )
        return output.logits[0]

    def _masks(self, tree: TreeRows, keys: int) -> Tensor | Mapping[str, Tensor]:
        masks = {
            kind: upload(
                tree.build_mask(window, self.dtype, keys - len(tree.places)),
                self.device,
                self.dtype,
            )
            for kind, window in self.windows.items()
        }
        return next(iter(masks.values())) if len(masks) == 1 else masks


class CompactRunner(Runner):
    """Runs a draft model by the compact forward.

    On a GPU forwards, except those of prompts, are recorded by rows, nodes, length of keys and rows
    wanted. Each is padded to the smallest shape that was prepared and has room for it, so that few
    recordings serve all steps.
    """

    def __init__(
        self,
        model: Any,
        context: int,
        buckets: Buckets | None = None,
        compiled: bool = True,
        attention: str = SDPA,
    ) -> None:
        """buckets: default by device. compiled: use compiled code if possible. attention: as of the
        fast engine.
        """
        super().__init__(model, context)
        buckets = buckets or (GRAPHED if self.device.type == "cuda" else EXACT)
        compiled = compiled and attention == SDPA and buckets == EXACT
        with torch.no_grad():
            small = find_small_ops(attention, self.device, self.dtype)
            built = build_forward(
                model, context, context, pack=True, compiled=compiled, small=small
            )
        self._model, self._compiled, _ = built
        self._attend = find_attention(attention, self.device, self.dtype, self._model.size)
        self.buckets = replace(buckets, whole=attention != SDPA)
        self._rooms = Buckets(ROOMS) if self.buckets.widths else EXACT
        self._standing = (
            min(STANDING, context) + self.buckets.widths[-1] if self.buckets.widths else 0
        )
        self._prepared: set[Shape] = set()
        make = partial(
            RowFrame,
            windows=self.windows,
            dtype=self.dtype,
            device=self.device,
            attend=self._attend,
        )
        self._make_frame: Callable[..., RowFrame] = make
        self.frames = Frames(make, self.buckets, self._model.head.weight)
        self._shared = self._new_memory()  # where requests are fed together

    def _new_memory(self) -> SharedKV:
        body = self._model
        return SharedKV(len(body.layers), body.key_heads, body.size, body.dtype, body.device)

    @override
    def new_cache(self) -> CachedPlace:
        return (self._shared if self._compiled else self._new_memory()).add()

    def empty(self, cache: CachedPlace) -> None:
        """Empty the cache; if forwards read more keys than are cached, those of the last request
        must be finite.
        """
        cache.truncate(0)
        if self.buckets.lengths:
            cache.memory.clear()

    @override
    def run(
        self,
        cache: CachedPlace,
        ids: Ids,
        places: Sequence[int],
        tree: TreeRows | None,
        wanted: int,
    ) -> Tensor:
        start, count = cache.length, len(ids)
        if start == 0 and tree is None and not (self._compiled and count <= SHORT):
            self._make_room(cache, count)
            cache.length = count
            inputs = list_prompt_inputs(
                self._on_device(ids), self.windows, self.dtype, cache.base, self._context
            )
            states, _ = read_prompt(self._model, cache.memory, inputs, count, ())
            return self._model.head(states[-wanted:])
        rows = tree or TreeRows(None, places)
        if self._compiled:
            return self._feed([(cache, ids, places, tree, wanted)], wanted)
        graphed = count <= max(self.buckets.widths, default=count)
        needed = count, len(rows.places), wanted
        width, room, read = self._find_shape(needed) if graphed else needed
        end = max(start + width, start + count - len(rows.places) + room)
        self._make_room(cache, end)
        length = self.buckets.length(end, cache.capacity) if graphed else end
        frame = self._find_frame(width, room) if graphed else self._make_frame(width, columns=room)
        # a row may see all keys
        plain = self._attend is None and not self.buckets.lengths and max(width, room) == 1
        masked = [
            kind
            for kind, window in self.windows.items()
            if not plain or (window and window < length)
        ]
        frame.fill(ids, start, rows, masked)
        call = partial(self.compute, cache, frame, length, masked, read == 1)
        logits = cache.graphs.run((width, room, length, read == 1), call) if graphed else call()
        cache.length = start + count
        return logits[-wanted:]

    def run_together(self, asked: Sequence[Run]) -> list[Tensor]:
        """See ``Runner.run_together``: by compiled code, except prompts, of whose rows only the
        last one is wanted.
        """
        packed = [each for each in asked if self._compiled and len(each[1]) - each[-1] <= EXTRA]
        if len(packed) < 2:
            return super().run_together(asked)
        alone = [None if each in packed else self.run(*each).clone() for each in asked]
        logits, end, found = self._feed(packed, sum(len(each[1]) for each in packed)), 0, []
        for each, own in zip(asked, alone, strict=True):
            if own is None:
                end += len(each[1])
                own = logits[end - each[-1] : end]
            found.append(own)
        return found

    def _feed(self, asked: Sequence[Run], wanted: int) -> Tensor:
        """Run compiled code: (wanted, V) logits of the last of all rows."""
        for cache, ids, *_ in asked:
            self._make_room(cache, cache.length + len(ids))
        trees, spans, first = [], [], 0
        for cache, ids, places, tree, _ in asked:
            rows, count = tree or TreeRows(None, places), len(ids)
            trees.append(rows)
            spans.append(
                (first, count, cache.base, cache.length, cache.length + count - len(rows.places))
            )
            cache.length, first = cache.length + count, first + count
        fed = np.minimum(np.concatenate([np.asarray(each[1]) for each in asked]), self.rows - 1)
        at = np.concatenate(
            [rows.places[-count:] for rows, (_, count, *_) in zip(trees, spans, strict=True)]
        )
        assert self._compiled is not None
        return self._compiled.feed(
            self._shared, fed, at, np.minimum(at, self._context - 1), spans, trees, wanted
        )

    def compute(
        self, cache: CachedPlace, frame: RowFrame, length: int, masked: Sequence[str], last: bool
    ) -> Tensor:
        """Run the forward over a frame: (width, V) logits, or (1, V) of the last row. masked: see
        ``RowFrame.fill``.
        """
        rows = frame.make_input(length, masked, self._model.groups)
        ids, positions = (
            rows.ids.clamp(max=self.rows - 1),
            rows.positions.clamp(max=self._context - 1),
        )
        states, _ = self._model(replace(rows, ids=ids, positions=positions), cache.memory)
        if last:
            states = states[-1:]
        return self._model.head(
            states, None if frame.logits is None else frame.logits[: len(states)]
        )

    @override
    def prepare(self, cache: CachedPlace, shapes: Iterable[Shape]) -> None:
        if self._compiled:  # before a request waits for it
            self.run(cache, [0], [0], None, 1)
            cache.truncate(0)
        if not self.buckets.widths:
            return
        widest = self.buckets.widths[-1]
        self._prepared |= {
            self._pad(shape) for shape in shapes if shape[0] <= widest and shape[1] <= MOST
        }
        most = max(map(max, self._prepared), default=0)
        self._standing = max(self._standing, min(STANDING, self._context) + most)
        self.record(cache)

    @override
    def record(self, cache: CachedPlace) -> None:
        if not self._prepared:
            return
        if self._standing > cache.capacity:
            cache.grow(self._standing)
        with many_recordings():
            for width, room, read in sorted(self._prepared):
                frame = self._find_frame(width, room)
                frame.fill([0], 0, TreeRows(None, [0]), [*self.windows])
                for length in self.buckets.list_lengths(max(width, room), cache.capacity):
                    call = partial(self.compute, cache, frame, length, [*self.windows], read == 1)
                    cache.graphs.prepare((width, room, length, read == 1), call)

    def _find_shape(self, needed: Shape) -> Shape:
        """Return the smallest prepared shape that has room for a forward, else that of its
        buckets.
        """
        fits = [each for each in self._prepared if all(map(ge, each, needed))]
        return min(fits) if fits else self._pad(needed)

    def _pad(self, shape: Shape) -> Shape:
        """Return the shape of a forward by buckets: the logits of the last row are read, or those
        of all rows.
        """
        width, room = self.buckets.width(shape[0]), self._rooms.width(shape[1])
        return width, room, 1 if shape[2] == 1 else width

    def _find_frame(self, width: int, room: int) -> RowFrame:
        return self.frames.find(width, columns=room, most=max(self.buckets.widths, default=0))


def make_runner(model: Any, context: int, attention: str = SDPA) -> Runner:
    """Choose how a draft model runs. context: [tokens] of it. attention: of the target."""
    single = len({parameter.device for parameter in model.parameters()}) == 1
    if (
        not single
        or explain_unfit(model) is not None
        or model.config._attn_implementation != "sdpa"
    ):
        return LibraryRunner(model, context)
    way, note = choose_for_draft(attention, model, context, GRAPHED.widths[-1])
    runner = CompactRunner(model, context, attention=way)
    runner.note = note
    return runner
