"""How a request samples: raw logits -> probabilities, the same for acceptance, bonus token and drafting.

Order as in HF ``generate``: temperature, then top-k, then top-p. Arithmetic is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature: > 0. top_k: keep that many best tokens, 0 = all. top_p: smallest set of at least that mass."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """(rows, V) raw logits -> (rows, V) float32 probabilities."""
        scores = logits.float() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            floor = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < floor, -torch.inf)
        probs = scores.softmax(-1)
        return _nucleus(probs, self.top_p) if self.top_p < 1 else probs


def _nucleus(probs: Tensor, mass: float) -> Tensor:
    """Zero all but the smallest set of tokens whose probabilities reach ``mass``, and renormalise."""
    ordered, index = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= mass, 0.0)
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered)
    return kept / kept.sum(-1, keepdim=True)
