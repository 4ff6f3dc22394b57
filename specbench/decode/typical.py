"""Typical acceptance (Cai et al. 2024, Medusa, section 3.3.2): lossy, a drafted token passes if it is likely enough.

A node is accepted where its parent is and its probability there exceeds min(threshold, alpha * exp(-entropy)): a sure
target asks for more than an unsure one. The deepest node wins, of equally deep ones that of the likeliest path. The
emitted text no longer follows the target's distribution; the report lists such rows in a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.target.tree import path_to
from specbench.types import ROOT, Typical


def accept_typical(
    distributions: Tensor,
    tokens: Sequence[int],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
    rule: Typical,
) -> list[int]:
    """The accepted path, root side first. distributions: (N+1, V) the target's, row 0 the root's."""
    if not len(tokens):
        return []
    logs = distributions.clamp_min(torch.finfo(distributions.dtype).tiny).log()
    entropy = -(distributions * logs).sum(-1)
    bars = (rule.alpha * (-entropy).exp()).clamp_max(rule.threshold).tolist()
    above = torch.tensor([parent + 1 for parent in parents], device=distributions.device)
    drafted = torch.tensor(list(tokens), device=distributions.device)
    chances, scores = distributions[above, drafted].tolist(), logs[above, drafted].tolist()
    reached: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}  # node -> depth, log-probability of its path
    best = ROOT
    for node, parent in enumerate(parents):
        if parent not in reached or chances[node] <= bars[parent + 1] or (passenger is not None and passenger[node]):
            continue
        depth, score = reached[parent]
        reached[node] = (depth + 1, score + scores[node])
        if reached[node] > reached[best]:
            best = node
    return path_to(best, parents)
