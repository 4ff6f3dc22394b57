"""Small laws and drafts drawn from them, enumerated: what verification must keep, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decode.walk import BlockTest
from specbench.types import ROOT

VOCAB = 3
CHAIN, TREE = (-1, 0, 1), (-1, -1, 0, 0, 1)


def laws(seed: int, sharpness: float = 1.5) -> tuple[Tensor, Tensor]:
    """(V + 1, V) target's and drafter's distribution after each token; the last row: after the
    prompt.
    """
    random = torch.Generator().manual_seed(seed)
    shape = (VOCAB + 1, VOCAB)
    return tuple(
        (torch.randn(shape, generator=random, dtype=torch.float64) * sharpness).softmax(-1)
        for _ in range(2)
    )  # type: ignore[return-value]


def drafts(drawn: Tensor, parents: Sequence[int], replace: bool):
    """(its probability, tokens, (N, V) stated distributions) of every draft of this shape."""
    for tokens in itertools.product(range(VOCAB), repeat=len(parents)):
        probability, rows = 1.0, []
        for node, parent in enumerate(parents):
            row = drawn[VOCAB if parent == ROOT else tokens[parent]].clone()
            earlier = [tokens[other] for other in range(node) if parents[other] == parent]
            if not replace:
                row[earlier] = 0
            rows.append(row / row.sum())
            probability *= float(rows[-1][tokens[node]])
        if probability > 0:
            yield probability, list(tokens), torch.stack(rows)


def outcomes(test: BlockTest, weights: Tensor, parents: Sequence[int]):
    """(probability, accepted path) of one draft's verification."""
    reached = 1.0
    for node in [*test._order, ROOT]:
        path, place = [], node
        while place != ROOT:
            path.append(place)
            place = parents[place]
        yield reached * float(weights[node + 1]), path[::-1]
        reached *= 1 - float(weights[node + 1])


def wanted_law(target: Tensor) -> Tensor:
    law = target[VOCAB]
    for _ in range(3):
        law = law[..., None] * target[:VOCAB]
    return law
