"""Self-speculation: the target with some of its layers left out is its own draft model (Zhang et
al. 2024).

LayerSkip (Elhoushi et al. 2024) leaves by an early exit, the layers above it are skipped; SWIFT
(Xia et al. 2025) skips layers in between, ends a chain where it is unsure, and chooses the layers
while it decodes: those sets of them are tried that give most of the tokens which the target has
emitted. The layers that are kept share their weights with the target and have a KV cache of their
own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from methods.parts.draft_lm import DraftLM, DraftRequest
from methods.parts.draft_method import ChainMethod, DraftChain, TargetTraits
from methods.parts.parameters import count, number
from specbench.method import Drafter, Drafting
from specbench.models.facade import ModelCard, Target
from specbench.models.transfer import upload
from specbench.types import InputError, Prefill

ENOUGH = 0.95  # of a window's tokens: the search ends (SWIFT's code: 0.93 to 0.95)
READ = 256  # [tokens] that a set reads at most to be scored


def keep_layers(model: Any, kept: Sequence[int]) -> Any:
    """A causal LM of the layers ``kept``, in this order, which shares their weights with
    ``model``.
    """
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


def draw_sets(kept: Sequence[int], layers: int, count: int) -> list[list[int]]:
    """``kept``, and at most ``count`` other sets of as many of ``layers``: the first, the last, and
    random ones.

    The same in every request, so that a set that is taken again is not built again.
    """
    random, sets = np.random.default_rng(0), [[*kept]]
    for _ in range(20 * count):  # a small model has few sets
        middle = random.choice(range(1, layers - 1), len(kept) - 2, replace=False)
        drawn = [0, *sorted(map(int, middle)), layers - 1]
        if drawn not in sets and len(sets) <= count:
            sets.append(drawn)
    return sets


@dataclass(slots=True)
class LayerSearch:
    """The state of a search for the best set of layers.

    number: of the set that drafts. agreed: share of a window's tokens that it gives. tried: sets
    scored so far.
    """

    number: int = 0
    agreed: float = 0.0
    tried: int = 0

    def enter(self, agreed: float) -> None:
        """Of the next set."""
        if agreed > self.agreed:
            self.number, self.agreed = self.tried, agreed
        self.tried += 1


class SearchedChain(DraftChain):
    """A chain of the set that is the best so far; a step scores one more."""

    def __init__(self, method: SelfSpeculation, seed: int, start: int) -> None:
        """start: [tokens] of the prompt."""
        super().__init__(method, seed)
        self._searching, self._start, self._number = method, start, method.found.number

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        """The new set's cache holds nothing: it reads the context."""
        method = self._searching
        method.try_next(context, self._start)
        if self._number != method.found.number:
            self._number, self._request, self._settled = method.found.number, method.chain(), 0
        return (yield from super().drafting(context, budget))

    def stats(self) -> dict[str, float]:
        """agreed: see ``LayerSearch``."""
        found = self._searching.found
        return super().stats() | {"sets_tried": found.tried, "agreed": found.agreed}


@dataclass(eq=False)
class SelfSpeculation(ChainMethod):
    """Self-speculation; conf/method/self_speculation.yaml describes the parameters."""

    sources = ("self",)
    learned = ("found",)

    draft: str | None = field(default=None, init=False)
    dtype: str | None = field(default=None, init=False)
    device: str | None = field(default=None, init=False)
    length: int = count(25)
    schedule: Literal["fixed", "heuristic", "confidence"] = "confidence"
    threshold: float = number(
        0.8, lambda value: 0 < value <= 1, "a probability above 0 and up to 1"
    )
    skip: list[int] | None = None
    exit: int | None = count(None)
    search: int = count(0, 0, 1000)
    window: int = count(32, high=READ // 2)

    def __post_init__(self) -> None:
        if self.skip is not None and self.exit is not None:
            raise InputError(f"exit={self.exit}: and skip={self.skip}; expected one of them")
        super().__post_init__()
        self.sets: list[list[int]] = []
        self.found = LayerSearch()
        self._lms: dict[int, DraftLM] = {}  # by the number of their set
        self._target: Target | None = None

    @property
    def kept(self) -> list[int]:
        """The layers that draft."""
        return self.sets[self.found.number]

    def check(self, model: ModelCard) -> None:
        """Some layers must be left, and some skipped."""
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
        if layers is None:
            raise InputError(
                "needs the target's weights, and a replay has only recorded tokens; choose a model"
            )
        skipped = set(range(1, max(2, layers - 1), 2) if self.skip is None else self.skip)
        if self.exit is not None:
            skipped = set(range(self.exit, layers))
        kept = [layer for layer in range(layers) if layer not in skipped]
        given = f"skip={self.skip}" if self.exit is None else f"exit={self.exit}"
        if not 0 < len(kept) < layers or not skipped <= set(range(layers)):
            raise InputError(
                f"{given}: keeps {len(kept)} of {layers} layers; expected some of 0 to {layers - 1}"
                " to be skipped"
            )
        if self.search and len(kept) < 2:
            raise InputError(
                f"search={self.search}: and {given} keeps one layer; expected two or more"
            )
        self.sets = draw_sets(kept, layers, self.search)

    def bind(self, target: Target) -> None:
        target.dtype  # noqa: B018 (raises for a replay, which has no weights)
        layers: Any = getattr(getattr(target.model, "model", None), "layers", None)
        if layers is None or not hasattr(layers[0], "self_attn"):
            raise InputError(
                f"skip: model={target.card.name} is not built as Llama is; expected layers with"
                " self_attn"
            )
        text, out = target.card.config.get_text_config(), layers[0].self_attn.o_proj
        size = getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads
        devices = {parameter.device for parameter in target.model.parameters()}
        if len(devices) > 1 or out.weight.shape[1] != text.num_attention_heads * size:
            raise InputError("skip: the target is shared by several devices; expected model.gpus=1")
        self._target, self._lms = target, {}
        self.adopt(self._find_lm(0), TargetTraits.of(target))

    def reset(self) -> None:
        """Restart the search from the given set."""
        self.found = LayerSearch()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Start from an empty cache, with the search if it is on. seed: of the tokens drawn."""
        return (
            SearchedChain(self, seed, len(prompt))
            if self.search
            else super().begin(prompt, prefill, seed)
        )

    def chain(self) -> DraftRequest:
        if not self.search:
            return super().chain()
        return DraftRequest(self._find_lm(self.found.number), self.vocab)

    def _find_lm(self, number: int) -> DraftLM:
        target = self._target
        assert target is not None
        if number not in self._lms:
            part = keep_layers(target.model, self.sets[number])
            self._lms[number] = DraftLM(part, target.card.context, target.attention)
        return self._lms[number]

    @torch.inference_mode()
    def try_next(self, context: Sequence[int], start: int) -> None:
        """Score the next set by the first emitted tokens, if these are there and the search
        continues.

        context: (T,). start: [tokens] of the prompt.
        """
        found, end = self.found, start + self.window
        if found.tried == len(self.sets) or found.agreed >= ENOUGH or len(context) < end:
            return
        assert self._target is not None
        ids = [*context[max(0, end - READ) : end]]
        read = upload([ids[:-1]], self._target.device)
        part = keep_layers(self._target.model, self.sets[found.tried])
        given = (
            part(input_ids=read, use_cache=False, logits_to_keep=self.window)
            .logits[0]
            .argmax(-1)
            .tolist()
        )
        found.enter(sum(map(int.__eq__, given, ids[-self.window :])) / self.window)
