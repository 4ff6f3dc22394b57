"""The eager engine: any Hugging Face causal LM, tree attention by a 4-D mask and explicit positions.

Invariant between forwards: the cache holds every token of the context but the last one, the root.
A forward feeds the root and N draft nodes; the accepted nodes' slots are then moved together and the rest forgotten.
A method that needs rows has its draft fed as a batch of rows instead, and the winning row's slots are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specbench.target.eager.cache import SlotCache
from specbench.target.engine import Engine, EngineKind, Laps, Verifier
from specbench.target.family import windows_of
from specbench.target.tree import RowBatch, causal_mask, depths_of, tree_mask
from specbench.target.verify import cut, gaps_to_best, judge, pick, require_fitting, top
from specbench.types import EMPTY, ROOT, Draft, Needs, Prefill, Step


class EagerEngine(Engine):
    """Drives one loaded model. Not re-entrant: one request at a time."""

    kind = EngineKind.EAGER

    def __init__(self, model: Any, context: int, eos: frozenset[int], max_nodes: int) -> None:
        """model: a causal LM in eval mode. context: [tokens] its limit. max_nodes: the largest draft."""
        self.model = model
        self.context = context
        self.max_nodes = max_nodes
        self.eos = eos
        self.fed = 0
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self._windows = windows_of(model.config)
        self.cache = SlotCache.for_model(model)
        self._hops = Hops.of(model)
        self._begin_request()

    def _begin_request(self) -> None:
        self._root = -1
        self._draft = EMPTY
        self._fed = torch.empty(0, dtype=torch.long)
        self._parents: Sequence[int] = ()
        self._depths: list[int] = []
        self._batch: RowBatch | None = None
        self._output: Any = None

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Empty the cache and make room for ``tokens`` and the largest draft; allocates only if it has to grow."""
        self.cache.reserve(min(tokens, self.context) + self.max_nodes + 1)

    @torch.inference_mode()
    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """Read ``prompt`` and pick the first token; see ``Engine.start``."""
        self._begin_request()
        self._walk, self._needs, self._laps = walk, needs, laps
        self.reserve(len(prompt) + limit)
        if not needs.rows:
            self.cache.drop_copies()
        every_row = needs.prompt_topk > 0
        ids = torch.tensor(prompt, device=self.device)
        output = self._run(ids[None], None, (), 0 if every_row else 1, bool(needs.hidden))
        logits = output.logits[0]
        picks, _ = pick(walk, logits[-1:], [0], None)
        self._root = picks[0]
        walk.advance(1)
        best = top(logits if every_row else logits[-1:], max(needs.prompt_topk, needs.node_topk))
        read = slice(None) if needs.prompt_hidden else slice(-1, None)
        hidden = {layer: output.hidden_states[layer][0, read] for layer in needs.hidden}
        return Prefill(self._root, hidden, best)

    @torch.inference_mode()
    def forward(self, draft: Draft) -> None:
        """Feed the root and the draft's nodes; the result waits for ``settle``."""
        self._draft = draft
        self._parents = require_fitting(draft, self.max_nodes)
        self._depths = depths_of(self._parents)
        if isinstance(draft.tokens, Tensor):  # drafted on the device: they come back with the picks, in one read
            self._fed = torch.cat([torch.tensor([self._root], device=self.device), draft.tokens.to(self.device)])
        else:
            self._fed = torch.tensor([self._root, *draft.tokens], device=self.device)
        wanted = bool(self._needs.hidden)
        self._batch = RowBatch.of(self._parents, self._depths) if self._needs.rows else None
        if self._batch is None:
            block = self._fed[None]
            self._output = self._run(block, self._parents, self._depths, 0, wanted)
        else:
            block, width = self._batch.lay_out(self._fed), self._batch.width
            self._output = self._run(block, range(ROOT, width - 1), range(1, width + 1), 0, wanted)
        self.fed = block.numel()
        self._laps.lap("forward")

    @torch.inference_mode()
    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Accept, cut and commit; see ``Engine.settle``."""
        logits = self._computed(self._output.logits)
        tokens, path, bonus, kept = judge(self._walk, logits, self._draft, self._parents, self._depths, self._fed, late)
        emitted, done = cut([*(int(tokens[node]) for node in path), bonus], self.eos, left)
        kept = kept and len(emitted) == len(path) + 1
        path = path[: len(emitted) - 1]
        self._commit(path)
        self._laps.lap("verify")
        step = Step(
            root=self._root,
            emitted=tuple(emitted),
            path=tuple(path),
            done=done,
            late=int(kept),
            fed=self._fed if self._needs.node_topk or self._needs.hidden else None,
            topk=top(logits, self._needs.node_topk),
            hidden={layer: self._computed(self._output.hidden_states[layer]) for layer in self._needs.hidden},
        )
        self._root = emitted[-1]
        self._walk.advance(len(emitted))
        self._output = None
        return step

    def _computed(self, tensor: Tensor) -> Tensor:
        """What the last forward gave, as (N+1, X): row 0 the root, row i + 1 node i of the draft."""
        return tensor[0] if self._batch is None else self._batch.collect(tensor)

    def _commit(self, path: Sequence[int]) -> None:
        """Keep the keys and values of the root and the accepted path, forget the other nodes'."""
        if self._batch is None:
            past = self.cache.length - len(self._draft) - 1
            self.cache.keep(past, [past, *(past + 1 + node for node in path)])
        else:
            self.cache.keep_row(self._batch.row_of(path), len(path) + 1)

    @torch.inference_mode()
    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Judge ``ids`` in one pass over prompt and ids; see ``Engine.gaps``."""
        self.cache.reserve(len(prompt) + len(ids))
        tokens = torch.tensor([*prompt, *ids[:-1]], device=self.device)
        return gaps_to_best(self._run(tokens[None], None, (), len(ids), False).logits[0], ids)

    def _run(
        self, tokens: Tensor, parents: Sequence[int] | None, depths: Sequence[int], last: int, want_hidden: bool
    ) -> Any:
        """One call of the model over (k, T) tokens, the same tree of them in each of the k rows.

        parents: None = a prompt, from an empty cache. depths: of ``parents``. last: so many rows' logits, 0 = all.
        """
        length, past = tokens.shape[1], self.cache.length
        at = range(length) if parents is None else [past, *(past + depth for depth in depths)]
        end = self.context - 1  # nodes beyond the context can never be accepted, but their position must exist
        positions = torch.tensor([[min(place, end) for place in at]], device=self.device)
        mask = self._mask(length, parents, depths, past)
        if parents is not None:
            self._laps.lap("prepare")
        if self._hops:
            self._hops.forget()
        return self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=last,
            output_hidden_states=want_hidden,
        )

    def _mask(self, length: int, parents: Sequence[int] | None, depths: Sequence[int], past: int) -> Any:
        """One mask, or one a kind of layer; None where causal attention over everything is meant: the fastest path."""
        plain = parents is None or not len(parents)
        if plain and list(self._windows.values()) == [None]:
            return None
        masks = {kind: self._build(length, parents, depths, past, size) for kind, size in self._windows.items()}
        return next(iter(masks.values())) if len(masks) == 1 else masks

    def _build(
        self, length: int, parents: Sequence[int] | None, depths: Sequence[int], past: int, window: int | None
    ) -> Tensor:
        if parents is None:
            mask = causal_mask(length, window, self.dtype)
        else:
            mask = tree_mask(parents, depths, past, window, self.dtype)
        return mask.to(self.device, non_blocking=True)


class Hops:
    """The moves of one model's forward."""

    def __init__(self, layers: nn.ModuleList) -> None:
        """layers: those of the model, each with the library's hook, which knows its device."""
        self._moved: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}  # the first keeps the number its own
        for layer in layers:
            layer.register_forward_pre_hook(self._bring, with_kwargs=True)

    @classmethod
    def of(cls, model: Any) -> Hops | None:
        """None where the model is on one device."""
        if len(set(getattr(model, "hf_device_map", {}).values())) < 2:
            return None
        count = model.config.get_text_config().num_hidden_layers
        lists = (each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count)
        layers = next(lists, None)
        return cls(layers) if layers is not None else None

    def forget(self) -> None:
        """A new forward begins."""
        self._moved.clear()

    def _bring(self, layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hook = getattr(layer, "_hf_hook", None)
        place = getattr(hook, "execution_device", None)
        if place is None:
            return args, kwargs
        device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
        return args, {name: self._there(value, device) for name, value in kwargs.items()}

    def _there(self, value: Any, device: torch.device) -> Any:
        if isinstance(value, tuple):
            return tuple(self._there(each, device) for each in value)
        if not isinstance(value, Tensor) or value.device == device:
            return value
        key = id(value), device
        if key not in self._moved:
            self._moved[key] = value, value.to(device, non_blocking=True)
        return self._moved[key][1]
