"""The eager engine: runs any Hugging Face causal LM, with tree attention by a 4-D mask and explicit
positions.

Invariant between forwards: the cache contains every token of the context except the last one, the
root. A forward feeds the root and N draft nodes; the accepted nodes' slots are then moved together
and the rest forgotten. If a method needs rows, its draft is fed as a batch of rows instead, and the
accepted row's slots are appended. In a batch of requests, a forward has one row per place, from the
first to the last place that takes part, padded to the longest draft. The padding, and places in
between that do not take part, feed any token: they write after the cached tokens of their place,
and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from typing_extensions import override

from specbench.models.batch import PackedRows, PaddedRows, SlotBatch
from specbench.models.eager.cache import SlotCache
from specbench.models.engine import SILENT, Engine, Laps, Verifier, inferring
from specbench.models.family import find_windows
from specbench.models.transfer import upload
from specbench.models.tree import (
    RowBatch,
    build_causal_mask,
    build_tree_mask,
    compute_depths,
    list_masked_chunks,
)
from specbench.models.verify import ActiveRequest, compute_gaps, cut, find_top
from specbench.records.record import EngineKind
from specbench.types import ROOT, Draft, Needs, Prefill, Step


class EagerBatch(SlotBatch):
    """The batch of the eager engine."""

    engine: EagerEngine

    def __init__(self, engine: EagerEngine, requests: int, tokens: int, laps: Laps) -> None:
        super().__init__(engine, requests, tokens, laps)
        self.cache = SlotCache(engine.cache.shapes, requests)
        self.cache.allocate(self.room)

    @override
    def nbytes(self) -> int:
        return self.cache.nbytes()

    @override
    def feed(
        self, rows: PackedRows, taps: Sequence[int], wanted: int
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        padded = PaddedRows(rows, self.lengths(), self.engine.context)
        for layer in self.cache.slots:
            device = layer.keys.device
            layer.at = (
                padded.places,
                upload(padded.numbers, device),
                upload(padded.slots, device),
                padded.end,
            )
        nodes = upload(padded.nodes, self.engine.device)
        ids = rows.ids.new_zeros(padded.slots.size)
        ids[nodes] = rows.ids
        masks = {
            kind: padded.build_mask(window, self.engine.dtype).to(self.engine.device)
            for kind, window in self.engine.windows.items()
        }
        output = self.engine.call_model(
            ids.view(padded.slots.shape),
            upload(padded.positions, self.engine.device),
            next(iter(masks.values())) if len(masks) == 1 else masks,
            self.cache,
            1 if wanted == 1 else 0,
            bool(taps),
        )
        logits = output.logits[0] if wanted == 1 else output.logits.flatten(0, 1)[nodes]
        return logits, {layer: output.hidden_states[layer].flatten(0, 1)[nodes] for layer in taps}

    @override
    def move(self, places: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        self.cache.move(places, sources, targets)

    @override
    def wipe(self, place: int) -> None:
        self.cache.wipe(place)

    @override
    def end(self) -> None:
        self.cache.allocate(0)


@dataclass(slots=True)
class EagerRequest(ActiveRequest):
    """The last forward.

    output: the model's, with logits (k, T, V) and hidden states (k, T, D); k = 1 but for a batch of
    rows.
    """

    fed: Tensor = field(init=False)  # (N+1,) int64 tokens of root and draft
    depths: list[int] = field(init=False)  # (N,)
    batch: RowBatch | None = field(init=False)  # where the draft was rows
    output: Any = field(init=False)

    def select(self, computed: Tensor) -> Tensor:
        """(k, T, X) of the last forward -> (N+1, X): row 0 the root, row i + 1 node i of the
        draft.
        """
        return computed[0] if self.batch is None else self.batch.collect(computed)


class EagerEngine(Engine):
    """Drives one loaded model, one request at a time.

    Hooks for a test without a model: ``run_model`` is the forward, ``commit`` keeps an accepted
    path.
    """

    kind = EngineKind.EAGER

    def __init__(self, model: Any, context: int, eos: frozenset[int], max_nodes: int) -> None:
        """model: a causal LM in eval mode. context: [tokens] its limit. max_nodes: the largest
        draft.
        """
        self.model = model
        self.context, self.max_nodes, self.eos = context, max_nodes, eos
        self.fed = 0
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.windows = find_windows(model.config)
        self.cache = SlotCache.for_model(model)
        self._moves = DeviceMoves.of(model)
        self._kept = 0  # [tokens] in the cache that the next prompt begins with
        self.request = EagerRequest(Needs(), SILENT)

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Empty the cache and make room for ``tokens`` and the largest draft; allocates only if it
        has to grow.
        """
        slots = min(tokens, self.context) + self.max_nodes + 1
        if self._kept:
            self.cache.truncate(self._kept)
            self.cache.grow(slots)
        else:
            self.cache.reserve(slots)

    @override
    def keep_prefix(self, tokens: int) -> int:
        self._kept = min(tokens, self.cache.length)
        return self._kept

    @torch.inference_mode()
    def start(
        self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps
    ) -> Prefill:
        request = self.request = EagerRequest(needs, laps)
        request.walk = walk
        self.reserve(len(prompt) + limit)
        if not needs.rows:
            self.cache.drop_copies()
        ids = torch.tensor(prompt, device=self.device)[None]
        *parts, last = list_masked_chunks(len(prompt), self._kept)
        self._kept = 0
        for part in parts:
            logits, hidden = self._read(ids[:, part], needs)
            request.keep_chunk(logits if needs.prompt_topk else None, hidden)
        return request.emit_first(*self._read(ids[:, last], needs))

    def _read(self, ids: Tensor, needs: Needs) -> tuple[Tensor, dict[int, Tensor]]:
        """A chunk of a prompt (1, m): logits (m, V), of its last row alone (1, V), and layer -> (m,
        D).
        """
        output = self.run_model(ids, None, (), 0 if needs.prompt_topk else 1, bool(needs.hidden))
        return output.logits[0], {layer: output.hidden_states[layer][0] for layer in needs.hidden}

    @inferring
    def forward(self, draft: Draft) -> None:
        request = self.request
        request.take(draft, self.max_nodes)
        parents, depths = request.host_parents, compute_depths(request.host_parents)
        # drafted on the device: they come back with the picks, in one read
        if isinstance(draft.tokens, Tensor):
            fed = torch.cat([upload([request.root], self.device), draft.tokens.to(self.device)])
        else:
            fed = upload([request.root, *draft.tokens], self.device)
        batch = RowBatch.of(parents, depths) if request.needs.rows else None
        request.fed, request.depths, request.batch = fed, depths, batch
        block: Tensor = fed[None]
        given: tuple[Sequence[int], Sequence[int]] = parents, depths
        if batch is not None:
            block, given = (
                batch.lay_out(fed),
                (range(ROOT, batch.width - 1), range(1, batch.width + 1)),
            )
        request.output = self.run_model(block, *given, 0, bool(request.needs.hidden))
        self.fed = block.numel()
        request.laps.lap("forward")

    @inferring
    def settle(self, left: int, late: Draft | None = None) -> Step:
        request = self.request
        needs, output = request.needs, request.output
        logits = request.select(output.logits)
        request.topk = find_top(logits, needs.node_topk)  # enqueued before the device is waited for
        given: Any = {
            "fed": request.fed if needs.node_topk or needs.hidden else None,
            "hidden": {
                layer: request.select(output.hidden_states[layer]) for layer in needs.hidden
            },
        }
        path, tokens, kept = request.verify(logits, [0, *request.depths], request.fed, late)
        emitted, done = cut(tokens, self.eos, left)
        self.commit(path[: len(emitted) - 1])
        request.laps.lap("verify")
        request.output = None
        return request.close_step(
            emitted, path, done, kept and len(emitted) == len(tokens), **given
        )

    def commit(self, path: Sequence[int]) -> None:
        """Keep the keys and values of the root and the accepted path, forget the other nodes'."""
        batch = self.request.batch
        if batch is None:
            past = self.cache.length - len(self.request.draft) - 1
            self.cache.keep(past, [past, *(past + 1 + node for node in path)])
        else:
            self.cache.keep_row(batch.row_of(path), len(path) + 1)

    @torch.inference_mode()
    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Judge ``ids`` in one pass over prompt and ids, chunk by chunk; see ``Engine.gaps``."""
        self.cache.reserve(len(prompt) + len(ids))
        tokens = torch.tensor([*prompt, *ids[:-1]], device=self.device)[None]
        first, gaps = len(prompt) - 1, list[float]()  # the row that predicts the first id
        for part in list_masked_chunks(tokens.shape[1]):
            wanted = part.stop - max(part.start, first)
            logits = self.run_model(tokens[:, part], None, (), max(wanted, 1), False).logits[0]
            if wanted > 0:
                gaps += compute_gaps(logits, ids[part.stop - wanted - first : part.stop - first])
        return gaps

    @torch.inference_mode()
    @override
    def batch(self, requests: int, tokens: int, laps: Laps = SILENT) -> EagerBatch:
        return EagerBatch(self, requests, tokens, laps)

    def run_model(
        self,
        tokens: Tensor,
        parents: Sequence[int] | None,
        depths: Sequence[int],
        last: int,
        want_hidden: bool,
    ) -> Any:
        """Call the model over (k, T) tokens, the same tree of them in each of the k rows.

        parents: None = the next chunk of a prompt. depths: of ``parents``. last: number of rows
        with logits, 0 = all.
        """
        length, past = tokens.shape[1], self.cache.length
        at = (
            range(past, past + length)
            if parents is None
            else [past, *(past + depth for depth in depths)]
        )
        # nodes beyond the context can never be accepted, but their position must exist
        end = self.context - 1
        positions = upload([[min(place, end) for place in at]], self.device)
        mask = self._mask(length, parents, depths, past)
        if parents is not None:
            self.request.laps.lap("prepare")
        return self.call_model(tokens, positions, mask, self.cache, last, want_hidden)

    def call_model(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Any,
        cache: Cache,
        last: int,
        want_hidden: bool,
    ) -> Any:
        """The library's forward. tokens: (k, T). positions: (k, T) or (1, T). mask, last: see
        ``run_model``.
        """
        if self._moves:
            self._moves.forget()
        return self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=last,
            output_hidden_states=want_hidden,
        )

    def _mask(
        self, length: int, parents: Sequence[int] | None, depths: Sequence[int], past: int
    ) -> Any:
        """One mask, or one a kind of layer; None where causal attention over everything is meant:
        the fastest path.
        """
        plain = length == 1 or (parents is None and not past)
        if plain and list(self.windows.values()) == [None]:
            return None
        masks = {}
        for kind, window in self.windows.items():
            if parents is None:
                mask = build_causal_mask(past + length, window, self.dtype, past)
            else:
                mask = build_tree_mask(parents, depths, past, window, self.dtype)
            masks[kind] = mask.to(self.device, non_blocking=True)
        return next(iter(masks.values())) if len(masks) == 1 else masks


class DeviceMoves:
    """Layers on several devices: mask, positions and rotation are moved to a device once a forward.

    The library's hooks would move them for each layer. Here the first layer of a device moves them
    for the next ones.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        """layers: those of the model, each with the library's hook, which has its device."""
        # the first one keeps its id in use
        self._moved: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        for layer in layers:
            layer.register_forward_pre_hook(self._move_inputs, with_kwargs=True)

    @classmethod
    def of(cls, model: Any) -> DeviceMoves | None:
        """Make the moves of a model; None if it is on one device."""
        if len(set(getattr(model, "hf_device_map", {}).values())) < 2:
            return None
        count = model.config.get_text_config().num_hidden_layers
        lists = (
            each
            for each in model.modules()
            if isinstance(each, nn.ModuleList) and len(each) == count
        )
        layers = next(lists, None)
        return cls(layers) if layers is not None else None

    def forget(self) -> None:
        """Forget the tensors of the last forward."""
        self._moved.clear()

    def _move_inputs(
        self, layer: Any, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        hook = getattr(layer, "_hf_hook", None)
        place = getattr(hook, "execution_device", None)
        if place is None:
            return args, kwargs
        device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
        return args, {name: self._move(value, device) for name, value in kwargs.items()}

    def _move(self, value: Any, device: torch.device) -> Any:
        if isinstance(value, tuple):
            return tuple(self._move(each, device) for each in value)
        if not isinstance(value, Tensor) or value.device == device:
            return value
        key = id(value), device
        if key not in self._moved:
            self._moved[key] = value, value.to(device, non_blocking=True)
        return self._moved[key][1]
