"""EAGLE-3's head (Li et al. 2025) and EAGLE-3.1's: three of the target's layers fused, an output head of its own.

The output head often has part of the vocabulary. Names and flags are those of the authors, of SpecForge and SGLang, of
NVIDIA's ``eagle_config`` and of the speculators library. A flag that changes the forward and is not known here is
refused: a head that is loaded with another forward than it was trained with drafts nonsense without an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.heads.draft_layer import DraftLayers, layer_shapes
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from methods.parts.heads.layer_config import (
    EAGLE,
    MASK,
    biased,
    drafted_tokens,
    head_norms,
    layer_numbers,
    require_known,
)
from methods.parts.heads.tree_head import EMBEDDING, TreeHead, target_ids
from specbench.types import InputError

# Flags of a configuration that change the forward, and what each of them does where it is true.
NORM_BEFORE_RESIDUAL = "norm_before_residual"  # the residual is the normed state
NORM_BEFORE_FC = "norm_before_fc"  # one norm over the layers that are fused, input_norm (gpt-oss)
FC_NORM = "fc_norm"  # a norm for each of them, fc_norm.N (EAGLE-3.1)
NORM_OUTPUT = "norm_output"  # the states that are continued are behind the last norm (EAGLE-3.1)
OWN_EMBEDDING = "embed_requires_grad"  # the embedding was trained with the head
FLAGS = (NORM_BEFORE_RESIDUAL, NORM_BEFORE_FC, FC_NORM, NORM_OUTPUT, OWN_EMBEDDING)
# Of NVIDIA's eagle_config: what every EAGLE-3 head does.
ALWAYS = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")
ONLY = {**dict.fromkeys(ALWAYS, (True,)), **dict.fromkeys(FLAGS, (True, False)), "parallel_draft_step": (0, 1)}
AUX = "eagle_aux_hidden_state_layer_ids"  # the layers that are fused
# Settled by the names and shapes of the tensors.
SETTLED = (
    "qkv_bias",
    "bias",
    "next_layer_regular",
    "parallel_draft_heads_num_layers",
    "num_aux_hidden_states",
    AUX,
    *MASK,
)


def read_flags(file: HeadFile, layout: str, also: Sequence[str] = ()) -> frozenset[str]:
    """The flags that a configuration sets. Raises InputError for unknown settings, and for another kind of head.

    layout: its ``speculators_model_type``, which may be left out. also: further settings, which say what every head of
    the kind does.
    """
    named = require_known(file, (*SETTLED, *also), {**ONLY, "speculators_model_type": (layout,)}, EAGLE)
    if {NORM_BEFORE_FC, FC_NORM} <= named:
        raise InputError(f"{file.where}: config.json sets {NORM_BEFORE_FC} and {FC_NORM}; expected one of them")
    return named & set(FLAGS)


class ThirdHead(TreeHead):
    """EAGLE-3: fused features enter once; norms before attention and before an output head of its own."""

    format = HeadFormat("EAGLE-3", ("model.safetensors",), ("pytorch_model.bin",))
    ignored = (EMBEDDING, "d2t", "t2d")
    layout = "eagle3"
    also: tuple[str, ...] = ()

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends, self.eps = ends, float(config.rms_norm_eps)
        self._fc, self._head, self._norm = state["fc.weight"], state["lm_head.weight"], state["norm.weight"]
        self._before = state["midlayer.input_layernorm.weight"], state["midlayer.hidden_norm.weight"]
        self._flags = self.flags(file)
        self._fused = [state[name] for name in _fused_norms(self._flags, len(self._fc[0]) // ends.width)]
        self._embedding = state.get("embed_tokens.weight")
        self.layers = DraftLayers(state, _prefixes(config), config, biased(file))
        if len(self._head) != ends.vocab:
            self.known = target_ids(state["d2t"], ends.vocab, file.where)

    @classmethod
    def flags(cls, file: HeadFile) -> frozenset[str]:
        """See ``read_flags``."""
        return read_flags(file, cls.layout, cls.also)

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """Those that the configuration names, else 2, L/2 and L - 3.

        ``eagle_aux_hidden_state_layer_ids`` counts hidden states (i = input of block i); within ``eagle_config`` it
        counts blocks, whose output is meant. A random head in a target too small for that takes the first, middle and
        last one.
        """
        given = layer_numbers(file, AUX, file.config.get(AUX))
        inner = layer_numbers(file, f"{EAGLE}.{AUX}", file.nested(EAGLE).get(AUX))
        chosen = given or ([block + 1 for block in inner] if inner else (2, layers // 2, layers - 3))
        if file.random and not 2 < layers // 2 < layers - 3:
            chosen = (0, layers // 2, layers)
        named = "its configuration names" if given or inner else "without eagle_aux_hidden_state_layer_ids it takes"
        if len(set(chosen)) < len(chosen) or not all(0 <= layer <= layers for layer in chosen):
            raise InputError(
                f"{file.where}: {named} the hidden states {list(chosen)}; expected different ones of 0 to {layers}"
                f" in a target of {layers} layers"
            )
        return tuple(chosen)

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """``fc`` fuses the layers; a smaller vocabulary has ``d2t``; a head of another width has its own embedding."""
        hidden, width, flags = config.hidden_size, int(target.hidden_size), cls.flags(file)
        drafted = drafted_tokens(file, config.vocab_size)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, read * width)}
        for place, prefix in enumerate(_prefixes(config)):
            shapes |= layer_shapes(config, prefix, hidden if place else 2 * hidden, biased(file), head_norms(file))
            shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes |= dict.fromkeys(("midlayer.hidden_norm.weight", "norm.weight"), (hidden,))
        shapes["lm_head.weight"] = (drafted, hidden)
        norms = _fused_norms(flags, read)
        shapes |= dict.fromkeys(norms, (read * width // max(1, len(norms)),))
        if drafted != int(target.vocab_size):
            shapes["d2t"] = (drafted,)
        if hidden != width or OWN_EMBEDDING in flags:
            shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
        return shapes

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """The speculators library calls the layer ``layers.0``, others put ``model.`` in front."""
        plain = {name.removeprefix("model."): held for name, held in names.items()}
        return {re.sub(r"^layers\.0\.", "midlayer.", name): held for name, held in plain.items()}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Fused by ``fc``, normed before where the head says so."""
        if FC_NORM in self._flags:
            features = [self.normed(each, weight) for each, weight in zip(features, self._fused, strict=True)]
        fused = torch.cat(list(features), dim=-1)
        return functional.linear(
            self.normed(fused, self._fused[0]) if NORM_BEFORE_FC in self._flags else fused, self._fc
        )

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Normed embedding beside normed state; the residual is the state."""
        embedded = self.ends.embed(ids) if self._embedding is None else functional.embedding(ids, self._embedding)
        normed = self.normed(hidden, self._before[1])
        both = torch.cat([self.normed(embedded, self._before[0]), normed], dim=-1)
        return both, normed if NORM_BEFORE_RESIDUAL in self._flags else hidden

    def carry(self, hidden: Tensor) -> Tensor:
        """As it is, or behind the last norm."""
        return self.normed(hidden, self._norm) if NORM_OUTPUT in self._flags else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Its own norm, if that is still to come, and output head."""
        return functional.linear(hidden if NORM_OUTPUT in self._flags else self.normed(hidden, self._norm), self._head)


def _prefixes(config: LlamaConfig) -> list[str]:
    return ["midlayer.", *(f"layers.{place}." for place in range(1, config.num_hidden_layers))]


def _fused_norms(flags: frozenset[str], read: int) -> tuple[str, ...]:
    """Names of the norms before ``fc``; read: layers that are fused."""
    if FC_NORM in flags:
        return tuple(f"fc_norm.{place}.weight" for place in range(read))
    return ("input_norm.weight",) if NORM_BEFORE_FC in flags else ()
