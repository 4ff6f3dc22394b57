"""Children of the nodes of a level, drawn without replacement from the distribution behind each node."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-30  # keeps a divisor off zero


def race(probs: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens drawn one after the other without replacement, ``count`` from each row (all of them where V is less).

    Exponential race: tokens by decreasing probability / Exp(1) come in the order in which they would be drawn.

    probs: (m, V) probabilities.
    Returns tokens (m, count) int64, and alive (m, count) bool: whether each token had any probability left.
    """
    times = torch.empty_like(probs).exponential_(generator=generator).clamp_(min=TINY)
    best = (probs / times).topk(min(count, probs.shape[-1]), dim=-1)
    return best.indices, best.values > 0


def without_earlier(probs: Tensor, siblings: Tensor, ranks: Tensor) -> Tensor:
    """What each of n nodes is drawn from when its earlier siblings are taken already.

    probs: (n, V) probabilities behind its parent.
    siblings: (n, c) tokens drawn from them, itself and its siblings in order; ranks: (n,) its own place among them.
    Returns (n, V) probabilities.
    """
    later = torch.arange(siblings.shape[1], device=ranks.device) >= ranks[:, None]
    left = probs.scatter(1, siblings, probs.gather(1, siblings) * later)
    return left / left.sum(-1, keepdim=True).clamp_(min=TINY)


def draw_children(
    probs: Tensor, rows: Tensor, ranks: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The n nodes of a level, each the ``ranks``-th token drawn from its parent's row.

    probs: (m, V) probabilities behind each parent.
    rows, ranks: (n,) int64, of each node its parent's row and its place among its siblings.
    count: the most children of a parent.
    Returns tokens (n,) int64; given (n, V), what each was drawn from given its earlier siblings; and alive (n,) bool,
    whether each token had any probability left.
    """
    drawn, alive = race(probs, count, generator)
    return drawn[rows, ranks], without_earlier(probs[rows], drawn[rows], ranks), alive[rows, ranks]
