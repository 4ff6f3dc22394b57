"""The sampling of a request: raw logits -> probabilities, the same for acceptance, bonus token and
drafting.

Order as in HF ``generate``: temperature, then top-k, then top-p. Arithmetic is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.types import InputError

TOKEN, BLOCK = "token", "block"  # decode.verify


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature: > 0. top_k: keep that many best tokens, 0 = all. top_p: smallest set of at least
    that mass.

    blocks: nodes that were drawn are verified by whole paths (``specbench.decode.walk``), not token
    by token.
    """

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    blocks: bool = False

    def __call__(self, logits: Tensor) -> Tensor:
        """(rows, V) raw logits -> (rows, V) float32 probabilities."""
        scores = logits.float() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            floor = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < floor, -torch.inf)
        probs = scores.softmax(-1)
        return _nucleus(probs, self.top_p) if self.top_p < 1 else probs


def make_sampling(temperature: float, top_k: int, top_p: float, verify: str) -> Sampling | None:
    """Make the sampling; None (greedy) if the temperature is 0. Raises InputError."""
    if verify not in (TOKEN, BLOCK):
        raise InputError(f"decode.verify={verify}: expected {TOKEN} or {BLOCK}")
    if temperature > 0:
        return Sampling(temperature, top_k, top_p, verify == BLOCK)
    if verify == BLOCK:
        raise InputError(
            f"decode.verify={BLOCK}: no draft is drawn at temperature 0; expected"
            " decode.temperature > 0"
        )
    return None


def _nucleus(probs: Tensor, mass: float) -> Tensor:
    """Zero all but the smallest set of tokens whose probabilities reach ``mass``, and
    renormalise.
    """
    ordered, index = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= mass, 0.0)
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered)
    return kept / kept.sum(-1, keepdim=True)
