"""The target's embedding and output head, for heads that borrow them: rows move to where they are used."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.target.facade import Target


class TargetEnds:
    """Borrowed from the target; with its layers on several devices, the two stand on different ones."""

    def __init__(self, target: Target) -> None:
        """device: where features arrive last and the output head stands; a trained head belongs beside it."""
        self._target = target
        self.vocab, self.width, self.dtype = target.vocab_size, target.hidden_size, target.dtype
        self.device: torch.device = target.model.get_output_embeddings().weight.device

    def embed(self, ids: Tensor) -> Tensor:
        """(rows,) ids -> (rows, D) input embeddings."""
        return self._target.embed(ids.to(self._target.device)).to(self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, D) states after the final norm -> (rows, V)."""
        return self._target.head(hidden)

    def place(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights beside the output head, in the target's dtype; whole numbers keep theirs."""
        return {
            name: weight.to(self.device, self.dtype if weight.is_floating_point() else weight.dtype)
            for name, weight in state.items()
        }
