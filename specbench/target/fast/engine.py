"""The fast engine: a compact forward on static buffers; what a draft is like is content, never shape.

A step is two calls on tensors: the target's forward over a frame, then acceptance and compaction on the device. On a
GPU both are captured into CUDA graphs, one for each width, key length and kind of step; on a CPU the same two functions
run as they are. One read-back a step tells the host what was accepted. Sampling verifies on the host's side as in the
eager engine, from the same logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specbench.target.engine import Engine, EngineKind, Laps, Verifier
from specbench.target.fast.accept import Outcome, accept
from specbench.target.fast.compact import CompactModel, ForwardInput, prompt_rows
from specbench.target.fast.frame import NEVER, DraftLayout, Frame, lay_out
from specbench.target.fast.graphs import EXACT, GRAPHED, Buckets, Graphs
from specbench.target.fast.linear import can_pack
from specbench.target.fast.static_kv import StaticKV
from specbench.target.tree import RowBatch, causal_mask, depths_of
from specbench.target.verify import continues, cut, gaps_to_best, judge, pick, require_fitting, top
from specbench.types import EMPTY, Draft, Needs, Prefill, Step

STANDING = 8192  # [tokens] of context that a GPU holds room for from the start; a longer request records anew
FRAMES = 256  # widths whose buffers are kept on a CPU
LAYOUTS = 1024  # layouts are remembered, so that chains and fixed trees are laid out once


class FastEngine(Engine):
    """Drives one loaded model of the Llama family. Not re-entrant: one request at a time.

    Tensors of a ``Step`` are valid until the next ``forward``: on a GPU they lie in the graphs' own memory.
    """

    kind = EngineKind.FAST

    def __init__(
        self,
        model: Any,
        context: int,
        eos: frozenset[int],
        max_nodes: int,
        buckets: Buckets | None = None,
        pack: bool = True,
    ) -> None:
        """model: the library's, of a supported family (``compact.unsupported``), on one device, in eval mode.

        context: [tokens] its limit. max_nodes: the largest draft. buckets: default by device.
        pack: on a CPU, keep a second copy of the weights that short inputs multiply faster.
        """
        self.context, self.max_nodes, self.eos = context, max_nodes, eos
        self.fed = 0
        weight = model.get_input_embeddings().weight
        self.device: torch.device = weight.device
        self.dtype: torch.dtype = weight.dtype
        self.buckets = buckets or (GRAPHED if self.device.type == "cuda" else EXACT)
        self._widest = self.buckets.width(max_nodes + 1)  # grows with the batches of rows that come
        with torch.no_grad():
            table = context + self._widest
            self.compact = CompactModel(model, table, context, pack and can_pack(self.dtype, self.device))
        self.windows = {kind: _within(window, context) for kind, window in self.compact.windows.items()}
        self._frames: dict[int, Frame] = {}
        self._layouts: dict[object, DraftLayout] = {}
        self._graphs = Graphs(self.device)
        self._prepared: dict[tuple[tuple[int, ...], bool], None] = {}
        self._logits = torch.empty(0)  # every graph's: of each its own they would be gigabytes
        self.cache = self.compact.new_cache()
        self._sound = True  # the cache holds numbers only: no request broke off in the middle
        self._begin_request()

    def _begin_request(self) -> None:
        if not self._sound:
            self.cache.clear()
        self._sound = False
        self.length = 0  # [tokens] held by the cache: the context but its last one, the root
        self._root = -1
        self._draft: Draft = EMPTY
        self._parents: Sequence[int] = ()
        self._step: tuple[int, int, tuple[int, ...]] = (0, 0, ())  # width, key length and taps of the last forward
        self._outputs: tuple[Tensor, Mapping[int, Tensor], Tensor] | None = None

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` and the largest forward; see ``Engine.reserve``."""
        wanted = min(tokens, self.context) + self._widest + 1
        if wanted > self.cache.capacity and self.cache.reserve(self.buckets.room(wanted)):
            self._graphs.drop()
            for taps, greedy in self._prepared:
                self._record(taps, greedy)

    @torch.inference_mode()
    def prepare(self, needs: Needs, greedy: bool) -> None:
        """Record the graphs of every width and key length; see ``Engine.prepare``."""
        widest = max((self._widest, *self.buckets.widths)) if needs.rows else self._widest
        known = (needs.hidden, greedy) in self._prepared and widest == self._widest
        if not self._graphs.capturing or known:
            return
        self._widest = widest
        self._prepared[needs.hidden, greedy] = None
        if self.cache.reserve(min(self.context, STANDING) + widest + 1):
            self._graphs.drop()  # also what the engine's check recorded on a smaller cache
        for taps, each in self._prepared:
            self._record(taps, each)

    def _record(self, taps: tuple[int, ...], greedy: bool) -> None:
        for width in (size for size in self.buckets.widths if size <= self._widest):
            frame = self._frame(width)
            lengths = {self.buckets.length(size, self.cache.capacity) for size in self.buckets.lengths}
            for length in sorted(each for each in lengths if each >= width):
                self._step = (width, length, taps)
                logits, _, slots = self._graphs.run(self._step, partial(self._target, frame, length, taps))
                for chain in (True, False) if greedy else ():
                    self._graphs.run((*self._step, chain), partial(accept, logits, frame, slots, self._moved(chain)))

    @torch.inference_mode()
    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """Read ``prompt`` and pick the first token; see ``Engine.start``."""
        self._begin_request()
        self._walk, self._needs, self._laps = walk, needs, laps
        self.reserve(len(prompt) + limit)
        every_row = needs.prompt_topk > 0
        states, hidden = self._read(prompt, needs.hidden)
        logits = self.compact.head(states if every_row else states[-1:])
        picks, _ = pick(walk, logits[-1:], [0], None)
        self._root, self.length = picks[0], len(prompt)
        walk.advance(1)
        best = top(logits if every_row else logits[-1:], max(needs.prompt_topk, needs.node_topk))
        self._sound = True
        if not needs.prompt_hidden:
            hidden = {layer: rows[-1:] for layer, rows in hidden.items()}
        return Prefill(self._root, hidden, best)

    def _read(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """States of every token of a prompt, read into an empty cache."""
        count = len(prompt)
        masks: dict[str, Tensor | None] = {}
        for kind, window in self.windows.items():
            narrow = window is not None and window < count
            masks[kind] = causal_mask(count, window, self.dtype)[0, 0].to(self.device) if narrow else None
        return self.compact(prompt_rows(prompt, self.device, masks), self.cache, taps)

    @torch.inference_mode()
    def forward(self, draft: Draft) -> None:
        """Feed the root and the draft's nodes; the result waits for ``settle``."""
        self._draft, self._parents = draft, require_fitting(draft, self.max_nodes)
        self._sound = False
        layout = self._lay_out()
        width = self.buckets.width(len(layout))
        self._make_room(width)
        frame = self._frame(width)
        frame.fill(self._root, draft.tokens, self.length, layout)
        self._layout, self._active, self.fed = layout, frame, len(layout)
        length = self.buckets.length(self.length + width, self.cache.capacity)
        self._laps.lap("prepare")
        taps = self._needs.hidden
        self._step = (width, length, taps)
        self._outputs = self._graphs.run(self._step, partial(self._target, frame, length, taps))
        self._laps.lap("forward")

    def _lay_out(self) -> DraftLayout:
        """The draft's layout, remembered for drafts of the same shape."""
        parents, passenger = self._parents, self._draft.passenger
        shape = parents if isinstance(parents, range) else tuple(parents)
        key = shape, None if passenger is None else tuple(passenger), self._needs.rows
        if key not in self._layouts:
            if len(self._layouts) == LAYOUTS:
                self._layouts.clear()
            batch = RowBatch.of(parents, depths_of(parents)) if self._needs.rows else None
            self._layouts[key] = lay_out(parents, self._draft, batch)
        return self._layouts[key]

    def _make_room(self, width: int) -> None:
        """A batch of rows may be wider than any draft: k rows of w tokens are k (w + 1) rows of a forward."""
        self._widest = max(self._widest, width)
        if self.cache.reserve(self.length + width + 1, keep=self.length):
            self._graphs.drop()

    def _frame(self, width: int) -> Frame:
        if self._graphs.capturing and width > len(self._logits):  # earlier recordings keep their memory, and work on
            shape = max(width, self._widest), len(self.compact.head.weight)
            self._logits = torch.empty(shape, dtype=self.dtype, device=self.device)
        if width not in self._frames:
            if len(self._frames) == FRAMES and not self._graphs.capturing:
                self._frames.clear()
            self._frames[width] = Frame(width, self.windows, self.dtype, self.device)
        return self._frames[width]

    def _target(self, frame: Frame, length: int, taps: Sequence[int]) -> tuple[Tensor, dict[int, Tensor], Tensor]:
        """(width, V) logits, the taps, and the frame's slots and one behind, (width + 1,). Captured on a GPU."""
        slots = frame.past + torch.arange(frame.width + 1, device=self.device)
        positions = frame.past + frame.depths
        masks = {kind: self._mask(frame, kind, length, positions, slots) for kind in self.windows}
        states, hidden = self.compact(ForwardInput(frame.ids, positions, slots[:-1], length, masks), self.cache, taps)
        into = self._logits[: frame.width] if self._graphs.capturing else None
        return self.compact.head(states, into), hidden, slots

    def _mask(self, frame: Frame, kind: str, length: int, positions: Tensor, slots: Tensor) -> Tensor | None:
        """(groups * width, length) additive: the context within the window, and of the frame what its rows see."""
        window = self.windows[kind]
        if frame.width == 1 and window is None and not self.buckets.lengths:
            return None  # the one row sees every key that is read
        column = torch.arange(length, device=self.device)
        held = column < frame.past
        if window is not None:
            held = held & (positions[:, None] - column < window)
        mask = torch.where(held, 0.0, NEVER).to(self.dtype).expand(frame.width, -1).clone()
        mask.index_copy_(1, slots[:-1], frame.bias[kind])
        return mask if self.compact.groups == 1 else mask.repeat(self.compact.groups, 1)

    @torch.inference_mode()
    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Accept, cut and commit; see ``Engine.settle``."""
        assert self._outputs is not None
        logits, hidden, slots = self._outputs
        if self._walk.sampling is None:
            path, tokens, kept = self._accept(logits, slots, late)
        else:
            path, tokens, kept = self._judge(logits, slots, late)
        emitted, done = cut(tokens, self.eos, left)
        kept = kept and len(emitted) == len(tokens)
        self.length += len(emitted)
        self._laps.lap("verify")
        wanted = self._needs.node_topk > 0 or bool(self._needs.hidden)
        step = Step(
            root=self._root,
            emitted=tuple(emitted),
            path=tuple(path[: len(emitted) - 1]),
            done=done,
            late=int(kept),
            fed=self._own(self._active.ids) if wanted else None,
            topk=top(self._own(logits), self._needs.node_topk) if self._needs.node_topk else None,
            hidden={layer: self._own(rows) for layer, rows in hidden.items()},
        )
        self._root, self._sound = emitted[-1], True
        self._walk.advance(len(emitted))
        return step

    def _accept(self, logits: Tensor, slots: Tensor, late: Draft | None) -> tuple[list[int], list[int], bool]:
        """Greedy, on the device: accepted nodes, emitted tokens, whether the late chain's first was right."""
        frame, layout = self._active, self._layout
        call = partial(accept, logits, frame, slots, self._moved(layout.chain))
        result = self._graphs.run((*self._step, layout.chain), call)
        outcome = Outcome.read(result, frame.width, layout.chain, self.dtype)
        path = [layout.node_of(row) for row in outcome.rows]
        kept = late is not None and continues(late, len(path) == len(self._draft), outcome.tokens[-1])
        return path, outcome.tokens, kept

    def _moved(self, chain: bool) -> StaticKV | None:
        """The cache that acceptance compacts; what a chain accepts lies together already."""
        return None if chain else self.cache

    def _judge(self, logits: Tensor, slots: Tensor, late: Draft | None) -> tuple[list[int], list[int], bool]:
        """By the request's distribution, on the host; see ``specbench.target.verify``."""
        depths = self._layout.depths if self._layout.nodes is None else self._layout.depths[self._layout.nodes]
        fed = self._own(self._active.ids)
        tokens, path, bonus, kept = judge(
            self._walk, self._own(logits), self._draft, self._parents, depths[1:].tolist(), fed, late
        )
        nodes = self._layout.nodes
        rows = [node + 1 if nodes is None else int(nodes[node + 1]) for node in path]
        if rows != list(range(1, len(rows) + 1)):
            self.cache.move(slots[torch.tensor(rows, device=self.device)], slots[1 : len(rows) + 1])
        return path, [*(int(tokens[node]) for node in path), bonus], kept

    def _own(self, computed: Tensor) -> Tensor:
        """(width, ...) -> (N+1, ...): row 0 the root, row i + 1 node i of the draft."""
        if self._layout.nodes is None:
            return computed[: len(self._layout)]
        return computed[torch.from_numpy(self._layout.nodes).to(self.device, non_blocking=True)]

    @torch.inference_mode()
    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Judge ``ids`` in one pass over prompt and ids; see ``Engine.gaps``."""
        self._begin_request()
        self.reserve(len(prompt) + len(ids))
        states, _ = self._read([*prompt, *ids[:-1]], ())
        gaps = gaps_to_best(self.compact.head(states[len(prompt) - 1 :]), ids)
        self._sound = True
        return gaps


def _within(window: int | None, context: int) -> int | None:
    """A window that no position leaves is none."""
    return None if window is None or window >= context else window
