"""Rotary positions of a head's own layer, from its own configuration, as tables that grow with the context."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.types import InputError

STEADY = ("default", "linear", "llama3", "yarn")  # kinds whose angles do not depend on the length of the sequence


class RopeTable:
    """cos and signed sin of every position: ``turn`` is x cos + swap_halves(x) sin."""

    def __init__(self, config: Any, size: int, device: torch.device, dtype: torch.dtype) -> None:
        """config: a Llama-like configuration. size: of an attention head. Raises InputError."""
        kind = config.rope_parameters.get("rope_type", "default")
        if kind not in STEADY:
            raise InputError(f"head: rotary positions of type {kind}; expected one of {', '.join(STEADY)}")
        self._embedding = LlamaRotaryEmbedding(config).to(device)
        if 2 * len(self._embedding.inv_freq) != size:
            raise InputError(
                f"head: rotary positions turn {2 * len(self._embedding.inv_freq)} of {size} dimensions; expected all"
            )
        self._size, self._like = size, torch.empty(0, device=device, dtype=dtype)
        self.cos = self.sin = torch.empty(0, 1, size, device=device, dtype=dtype)

    def reserve(self, length: int) -> None:
        """Hold positions 0 to ``length - 1``: cos and sin are (length or more, 1, size)."""
        if length <= len(self.cos):
            return
        positions = torch.arange(max(length, 2 * len(self.cos)), device=self._like.device)
        cos, sin = self._embedding(self._like, positions[None])
        self.cos, self.sin = cos[0, :, None], sin[0, :, None].clone()
        self.sin[..., : self._size // 2].neg_()


def turn(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn (rows, heads, size) to their positions; cos, sin: (rows or 1, 1, size) of a ``RopeTable``."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)
