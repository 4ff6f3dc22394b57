"""Acceptance by the target's whole distribution: the ratio test for drafts that were drawn, and typical acceptance.

Ratio test: at a node with distribution p its children are tried in order. A child x drawn from q (given its earlier
siblings) is accepted with probability min(1, p(x) / q(x)); after a rejection p becomes the residual max(p - q, 0),
normalised. The token behind the last accepted node is drawn from what is left of p there. Exact for chains (Leviathan
et al. 2023, algorithm 1), for siblings drawn with replacement (Miao et al. 2024, SpecInfer), q staying the same, and
without (Chen et al. 2024, Sequoia), q losing the earlier siblings: they differ only in the q that the draft states.

Typical acceptance (Cai et al. 2024, Medusa, section 3.3.2) is lossy: a node is accepted where its parent is and its
probability there exceeds min(threshold, alpha * exp(-entropy)). The deepest node wins, among equally deep ones that of
the likeliest path. The report lists such rows in a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.target.verify import find_accepted_path
from specbench.types import ROOT, Typical


def verify_drawn(
    distributions: Tensor,
    tokens: Sequence[int],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
    probs: Tensor,
    random: np.random.Generator,
) -> tuple[list[int], Tensor]:
    """(the accepted path, (V,) float64 what is left of the distribution at its end), by the ratio test.

    distributions: (N+1, V) float32, the target's, row 0 the root's.
    tokens, parents, passenger: (N,) of the draft.
    probs: (N, V) float32, the distribution each node was drawn from.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if passenger is None or not passenger[node]:
            children.setdefault(parent, []).append(node)
    path: list[int] = []
    place = ROOT
    while True:
        distribution = distributions[place + 1].double()
        tried: list[int] = []
        for node in children.get(place, ()):
            token, drawn = int(tokens[node]), probs[node].to(distribution.device).double()
            if random.random() * float(drawn[token]) < float(distribution[token]):
                break
            tried.append(token)
            distribution = _residual(distribution, drawn, distributions[place + 1].double(), tried)
        else:
            return path, distribution
        path.append(node)
        place = node


def _residual(distribution: Tensor, drawn: Tensor, whole: Tensor, tried: Sequence[int]) -> Tensor:
    """(V,) max(distribution - drawn, 0), normalised; where that is 0 by rounding, ``whole`` without ``tried``."""
    left = (distribution - drawn).clamp_(min=0)
    total = left.sum()
    if total > 0:
        return left / total
    left = whole.clone()
    left[list(tried)] = 0
    total = left.sum()
    return left / total if total > 0 else whole


def draw(distribution: Tensor, random: np.random.Generator) -> int:
    """A token drawn from a (V,) distribution by its cumulative sum."""
    below = distribution.double().cumsum(0)
    at = torch.tensor([random.random()], dtype=torch.float64, device=distribution.device) * below[-1]
    return min(int(torch.searchsorted(below, at, right=True)), len(distribution) - 1)


def accept_typical(
    distributions: Tensor,
    tokens: Sequence[int],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
    rule: Typical,
) -> list[int]:
    """The accepted path, root side first, by typical acceptance.

    distributions: (N+1, V) float32, the target's, row 0 the root's.
    tokens, parents, passenger: (N,) of the draft.
    """
    if not len(tokens):
        return []
    logs = distributions.clamp_min(torch.finfo(distributions.dtype).tiny).log()
    entropy = -(distributions * logs).sum(-1)
    bars = (rule.alpha * (-entropy).exp()).clamp_max(rule.threshold).tolist()
    above = torch.tensor([parent + 1 for parent in parents], device=distributions.device)
    drafted = torch.tensor(list(tokens), device=distributions.device)
    chances, scores = distributions[above, drafted].tolist(), logs[above, drafted].tolist()
    likely = [chance > bars[parent + 1] for chance, parent in zip(chances, parents, strict=True)]
    return find_accepted_path(likely, parents, passenger, [True] * (len(tokens) + 1), scores=scores)
