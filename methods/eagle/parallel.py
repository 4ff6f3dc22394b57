"""P-EAGLE (2026, arXiv 2602.01469): an EAGLE-3 head that drafts all levels in one forward.

In place of drafted tokens and the head's own states it reads a mask token and one learned state, a row a level. So a
level does not depend on the tokens above it: the tree is filled by rank, or each node is drawn from its level's
distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from methods.eagle.third import OWN_EMBEDDING, ThirdHead
from methods.parts.heads.draft_layer import LayerMemory
from methods.parts.heads.forwards import Forwards, RowsCall
from methods.parts.heads.head_file import HeadFile, HeadFormat, TensorShape
from methods.parts.heads.head_method import TargetEnds
from methods.parts.heads.layer_config import mask_token
from methods.parts.heads.tree_method import LevelsMethod, LevelsRun

STATE = "mask_hidden"


class ParallelHead(ThirdHead):
    """EAGLE-3's head with the learned state, and an embedding of its own unless the configuration denies it."""

    format = HeadFormat("P-EAGLE", ("model.safetensors",), ("pytorch_model.bin",))
    layout = "peagle"
    also = ("parallel_drafting",)

    def __init__(self, state: Mapping[str, Tensor], file: HeadFile, config: LlamaConfig, ends: TargetEnds) -> None:
        super().__init__(state, file, config, ends)
        layers = state[STATE].view(1, -1).split(ends.width, dim=-1)
        self._masked = self.enter(layers)
        self._mask = torch.tensor([mask_token(file, ends.vocab)], device=ends.device)

    @classmethod
    def flags(cls, file: HeadFile) -> frozenset[str]:
        """With an embedding of its own where nothing is said of it, as the speculators library has it."""
        flags = super().flags(file)
        return flags if file.config.get(OWN_EMBEDDING) is not None else flags | {OWN_EMBEDDING}

    @classmethod
    def shapes(cls, file: HeadFile, config: LlamaConfig, target: Any, read: int) -> dict[str, TensorShape]:
        """EAGLE-3's, and the learned state of all layers that are read."""
        mask_token(file, config.vocab_size)
        return {**super().shapes(file, config, target, read), STATE: (read * int(target.hidden_size),)}

    @staticmethod
    def rename(names: dict[str, Any]) -> dict[str, Any]:
        """As EAGLE-3's; some files have the learned state as (1, 3D), others as (1, 1, 3D)."""
        named = ThirdHead.rename(names)
        if isinstance(held := named.get(STATE), Tensor):
            named[STATE] = held.flatten()
        elif held and set(held[:-1]) <= {1}:
            named[STATE] = held[-1:]
        return named

    def masked(self, rows: int) -> tuple[Tensor, Tensor]:
        """``inputs`` of so many mask tokens."""
        return self.inputs(self._mask.expand(rows), self._masked.expand(rows, -1))


class _Run(LevelsRun):
    def levels(self) -> Forwards:
        features, following = self.taken()
        read = self.head.inputs(following, self.head.enter(features))
        parts = zip(read, self.head.masked(self.count - 1), strict=True)
        inputs, residual = (torch.cat(pair) for pair in parts)
        written = yield from self.head.layers.read(inputs, residual, self.memory, self.count, self.count - 1)
        return (yield RowsCall(self.head.output, self.head.carry(written)))


class PEagle(LevelsMethod):
    """P-EAGLE, with the parameters of ``LevelsMethod``."""

    kind, runs = ParallelHead, _Run

    def new_memory(self) -> LayerMemory:
        """Committed tokens only: mask rows stand behind them and are written over."""
        return LayerMemory(self.bound.layers, 0, 1)
