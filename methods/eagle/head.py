"""EAGLE's heads: one decoder layer over pairs of a token's feature and the next token's embedding, then over its own.

EAGLE-1 and -2 (Li et al. 2024) continue the target's last feature and borrow its output head. Names and shapes are the
published checkpoints'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from methods.parts.heads.draft_layer import DraftLayers, layer_shapes
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from methods.parts.heads.layer_config import EAGLE, biased, require_known
from methods.parts.heads.tree_head import TreeHead, require_width


class FirstHead(TreeHead):
    """EAGLE-1 and -2: the feature is the last state after the final norm; no norm before attention or head."""

    format = HeadFormat("EAGLE", ("model.safetensors",), ("pytorch_model.bin",))

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        self.ends = ends
        self._fc, self._bias = state["fc.weight"], state.get("fc.bias")
        self.layers = DraftLayers(state, ["layers.0."], config, biased(file))

    @staticmethod
    def layers_read(file: HeadFile, layers: int) -> tuple[int, ...]:
        """The last one."""
        return (layers,)

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """``fc`` has a bias unless the configuration holds ``"bias": false``. Raises InputError."""
        require_known(file, ("qkv_bias",), {"bias": (True, False)}, EAGLE)
        hidden = require_width(file, config, target)
        shapes: dict[str, TensorShape] = {"fc.weight": (hidden, 2 * hidden)}
        if file.config.get("bias", True):
            shapes["fc.bias"] = (hidden,)
        return {**shapes, **layer_shapes(config, "layers.0.", hidden, biased(file))}

    def enter(self, features: Sequence[Tensor]) -> Tensor:
        """The feature itself."""
        return features[0]

    def inputs(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Both from the mixture of embedding and state."""
        mixed = functional.linear(torch.cat([self.ends.embed(ids), hidden], dim=-1), self._fc, self._bias)
        return mixed, mixed

    def confine(self, ids: Sequence[int]) -> None:
        """Draft these ids alone."""
        self.known = torch.tensor(ids, device=self.ends.device)
        self._rows = self.ends.rows_of(self.known)

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's output head, or its rows of the ids that are drafted."""
        return self.ends.logits(hidden) if self.known is None else functional.linear(hidden, *self._rows)
