"""Block verification, by enumeration: the exact law, the gain over the ratio test, and variants
that lose the law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from drawn_laws import CHAIN, TREE, VOCAB, drafts, laws, outcomes, wanted_law
from torch import Tensor

from specbench.decode import walk
from specbench.decode.acceptance import Uniforms
from specbench.decode.walk import BlockTest
from specbench.types import ROOT


def found_law(
    target: Tensor, drawn: Tensor, parents: Sequence[int], replace: bool = True
) -> tuple[Tensor, float]:
    """(V, V, ..., V) the law of the next tokens, as many as the deepest path and one; mean length
    accepted.
    """
    length = 4
    law, mean = torch.zeros((VOCAB,) * length, dtype=torch.float64), 0.0
    for probability, tokens, stated in drafts(drawn, parents, replace):
        rows = torch.stack([target[VOCAB], *(target[token] for token in tokens)])
        test = BlockTest(parents, None, len(rows))
        weights, left = test.weigh(rows, torch.tensor(tokens), stated)
        for chance, path in outcomes(test, weights, parents):
            mean += probability * chance * len(path)
            last = path[-1] if path else ROOT
            tail = left[last + 1]
            for _ in range(length - len(path) - 1):
                tail = tail[..., None] * target[:VOCAB]
            law[tuple(tokens[node] for node in path)] += probability * chance * tail
    return law, mean


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("parents", [CHAIN, TREE, (-1, -1, -1), (-1, 0, 0, -1)])
def test_the_law_is_the_targets(parents, replace):
    for seed in range(2):
        target, drawn = laws(seed)
        assert torch.allclose(
            found_law(target, drawn, parents, replace)[0], wanted_law(target), rtol=0, atol=1e-12
        )


def test_a_drafter_that_is_the_target_is_always_accepted():
    target, _ = laws(3)
    law, mean = found_law(target, target, CHAIN)
    assert mean == pytest.approx(3, abs=1e-12)
    assert torch.allclose(law, wanted_law(target), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_is_never_accepted_less_than_token_by_token(seed):
    target, drawn = laws(seed, sharpness=0.5 + seed)
    token_by_token = 0.0
    for probability, tokens, stated in drafts(drawn, CHAIN, True):
        before = [VOCAB, *tokens[:-1]]
        ratios = [
            min(1.0, float(target[place, token] / row[token]))
            for place, token, row in zip(before, tokens, stated, strict=True)
        ]
        token_by_token += probability * float(np.cumprod(ratios).sum())
    mean = found_law(target, drawn, CHAIN)[1]
    assert mean >= token_by_token - 1e-12
    # and usually more; sharp laws leave less to gain
    assert mean > token_by_token + 1e-4 or seed > 3


@pytest.mark.parametrize("wrong", ["weight", "residual"])
def test_variants_that_lose_the_law_fail(wrong, monkeypatch):
    whole = walk.residuals
    if wrong == "residual":  # of the distribution, not of its share

        def residuals(scaled, drawn, distribution, untried):
            return whole(
                scaled / scaled.sum(-1, keepdim=True).clamp(min=1e-9), drawn, distribution, untried
            )

        monkeypatch.setattr(walk, "residuals", residuals)
    else:  # a node keeps its weight when a child is rejected

        class Kept(BlockTest):
            def weigh(self, distributions, tokens, probs):
                weights, left = super().weigh(distributions, tokens, probs)
                ratios = [
                    float(distributions[parent + 1, token] / probs[node, token])
                    for node, (parent, token) in enumerate(
                        zip(self._parents, tokens.tolist(), strict=True)
                    )
                ]
                for node, ratio in enumerate(ratios):
                    weights[node + 1] = min(1.0, float(weights[self._parents[node] + 1]) * ratio)
                return weights, left

        monkeypatch.setitem(globals(), "BlockTest", Kept)
    differences = [
        (found_law(*pair, CHAIN)[0] - wanted_law(pair[0])).abs().max()
        for pair in map(laws, range(4))
    ]
    assert max(differences) > 1e-4


@pytest.mark.parametrize("seed", range(30))
def test_a_path_is_followed_as_its_weights_say(seed):
    """Trees with passengers: judged, then followed, as an independent traversal with the same
    numbers.
    """
    random, torch_random = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    count = int(random.integers(0, 12))
    parents = [int(random.integers(-1, node)) for node in range(count)]
    passenger = [bool(random.random() < 0.1) for _ in parents]
    tokens = random.integers(0, 7, count).tolist()
    rows = count + int(random.integers(0, 2)) if count and count - 1 not in parents else count + 1
    target = (torch.randn(count + 1, 7, generator=torch_random) * 2).softmax(-1)[:rows]
    stated = (torch.randn(count, 7, generator=torch_random) * 2).softmax(-1)
    uniforms = [Uniforms(np.random.default_rng(seed)) for _ in range(2)]
    for _ in range(3):
        test = BlockTest(parents, passenger, rows)
        judged = test.compute(
            target, torch.tensor(tokens, dtype=torch.long), stated, uniforms[0]
        ).tolist()
        found = test.follow(judged, uniforms[0])
        assert found == traverse(target, tokens, parents, passenger, stated, uniforms[1])
        assert uniforms[0].used == uniforms[1].used


def traverse(target, tokens, parents, passenger, stated, uniforms):
    """Traversal verification as its paper has it: the first chain to a leaf, its last node tested,
    then taken away.
    """
    children = {
        place: [n for n, p in enumerate(parents) if p == place and not passenger[n]]
        for place in range(-1, 99)
    }
    now = {place: target[place + 1].double() for place in range(-1, len(target) - 1)}
    weight = {ROOT: 1.0}
    while True:
        path = [ROOT]
        while children[path[-1]]:
            node, above = children[path[-1]][0], path[-1]
            share = weight[above] * float(
                now[above][tokens[node]] / stated[node].double()[tokens[node]]
            )
            weight.setdefault(node, min(1.0, share))
            path.append(node)
        leaf = path[-1]
        if leaf != ROOT:
            (number,) = uniforms.ahead([0])
            uniforms.used += 1
            if number >= weight[leaf]:
                above = path[-2]
                rest = (weight[above] * now[above] - stated[leaf].double()).clamp(min=0)
                total = float(rest.sum())
                now[above] = rest / total if total else now[above]
                weight[above] = 1.0 if above == ROOT else total / (total + 1 - weight[above])
                children[above].pop(0)
                continue
        if leaf not in now:
            return path[1:], None
        (number,) = uniforms.ahead([0])
        uniforms.used += 1
        below = now[leaf].cumsum(-1)
        return path[1:], int(torch.searchsorted(below, number * below[-1], right=True).clamp(max=6))
