"""EAGLE's heads: one decoder layer over pairs of a token's feature and the next token's embedding, then over its own.

EAGLE-1 and -2 (Li et al. 2024) continue the target's last feature and borrow its output head. Names and shapes are the
published checkpoints'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.heads.draft_layer import DraftLayers, layer_shapes
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from methods.parts.heads.layer_config import biased
from specbench.types import InputError

EMBEDDING = r"embed_tokens\.weight"  # the target's is used: it is the same, and some exported heads hold noise there


class EagleHead(ABC):
    """What a method and a request need of a head.

    format: of its files. ignored: patterns of tensors that are not used. layers: its decoder layers.
    """

    format: HeadFormat
    ignored: tuple[str, ...] = (EMBEDDING,)
    layers: DraftLayers

    @abstractmethod
    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        """state: with the names of ``shapes``, placed by ``ends``. Raises InputError."""

    @staticmethod
    @abstractmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The target's hidden states that the head continues; layers: of the target. Raises InputError."""

    @classmethod
    @abstractmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """Names and shapes of the checkpoint. config: of the head's layer. target: its configuration. read: layers.

        Raises InputError where the widths differ.
        """

    @staticmethod
    def narrow(file: HeadFile, layers: int) -> HeadFile:
        """The head's tensors alone, of a file that holds others too; layers: of the target. Raises InputError."""
        return file

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint's names as ``shapes`` has them, of its shapes or tensors."""
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

    @property
    def vocabulary(self) -> frozenset[int] | None:
        """The target's ids that it can draft; None = all."""
        return None

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""
        return choice

    def spread(self, logits: Tensor) -> Tensor:
        """(rows, Vd) -> (rows, V) over the target's vocabulary, -inf where the head has no token."""
        return logits


class FirstHead(EagleHead):
    """EAGLE-1 and -2: the feature is the last state after the final norm; no norm before attention or head."""

    format = HeadFormat("EAGLE", ("model.safetensors",), ("pytorch_model.bin",))

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self._ends = ends
        self._fc, self._bias = state["fc.weight"], state.get("fc.bias")
        self.layers = DraftLayers(state, ["layers.0."], config, biased(file))

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The last one."""
        return (layers,)

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
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
