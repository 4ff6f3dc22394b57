"""The fast engine: a compact forward on static buffers; a draft changes the values of the buffers,
never their shapes.

A step is two calls on tensors: the target's forward over a frame, then acceptance and compaction on
the device. On a GPU both are captured into CUDA graphs, the first for each width and key length,
the second for each width and number of rows that it may move; on a CPU the same two functions run
uncaptured. One read-back a step brings the accepted tokens to the host. Sampling verifies on the
host as in the eager engine, from the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.engine import SILENT, Laps, Verifier, inferring
from specbench.models.fast.batch import FastBatch, RecordedBatch
from specbench.models.fast.compact import read_prompt
from specbench.models.fast.core import FastCore
from specbench.models.fast.frame import FastRequest, TreeFrame, accept, read_outcome
from specbench.models.fast.graphs import Frames, Graphs, many_recordings
from specbench.models.fast.host.forward import SHORT
from specbench.models.fast.layout import Layouts
from specbench.models.transfer import upload
from specbench.models.tree import list_chunks
from specbench.models.verify import compute_gaps, continues, cut, find_top
from specbench.records.record import EngineKind
from specbench.types import Draft, Needs, Prefill, Step

# [tokens] of context that a GPU has capacity for from the start; a longer request records again
STANDING = 8192


class FastEngine(FastCore):
    """Drives one loaded model of the Llama family, one request at a time.

    Tensors of a ``Step`` are valid until the next ``forward``: on a GPU they are in the graphs' own
    memory. Hooks, for an engine on a share of the weights or along a record:

    read_prompt: the forward over a prompt. compute: the forward over a frame, captured on a GPU.
    announce: the draft is laid out; a forward of this width comes next.
    accept: greedy acceptance on the device. note_accepted: the path that was accepted.
    record: the graphs of one method's needs.
    """

    kind = EngineKind.FAST
    lays_out = True  # drafts whose parents are on the device, without reading them
    forces = False  # the picks of acceptance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See ``FastCore``."""
        super().__init__(*args, **kwargs)
        self.fed = 0
        self.accept_rows = self.compiled.accept if self.compiled else accept
        given: Any = {"windows": self.windows, "dtype": self.dtype, "device": self.device}
        make = partial(TreeFrame, **given, attend=self.attend, forces=self.forces)
        self.frames = Frames(make, self.buckets, self.compact.head.weight)
        self.graphs = Graphs(self.device)
        # Their own memory: else they, recorded once per width, would overwrite the hidden states of
        # later forwards.
        self.acceptances = Graphs(self.device)
        self._layouts = Layouts()
        self._standing = 0  # [tokens] of context that there is always room for
        self.cache = self.compact.new_cache()
        # the cache contains finite numbers only: no request failed in the middle
        self._clean = True
        self._kept = 0  # [tokens] in the cache that the next prompt begins with
        self.request = FastRequest(Needs(), SILENT)

    def _begin(self, kept: int = 0) -> None:
        """Zero the cache after ``kept`` tokens if the last request left numbers there that may not
        be finite.
        """
        if not self._clean:
            self.cache.clear(kept)
        self._clean = False

    @override
    def keep_prefix(self, tokens: int) -> int:
        self._kept = min(tokens, self.request.length)
        return self._kept

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` and the largest forward; see ``Engine.reserve``."""
        wanted = self.count_slots(tokens)
        if wanted > self.cache.capacity and self._move_cache(self.buckets.room(wanted), self._kept):
            for taps, greedy in self.prepared:
                self.record(taps, greedy)

    def count_slots(self, tokens: int) -> int:
        """Slots that a request of ``tokens`` is given, the largest forward included."""
        return min(max(tokens, self._standing), self.context) + self._widest + 1

    def _move_cache(self, slots: int, keep: int = 0) -> bool:
        """True if the cache has moved to have room for ``slots``; its first ``keep`` are kept, and
        no recording.
        """
        if slots > self.cache.capacity:
            self.drop_recordings()  # before memory is asked for, which there may not be
        return self.cache.reserve(slots, keep)

    def drop_recordings(self) -> None:
        """Forget what is recorded, and free its memory."""
        self.graphs.drop()
        self.acceptances.drop()

    @torch.inference_mode()
    def prepare(self, needs: Needs, greedy: bool) -> None:
        """Record the graphs of every width and key length; see ``Engine.prepare``."""
        widest = max((self._widest, *self.buckets.widths)) if needs.rows else self._widest
        prepared = (needs.hidden, greedy) in self.prepared and widest == self._widest
        if not self.graphs.capturing or prepared:
            return
        self._widest = widest
        self.prepared[needs.hidden, greedy] = None
        self._standing = STANDING
        # away from what the engine's check recorded on a smaller one
        self._move_cache(self.count_slots(0))
        for taps, each in self.prepared:
            self.record(taps, each)

    def record(self, taps: tuple[int, ...], greedy: bool) -> None:
        """Record every width and key length. taps: hidden states to return. greedy: acceptance on
        the device too.
        """
        with many_recordings():
            for width in (size for size in self.buckets.widths if size <= self._widest):
                frame = self.frames.find(width, most=self._widest)
                frame.clear()
                for length in self.buckets.list_lengths(width, self.cache.capacity):
                    logits, _ = self.graphs.run(
                        (width, length, taps), partial(self.compute, frame, length, taps)
                    )
                if self.lays_out:
                    frame.prepare_layout(self.acceptances.run)
                for moved in self.buckets.list_moved(width) if greedy else ():
                    self.acceptances.run(
                        (width, moved), partial(accept, logits, frame, self.cache, moved)
                    )

    @torch.inference_mode()
    def start(
        self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps
    ) -> Prefill:
        """Read ``prompt`` and pick the first token; see ``Engine.start``."""
        self._begin(self._kept)
        request = self.request = FastRequest(needs, laps)
        request.walk = walk
        self.reserve(len(prompt) + limit)
        kept, self._kept = self._kept, 0
        states, hidden = self.read_prompt(prompt, needs.hidden, kept)
        *parts, last = list_chunks(len(prompt)) if needs.prompt_topk else [slice(-1, None)]
        for part in parts:
            request.keep_chunk(self.compact.head(states[part]), {})
        prefill = request.emit_first(self.compact.head(states[last]), hidden)
        request.length = len(prompt)
        self._clean = True
        return prefill

    def read_prompt(
        self, prompt: Sequence[int], taps: Sequence[int], kept: int = 0
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """States (n, D) of a prompt's n tokens after the ``kept`` in the cache, and layer -> (n, D)
        of ``taps``.
        """
        if self.compiled and len(prompt) <= SHORT and not kept:
            return self.compiled.read(self.cache, prompt, taps)
        inputs = self.list_prompt_inputs(upload(prompt[kept:], self.device), past=kept)
        return read_prompt(self.compact, self.cache, inputs, len(prompt) - kept, tuple(taps))

    @torch.inference_mode()
    @override
    def batch(self, requests: int, tokens: int, laps: Laps = SILENT) -> FastBatch:
        return (RecordedBatch if self.records_batches else FastBatch)(self, requests, tokens, laps)

    @inferring
    def forward(self, draft: Draft) -> None:
        """Feed the root and the draft's nodes; the result waits for ``settle``."""
        request = self.request
        request.take(draft, self.max_nodes, self.lays_out)
        self._clean = False
        layout = request.layout = self._layouts.find(
            request.parents, request.draft, request.needs.rows
        )
        width = self.buckets.width(len(layout))
        self.announce(width)
        self._make_room(width)
        frame = request.frame = self.frames.find(width, most=self._widest)
        frame.fill(request.root, draft.tokens, request.length, layout, self.acceptances.run)
        self.fed = len(layout)
        length = self.buckets.length(request.length + width, self.cache.capacity)
        request.laps.lap("prepare")
        taps = request.needs.hidden
        request.key = (width, length, taps)
        request.moved = 0 if layout.chain else self.buckets.moved(layout.depth, width)
        call = partial(self.compute, frame, length, taps)
        request.logits, request.hidden = self.graphs.run(request.key, call)
        request.laps.lap("forward")

    def announce(self, width: int) -> None:
        """Do nothing; a hook, see the class."""

    def _make_room(self, width: int) -> None:
        """A batch of rows may be wider than any draft: k rows of w tokens are k (w + 1) rows of a
        forward.
        """
        self._widest = max(self._widest, width)
        self._move_cache(self.request.length + width + 1, keep=self.request.length)

    def compute(
        self, frame: TreeFrame, length: int, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The forward over a frame, reading keys of ``length`` slots: logits and hidden of
        ``FastRequest``.
        """
        if self.compiled:
            return self.compiled(frame, self.cache, taps)
        padded = frame.width > 1 or self.buckets.whole or self.buckets.lengths
        masked = [kind for kind, window in self.windows.items() if padded or window is not None]
        rows = frame.make_input(length, masked, self.compact.groups)
        states, hidden = self.compact(rows, self.cache, taps)
        return self.compact.head(states, frame.logits), hidden

    @inferring
    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Accept, cut and commit; see ``Engine.settle``."""
        request = self.request
        best = request.needs.node_topk
        # enqueued before the wait
        request.topk = find_top(request.select(request.logits), best) if best else None
        given: Any = {
            "fed": request.select(request.frame.ids) if best or request.needs.hidden else None,
            "hidden": {layer: request.select(states) for layer, states in request.hidden.items()},
        }
        if request.walk.sampling is None and not request.walk.lossy:
            path, tokens = self.accept()
            kept = continues(late, len(path) == len(request.draft), tokens[-1])
        else:
            path, tokens, kept = self._verify(late)
        self.note_accepted(path)
        emitted, done = cut(tokens, self.eos, left)
        request.length += len(emitted)
        request.laps.lap("verify")
        return request.close_step(
            emitted, path, done, kept and len(emitted) == len(tokens), **given
        )

    def accept(self) -> tuple[list[int], list[int]]:
        """Greedy acceptance of the last draft: accepted nodes, and the tokens to emit."""
        request = self.request
        frame, moved = request.frame, request.moved
        call = partial(self.accept_rows, request.logits, frame, self.cache, moved)
        (numbers,) = request.read(self.acceptances.run((frame.width, moved), call))
        rows, tokens = read_outcome(numbers, moved, self.dtype)
        return [request.layout.node_of(row) for row in rows], tokens

    def _verify(self, late: Draft | None) -> tuple[list[int], list[int], bool]:
        """See ``ActiveRequest.verify``; then the accepted rows are moved together."""
        request = self.request
        fed = request.select(request.frame.ids)
        path, tokens, kept = request.verify(
            request.select(request.logits), request.frame.depths_of(request.layout), fed, late
        )
        if rows := request.layout.rows_to_move(path):
            slots = request.frame.slots
            self.cache.move(slots[upload(rows, self.device)], slots[1 : len(rows) + 1])
        return path, tokens, kept

    def note_accepted(self, path: Sequence[int]) -> None:
        """Do nothing; a hook, see the class."""

    @torch.inference_mode()
    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Judge ``ids`` in one pass over prompt and ids, their logits in chunks; see
        ``Engine.gaps``.
        """
        self._begin()
        self.reserve(len(prompt) + len(ids))
        judged = self.read_prompt([*prompt, *ids[:-1]], ())[0][len(prompt) - 1 :]
        gaps = [
            compute_gaps(self.compact.head(judged[part]), ids[part])
            for part in list_chunks(len(ids))
        ]
        self._clean = True
        return [gap for part in gaps for gap in part]
