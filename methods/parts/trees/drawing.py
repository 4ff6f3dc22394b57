"""Children of many nodes at once, from the draft's rows: the best ones, or drawn with or without replacement."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-30  # keeps the race's divisor off zero


def race(laws: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(m, V) laws -> (m, count) tokens drawn one after the other without replacement, and whether each had any mass.

    Exponential race: the tokens by decreasing law / Exp(1) come in the order in which they would be drawn.
    """
    times = torch.empty_like(laws).exponential_(generator=generator).clamp_(min=TINY)
    best = (laws / times).topk(min(count, laws.shape[-1]), dim=-1)
    return best.indices, best.values > 0


def without_earlier(laws: Tensor, tokens: Tensor) -> Tensor:
    """(m, V) laws and (m, r) tokens drawn from them already -> (m, V) the laws of the next draw."""
    left = laws.scatter(-1, tokens, 0.0) if tokens.shape[-1] else laws
    return left / left.sum(-1, keepdim=True).clamp_(min=TINY)
