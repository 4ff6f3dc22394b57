"""A decoder layer that transformers computes for a trained head: experts, latent and gated attention need no code here.

The layer is the only one of a model of its family, whose embedding and final norm are not used. Slots, positions and
masks are given to it as the eager engine gives them to a target. Requests do not share a forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel
from transformers.core_model_loading import revert_weight_conversion
from typing_extensions import override

from methods.parts.draft_layer import GROWTH, DraftLayers, LayerMemory, LayersCall
from methods.parts.head_file import HeadFile, TensorShape, require_vocabulary
from specbench.models.eager.cache import SlotCache
from specbench.models.entries import refuse_entries
from specbench.models.family import EXPERTS, check_family, find_steady_context
from specbench.models.load import UNREADABLE, choose_experts, explain
from specbench.models.tree import build_causal_mask, list_masked_chunks
from specbench.types import InputError

# Settings of one layer with full attention and experts, without tokens of its own; a family has some of them.
ALONE: dict[str, Any] = {
    "num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_layer_types": ["sparse"],
    "first_k_dense_replace": 0, "mlp_only_layers": [], "decoder_sparse_step": 1, "vocab_size": 1,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
MOST_EXPERTS = 4096
FIRST, UNUSED = "layers.0.", ("embed_tokens.weight", "norm.weight")


def list_settings(family: str) -> frozenset[str]:
    """The names of a family's settings in ``config.json``."""
    kind = CONFIG_MAPPING[family]
    return frozenset({*kind().to_dict(), *kind.attribute_map, *ALONE})


def configure_layer(file: HeadFile, target: Any) -> Any:
    """The configuration of a model of the head's family with one layer.

    target: its configuration. Raises InputError.
    """
    raw, family = file.layer, str(file.layer["model_type"])
    require_vocabulary(file, raw.get("vocab_size"), target)
    for name in EXPERTS:
        if raw.get(name) is not None and not (type(raw[name]) is int and 1 <= raw[name] <= MOST_EXPERTS):
            raise InputError(f"{file.where}: {name}={raw[name]!r}; expected a whole number from 1 to {MOST_EXPERTS}")
    known = CONFIG_MAPPING[family]().to_dict()
    try:
        config = CONFIG_MAPPING[family].from_dict({**raw, **{name: ALONE[name] for name in ALONE if name in known}})
        limit = int(config.max_position_embeddings)
        switches = find_steady_context(config, limit)[0] < limit
    except UNREADABLE as error:
        raise InputError(f"{file.where}: config.json describes no layer of {family} ({explain(error)})") from error
    refuse_entries(config, f"{file.where}: config.json")
    check_family(config, file.where)
    if switches:
        raise InputError(f"{file.where}: its rotary positions change with the length; expected steady ones, as yarn")
    return config


def list_shapes(config: Any, where: str) -> dict[str, TensorShape]:
    """Names and shapes of the layer's tensors in a checkpoint of its family. Raises InputError."""
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        stored = revert_weight_conversion(model, model.state_dict())
    except (*UNREADABLE, RuntimeError) as error:
        raise InputError(
            f"{where}: config.json describes no layer of {config.model_type} ({explain(error)})"
        ) from error
    return {name.removeprefix(FIRST): tuple(each.shape) for name, each in stored.items() if name not in UNUSED}


class LibraryMemory(LayerMemory):
    """Keys and values of one request, as the family stores them, in the cache of the eager engine."""

    def __init__(self, layers: LibraryLayer, nodes: int) -> None:
        self.nodes, self.length = nodes, 0
        self.mask = layers.like.new_empty(0, 0)
        self.cache = SlotCache(layers.shapes)
        self.reserve(GROWTH)

    @override
    def reserve(self, tokens: int) -> None:
        self.cache.truncate(self.length)
        self.cache.grow(tokens + self.nodes)


class LibraryLayer(DraftLayers):
    """The layer. shapes: of its keys and values."""

    def __init__(self, state: Mapping[str, Tensor], config: Any, like: Tensor, where: str) -> None:
        """state: with the names of ``list_shapes``. like: an empty tensor of the target's dtype. Raises InputError."""
        empty = like.new_zeros(1, config.hidden_size), like.new_ones(config.hidden_size)
        named = {**{f"{FIRST}{name}": each for name, each in state.items()}, **dict(zip(UNUSED, empty, strict=True))}
        kind: Any = AutoModel._model_mapping[type(config)]
        options = {"dtype": like.dtype, "experts_implementation": choose_experts(like.dtype)}
        try:
            self._model = kind.from_pretrained(None, config=config, state_dict=named, **options).to(like.device).eval()
            self.shapes = SlotCache.for_model(self._model).shapes
        except (*UNREADABLE, RuntimeError) as error:
            raise InputError(f"{where}: no layer of {config.model_type} can be built ({explain(error)})") from error
        self._norm, self._model.norm = self._model.norm, nn.Identity()
        self.like, self.count, self.compiled = like, 1, None

    def normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(rows, D) after a norm of the family with this weight."""
        return torch.func.functional_call(self._norm, {"weight": weight}, (hidden,))

    @override
    def new_memory(self, nodes: int, width: int) -> LibraryMemory:
        return LibraryMemory(self, nodes)

    @override
    def run_together(self, calls: Sequence[LayersCall]) -> list[Tensor]:
        return [self._run(call) for call in calls]

    @torch.no_grad()
    def _run(self, call: LayersCall) -> Tensor:
        """(outputs, D) of one request."""
        memory, start, end = call.memory, call.first, call.first + len(call.residual)
        assert isinstance(memory, LibraryMemory)
        memory.cache.truncate(start)
        if call.seen is not None:
            near = call.seen[:, : end - memory.length]
            shown = torch.cat([near.new_zeros(len(near), memory.length), near], 1)
            return self._call(memory, call.residual, call.at, shown.clamp(min=torch.finfo(near.dtype).min)[None, None])
        written = []
        for part in list_masked_chunks(end, start):
            later = part.start and part.stop - part.start > 1
            mask = build_causal_mask(part.stop, None, self.like.dtype, part.start) if later else None
            written.append(self._call(memory, call.residual[part.start - start : part.stop - start], part, mask))
        return torch.cat(written)[-call.outputs :]

    def _call(self, memory: LibraryMemory, rows: Tensor, at: slice, mask: Tensor | None) -> Tensor:
        """(m, D) after the layer.

        rows: (m, D). at: their positions, one for all or one each. mask: (1, 1, m, slots) additive; None is causal.
        """
        device = rows.device
        written: Tensor = self._model(
            inputs_embeds=rows[None],
            attention_mask=None if mask is None else mask.to(device),
            position_ids=torch.arange(at.start, at.stop, device=device).expand(1, len(rows)),
            past_key_values=memory.cache,
            use_cache=True,
        ).last_hidden_state[0]
        return written
