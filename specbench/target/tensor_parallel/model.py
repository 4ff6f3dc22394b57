"""The target of a tensor-parallel run as methods see it: embeddings and head here, logits from all ranks together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from specbench.target.tensor_parallel.engine import Leader


@dataclass(frozen=True, slots=True)
class Output:
    """logits: (rows, 1, V)."""

    logits: Tensor


class WholeModel:
    """What stands for the library's model where no process holds all of it. Nothing else of the library is there."""

    def __init__(self, share: Any, config: Any, engine: Leader) -> None:
        """share: rank 0's. config: of the whole model."""
        self.config, self.dtype = config, share.dtype
        self._embedding, self._head, self._engine = share.get_input_embeddings(), share.get_output_embeddings(), engine

    def get_input_embeddings(self) -> nn.Module:
        """Whole on every rank."""
        return self._embedding

    def get_output_embeddings(self) -> nn.Module:
        """Whole on rank 0."""
        return self._head

    def parameters(self) -> Iterator[nn.Parameter]:
        """The whole model's, without memory: their sizes are true."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        return model.parameters()

    def __call__(self, input_ids: Tensor, use_cache: bool = False, logits_to_keep: int = 1) -> Output:
        """Read (rows, T) sequences from empty caches: the logits after their last token."""
        return Output(self._engine.logits(input_ids)[:, None])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the target's {name}: under model.parallel=tensor no process holds the library's model; expected embed,"
            " head and logits of the target, or model.parallel=pipeline"
        )
