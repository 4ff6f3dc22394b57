"""EAGLE's heads: one decoder layer over pairs of a token's feature and the next token's embedding, then over its own.

EAGLE-1 and -2 (Li et al. 2024) continue the target's last feature and borrow its output head. Names and shapes are the
published checkpoints'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.heads.draft_layer import DraftLayer, layer_shapes
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from specbench.types import InputError

EMBEDDING = r"embed_tokens\.weight"  # the target's is used: it is the same, and some exported heads hold noise there


class EagleHead(ABC):
    """What a method and a request need of a head.

    format: of its files. ignored: patterns of tensors that are not used. layer: its decoder layer.
    """

    format: HeadFormat
    ignored: tuple[str, ...] = (EMBEDDING,)
    layer: DraftLayer

    @abstractmethod
    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        """state: with the names of ``shapes``, placed by ``ends``. Raises InputError."""

    @staticmethod
    @abstractmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The target's hidden states that the head continues; layers: of the target. Raises InputError."""

    @staticmethod
    @abstractmethod
    def shapes(file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """Names and shapes of the checkpoint. config: of the head's layer. target: its configuration. read: layers.

        Raises InputError where the widths differ.
        """

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's names as ``shapes`` has them."""
        return names

    @abstractmethod
    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """Features of committed tokens, (T, D) a layer, as the head continues them: (T, H)."""

    @abstractmethod
    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads of (T,) tokens and the states before them (T, H), and the residual (T, H)."""

    def carry(self, hidden: Tensor) -> Tensor:
        """What the layer wrote (rows, H) -> the states that the next tokens and ``logits`` continue (rows, H)."""
        return hidden

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, H) of ``carry`` -> (rows, Vd) over the head's vocabulary."""

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return choice

    def spread(self, logits: Tensor) -> Tensor:
        """(rows, Vd) -> (rows, V) over the target's vocabulary, -inf where the head has no token."""
        return logits


def layer_config(file: HeadFile, target: Any) -> LlamaConfig:
    """The head's own layer; a random one has the target's shape. Raises InputError."""
    raw = file.config.get("transformer_layer_config", file.config)  # speculators nest it
    if file.random:
        names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                 "vocab_size", "rms_norm_eps", "max_position_embeddings")  # fmt: skip
        raw = {name: getattr(target, name) for name in names if getattr(target, name, None) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if not isinstance(raw.get(name), int):
            raise InputError(f"{file.where}: config.json has no {name}; expected a {file.format.kind} head's")
    if raw["vocab_size"] != target.vocab_size:
        raise InputError(
            f"{file.where}: made for a vocabulary of {raw['vocab_size']}; expected the target's {target.vocab_size}"
        )
    try:
        return LlamaConfig.from_dict(dict(raw))
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise InputError(f"{file.where}: config.json describes no Llama layer ({error})") from error


def biased(file: HeadFile) -> bool:
    raw = file.config.get("transformer_layer_config", file.config)
    return bool(raw.get("qkv_bias") or raw.get("attention_bias"))


class FirstHead(EagleHead):
    """EAGLE-1 and -2: the feature is the last state after the final norm; no norm before attention or head."""

    format = HeadFormat("EAGLE", ("model.safetensors",), ("pytorch_model.bin",))

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self._ends = ends
        self._fc, self._bias = state["fc.weight"], state.get("fc.bias")
        self.layer = DraftLayer(state, "layers.0.", config, biased(file))

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The last one."""
        return (layers,)

    @staticmethod
    def shapes(file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """``fc`` has a bias unless the configuration holds ``"bias": false``."""
        hidden = config.hidden_size
        if hidden != target.hidden_size:
            raise InputError(
                f"{file.where}: made for a hidden size of {hidden}; expected the target's {target.hidden_size}"
            )
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, 2 * hidden)}
        if file.config.get("bias", True):
            shapes["fc.bias"] = (hidden,)
        return {**shapes, **layer_shapes(config, "layers.0.", hidden, biased(file))}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """The feature itself."""
        return features[0]

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Both from the mixture of embedding and state."""
        mixed = functional.linear(torch.cat([self._ends.embed(ids), hidden], dim=-1), self._fc, self._bias)
        return mixed, mixed

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's output head."""
        return self._ends.logits(hidden)
