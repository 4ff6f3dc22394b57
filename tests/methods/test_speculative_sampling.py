"""Draft-model speculation with a draft of adjustable quality: the target itself plus noise on every
weight.
"""

from __future__ import annotations

import pytest
import torch

from builders.models import build, plain_greedy
from draft_models import MarkovLM, begin, draft_behind, fitted, noisy, run
from methods.speculative_sampling import SpeculativeSampling
from specbench.decode.sampling import Sampling
from specbench.types import Step


def method_with(draft, sampling=None, **options) -> SpeculativeSampling:
    return fitted(SpeculativeSampling("unused", **options), draft, sampling)


def test_an_eos_ends_the_chain(model):
    truth = plain_greedy(model, [5, 6, 7], 3)
    method = fitted(SpeculativeSampling("unused", length=8), model, eos=frozenset([truth[2]]))
    assert list(draft_behind(method, [5, 6, 7]).tokens) == truth


def test_heuristic_grows_by_two_and_shrinks_by_one():
    drafter = begin(method_with(build("llama"), length=5), [5, 6, 7])
    assert len(drafter.propose([5, 6, 7], 0)) == 0
    drafter.observe(Step(7, (8,), (), False))  # nothing was drafted, so nothing is learned
    assert len(drafter.propose([5, 6, 7], 64)) == 5
    drafter.observe(Step(7, (1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4), False))
    assert len(drafter.propose([5, 6, 7, 1, 2, 3, 4, 5, 6], 64)) == 7
    drafter.observe(Step(6, (1,), (), False))
    assert len(drafter.propose([5, 6, 7, 1, 2, 3, 4, 5, 6, 1], 64)) == 6


def test_confidence_ends_the_chain_behind_the_first_unsure_token():
    """A Markov draft that is sure after 0 and 1 and not after 2: 0 -> 1 -> 2 -> 3 (0.25), and there
    it ends.
    """
    table = torch.full((5, 5), 0.0, dtype=torch.float64)
    table[0, 1] = table[1, 2] = 5.0
    table[2, 3] = 0.3
    for threshold, wanted in ((0.4, [1, 2, 3]), (0.99, [1]), (0.01, [1, 2, 3, 0, 1, 2, 3, 0])):
        method = SpeculativeSampling("unused", length=8, schedule="confidence", threshold=threshold)
        draft = draft_behind(fitted(method, MarkovLM(table), vocab=5), [0, 0])
        assert list(draft.tokens) == wanted
        assert draft.score[0] == pytest.approx(float(table[0].softmax(-1)[1]))
    drawn = SpeculativeSampling("unused", length=8, schedule="confidence")
    draft = draft_behind(fitted(drawn, MarkovLM(table), Sampling(0.1), vocab=5), [0, 0])
    drawn_from = zip(draft.probs, draft.tokens, strict=True)
    assert draft.score == pytest.approx([float(row[token]) for row, token in drawn_from])


def test_drawn_and_chosen_drafts_when_sampling():
    """The ratio test accepts 1 - TV(p, q); the argmax choice at most p's largest probability."""
    model, sampling = build("llama", torch.float64), Sampling(1.0)
    drawn = run(model, method_with(model, sampling, length=5, schedule="fixed"), sampling=sampling)
    argmax = run(
        model,
        method_with(model, sampling, length=5, schedule="fixed", choice="argmax"),
        sampling=sampling,
    )
    assert set(drawn.accept) == {6}
    assert sum(argmax.accept) / len(argmax.accept) < 5
    model, sampling = build("llama", torch.float64), Sampling(0.8)
    method = method_with(noisy(model, 0.02), sampling, choice="argmax")
    assert not method.draws
    vanilla = run(
        model, method_with(model, sampling, choice="argmax"), sampling=sampling, max_nodes=0
    )
    assert run(model, method, sampling=sampling).ids == vanilla.ids
    method = method_with(model, sampling)
    state = torch.random.get_rng_state()
    draft_behind(method, [5, 6, 7])
    assert torch.equal(state, torch.random.get_rng_state())
