"""The walker against its definition, and the distribution of what is sampled."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.models import VOCAB
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk


@st.composite
def trees(draw):
    count = draw(st.integers(0, 9))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    tokens = [draw(st.integers(0, 2)) for _ in range(count)]
    passenger = [draw(st.booleans()) for _ in range(count)]
    picks = [draw(st.integers(0, 2)) for _ in range(count + 1)]
    return tokens, parents, passenger, picks


def by_definition(tokens, parents, passenger, picks):
    """Every root path, tried whole; the deepest valid one, the lowest end node first."""
    best = []
    for end in range(len(tokens)):
        path, node = [], end
        while node != -1:
            path.append(node)
            node = parents[node]
        path.reverse()
        valid = all(not passenger[n] and tokens[n] == picks[parents[n] + 1] for n in path)
        if valid and len(path) > len(best):
            best = path
    return best


@given(trees())
def test_follow_is_its_definition(tree):
    assert Walk.follow(*tree) == by_definition(*tree)


def test_joint_law_of_sampled_tokens():
    """Three tokens under a tree drafter against exact enumeration; the plain sampler's own noise next to it."""
    chain = np.random.default_rng(5).dirichlet(np.ones(4) * 0.7, size=4)
    rows = torch.tensor(chain).log()
    exact = {s: chain[0][s[0]] * chain[s[0]][s[1]] * chain[s[1]][s[2]] for s in itertools.product(range(4), repeat=3)}
    draws = 4000

    def emit(seed, fixed_uniform=False):
        walk, out = Walk(Sampling(1.0), seed), []
        while len(out) < 3:
            root = out[-1] if out else 0
            tokens, parents = [0, 3, 1, 0], [-1, -1, 0, 1]
            picks = walk.pick(torch.stack([rows[root], *(rows[t] for t in tokens)]), [0, 1, 1, 2, 2]).tolist()
            path = walk.follow(tokens, parents, None, picks)
            step = [*(tokens[n] for n in path), picks[path[-1] + 1] if path else picks[0]]
            walk.advance([] if fixed_uniform else step)
            out += step
        return tuple(out[:3])

    def distance(draws, **options):
        counts = dict.fromkeys(exact, 0)
        for seed in range(draws):
            counts[emit(seed, **options)] += 1
        return 0.5 * sum(abs(counts[s] / draws - p) for s, p in exact.items())

    generator = np.random.default_rng(0)
    plain = generator.multinomial(draws, list(exact.values())) / draws
    noise = 0.5 * np.abs(plain - list(exact.values())).sum()
    assert distance(draws) < 2 * noise
    assert distance(1000, fixed_uniform=True) > 5 * noise  # the wrong variant: one uniform for every position


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
