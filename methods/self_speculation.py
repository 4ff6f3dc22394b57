"""Self-speculation: the target with some of its layers left out is its own draft model (Zhang et al. 2024).

LayerSkip (Elhoushi et al. 2024) leaves by an early exit, the layers above it are skipped; SWIFT (Xia et al. 2025) skips
layers in between and ends a chain where it is unsure. The layers that are kept share their weights with the target and
have a KV cache of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from methods.parts.draft_lm.chain import ChainMethod, Schedule
from methods.parts.draft_lm.draft_lm import CHAIN, DraftLM
from methods.parts.draft_lm.draft_method import TargetTraits
from specbench.target.facade import ModelCard, Target
from specbench.types import InputError


def keep_layers(model: Any, kept: Sequence[int]) -> Any:
    """A causal LM of the layers ``kept``, in this order, which shares their weights with ``model``."""
    part, body = _shallow(model), _shallow(model.model)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in kept]
    part.config = body.config = config
    layers = [_shallow(model.model.layers[layer]) for layer in kept]
    for place, layer in enumerate(layers):
        attention = layer._modules["self_attn"] = _shallow(layer.self_attn)
        attention.layer_idx = place  # in the cache
    body._modules["layers"] = nn.ModuleList(layers)
    part._modules["model"] = body
    return part


def _shallow(module: nn.Module) -> Any:
    """The same parameters in another module."""
    found = copy.copy(module)
    found._modules = dict(module._modules)
    return found


class SelfSpeculation(ChainMethod):
    """skip: layers left out, from 0 on; None = every second one between the first and the last.

    exit: layers that are kept from the first on, in place of ``skip``. The rest as ``ChainMethod``.
    """

    sources = ("self",)

    def __init__(
        self,
        skip: list[int] | None = None,
        exit: int | None = None,
        length: int = 25,
        schedule: Schedule = "confidence",
        threshold: float = 0.8,
        choice: Literal["drawn", "argmax"] = "drawn",
        draft_temperature: float | None = None,
    ) -> None:
        if skip is not None and exit is not None:
            raise InputError(f"exit={exit}: and skip={skip}; expected one of them")
        super().__init__(None, length, schedule, threshold, choice, draft_temperature)
        self._skip, self._exit = skip, exit
        self.kept: list[int] = []

    def check(self, model: ModelCard) -> None:
        """Some layers must be left, and some skipped."""
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
        if layers is None:
            raise InputError("needs the target's weights, and a replay has only recorded tokens; choose a model")
        skipped = set(range(1, max(2, layers - 1), 2) if self._skip is None else self._skip)
        if self._exit is not None:
            skipped = set(range(self._exit, layers))
        self.kept = [layer for layer in range(layers) if layer not in skipped]
        if not 0 < len(self.kept) < layers or not skipped <= set(range(layers)):
            given = f"skip={self._skip}" if self._exit is None else f"exit={self._exit}"
            raise InputError(
                f"{given}: keeps {len(self.kept)} of {layers} layers; expected some of 0 to {layers - 1} to be skipped"
            )

    def bind(self, target: Target) -> None:
        """Draft with the target's own layers."""
        target.dtype  # noqa: B018 (raises for a replay, which has no weights)
        self.check(target.card)
        layers: Any = getattr(getattr(target.model, "model", None), "layers", None)
        if layers is None or not hasattr(layers[0], "self_attn"):
            raise InputError(f"skip: model={target.card.name} is not built as Llama is; expected layers with self_attn")
        text, out = target.card.config.get_text_config(), layers[0].self_attn.o_proj
        size = getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads
        devices = {parameter.device for parameter in target.model.parameters()}
        if len(devices) > 1 or out.weight.shape[1] != text.num_attention_heads * size:
            raise InputError("skip: the target is shared by several devices; expected model.gpus=1")
        lm = DraftLM(keep_layers(target.model, self.kept), target.card.context, target.attention)
        lm.prepare(CHAIN)
        self.adopt(lm, TargetTraits.of(target))
