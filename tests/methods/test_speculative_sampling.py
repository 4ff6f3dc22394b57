"""Draft-model speculation with a draft of adjustable quality: the target itself plus noise on every weight."""

from __future__ import annotations

import copy

import pytest
import torch

from methods.parts.draft_lm import DraftLM
from methods.speculative_sampling import SpeculativeSampling
from models import VOCAB, build, plain_greedy
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.target.eager import EagerEngine
from specbench.types import InputError, Step


class _Card:
    context = 512


def method_with(draft, **options) -> SpeculativeSampling:
    method = SpeculativeSampling("unused", **options)
    lm = DraftLM.__new__(DraftLM)
    lm.card, lm.model, lm.device = _Card, draft, torch.device("cpu")
    method._lm, method._vocab, method.eos, method.free = lm, VOCAB, frozenset(), []
    return method


def noisy(model, epsilon: float):
    draft = copy.deepcopy(model)
    torch.manual_seed(1)
    for weight in draft.parameters():
        weight.data += torch.randn_like(weight) * epsilon * weight.std()
    return draft


def run(model, method, prompt=(5, 6, 7), limit=61):
    engine = EagerEngine(model, 512, frozenset(), 64)
    return decode(engine, method, Request(list(prompt), limit, None, 0), Clock(torch.device("cpu")))


@pytest.mark.parametrize("schedule", ["fixed", "heuristic"])
@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.1, 1.0])
def test_output_is_the_targets_whatever_the_draft(schedule, epsilon):
    model = build("llama", torch.float64)
    truth = plain_greedy(model, [5, 6, 7], 61)
    method = method_with(noisy(model, epsilon), length=5, schedule=schedule)
    for _ in range(2):  # the second request reuses the first one's buffers
        assert run(model, method).ids == truth


def test_acceptance_falls_with_the_drafts_quality():
    model = build("llama", torch.float64)
    mat = []
    for epsilon in (0.0, 0.03, 1.0):
        out = run(model, method_with(noisy(model, epsilon), length=5, schedule="fixed"))
        mat.append(sum(out.accept) / len(out.accept))
    assert mat[0] == 6.0  # the target as its own draft: all five, and the bonus token
    assert mat[0] > mat[1] > mat[2]


def test_heuristic_grows_by_two_and_shrinks_by_one():
    model = build("llama")
    method = method_with(model, length=5)
    from specbench.types import Prefill

    drafter = method.begin([5, 6], Prefill(7), 0)
    assert len(drafter.propose([5, 6, 7], 64)) == 5
    drafter.observe(Step(7, (1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4), False))
    assert len(drafter.propose([5, 6, 7, 1, 2, 3, 4, 5, 6], 64)) == 7
    drafter.observe(Step(6, (1,), (), False))
    assert len(drafter.propose([5, 6, 7, 1, 2, 3, 4, 5, 6, 1], 64)) == 6


def test_two_requests_alive_at_once_do_not_share_a_cache():
    model = build("llama", torch.float64)
    method = method_with(model, length=4, schedule="fixed")
    from specbench.types import Prefill

    first, second = method.begin([5], Prefill(6), 0), method.begin([9], Prefill(8), 0)
    wanted = plain_greedy(model, [5, 6], 4), plain_greedy(model, [9, 8], 4)
    first.propose([5, 6], 64)
    assert list(second.propose([9, 8], 64).tokens) == wanted[1]
    assert list(first.propose([5, 6], 64).tokens) == wanted[0]


def test_length_is_checked():
    with pytest.raises(InputError, match="length=0"):
        SpeculativeSampling("x", length=0)
