"""The walker against its definition, and the distribution of what is sampled."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import drafts_and_picks
from builders.engines import Scripted
from builders.models import VOCAB
from joint_law import MarkovEngine, emitted, exact, p_value
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.types import Draft


def by_definition(tokens, parents, passenger, picks):
    """Every root path, tried whole; the deepest valid one, the lowest end node first."""
    best = []
    for end in range(len(tokens)):
        path, node = [], end
        while node != -1:
            path.append(node)
            node = parents[node]
        path.reverse()
        valid = all(
            not (passenger and passenger[n]) and tokens[n] == picks[parents[n] + 1] for n in path
        )
        if valid and len(path) > len(best):
            best = path
    return best


@given(drafts_and_picks())
def test_follow_is_its_definition(tree):
    assert Walk.follow(*tree) == by_definition(*tree)


def test_joint_law_of_sampled_tokens(monkeypatch):
    """Three tokens under a chosen tree; the wrong variant has one uniform for every position."""
    table = torch.from_numpy(np.random.default_rng(5).dirichlet(np.ones(4) * 0.7, size=4)).log()
    engine, sampling = MarkovEngine(table), Sampling(1.0)
    law = exact(lambda context: engine.distribution_after(context, sampling), [0], 3)
    method = Scripted(lambda *_: Draft([0, 3, 1, 0], [-1, -1, 0, 1]))
    assert p_value(emitted(engine, method, sampling, [0], 3, 2000), law) > 1e-3
    monkeypatch.setattr(Walk, "advance", lambda *_: None)
    assert p_value(emitted(engine, method, sampling, [0], 3, 700), law) < 1e-6


@given(st.integers(0, 2**31), st.integers(0, 30), st.floats(0.05, 1.0), st.floats(0.1, 2.0))
def test_distribution_keeps_what_it_says(seed, top_k, top_p, temperature):
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    probs = Sampling(temperature, top_k, top_p)(logits)
    full = (logits / temperature).softmax(-1)
    assert torch.allclose(probs.sum(-1), torch.ones(2), atol=1e-5)
    for row in range(2):
        kept = probs[row] > 0
        assert kept.any()
        assert kept[full[row].argmax()]
        if top_k:
            assert kept.sum() <= top_k
        ratio = probs[row][kept] / full[row][kept]
        assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-3)
