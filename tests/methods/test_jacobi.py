"""Jacobi decoding against the integer examples of its streaming form, and against its
definition.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import judge
from draft_models import begin
from methods.jacobi import Jacobi
from specbench.types import Prefill, Step, TopK


def clock(path):
    """The token after ``path`` depends on its length alone."""
    return 9 + len(path)


def trace(method, model, context, steps, seed=0, budget=64):
    """(window fed, tokens emitted) of each step; context[-1] is the root."""
    context = list(context)
    drafter = begin(method, context, seed)
    out = []
    for _ in range(steps):
        draft = drafter.propose(context, budget)
        step = judge(draft, context, model)
        drafter.observe(step)
        context += step.emitted
        out.append((list(draft.tokens), list(step.emitted)))
    return out


def test_a_model_of_the_position_is_accelerated_every_other_step():
    windows, emitted = zip(*trace(Jacobi(3), clock, [5], 4), strict=True)
    assert windows == ([0, 0, 0], [11, 12, 13], [0, 0, 0], [16, 17, 18])
    assert emitted == ([10], [11, 12, 13, 14], [15], [16, 17, 18, 19])


def test_a_window_that_does_not_move_on_would_fail_the_example():
    class Still(Jacobi):
        def begin(self, prompt, prefill, seed):
            drafter = super().begin(prompt, prefill, seed)
            moved = drafter.observe
            drafter.observe = lambda step: moved(
                Step(step.root, step.emitted, (), False, step.fed, step.topk)
            )
            return drafter

    windows = [window for window, _ in trace(Still(3), clock, [5], 4)]
    assert windows[:2] == [[0, 0, 0], [11, 12, 13]]
    assert windows[2] != [0, 0, 0]


def test_padding_from_the_prompt_is_seeded_and_a_budget_is_kept():
    prompt = list(range(40, 80))
    one, again, other = (
        trace(Jacobi(6, "prompt"), clock, [*prompt, 5], 3, seed) for seed in (1, 1, 2)
    )
    assert one == again != other
    assert set(one[0][0]) <= set(prompt)
    drafter = Jacobi(4).begin([1], Prefill(2), 0)
    assert len(drafter.propose([1, 2], 2)) == 2
    ids = torch.tensor([[3], [4], [5]])
    drafter.observe(Step(2, (3,), (), False, torch.tensor([2, 0, 0]), TopK(ids, ids.float())))
    assert list(drafter.propose([1, 2, 3], 64).tokens) == [4, 5, 0, 0]


@given(
    st.integers(2, 5),
    st.integers(1, 6),
    st.sampled_from(["pad", "repeat"]),
    st.lists(st.integers(0, 4), min_size=1),
)
def test_window_is_the_targets_word_on_the_window_before(modulus, size, padding, context):
    def model(path):
        return (7 * path[-1] + 3 * path[max(0, len(path) - 3)] + len(path) // 4) % modulus

    steps = trace(Jacobi(size, padding), model, context, 12)
    root = list(context)
    for (window, emitted), (following, _) in pairwise(steps):
        picks = [model([*root, *window[:row]]) for row in range(size + 1)]
        kept = picks[len(emitted) :]
        fresh = 0 if padding == "pad" else (kept or picks)[-1]
        assert following == kept + [fresh] * (size - len(kept))
        assert emitted == picks[: len(emitted)]
        root += emitted


@pytest.mark.parametrize(
    ("token", "eos", "pad"), [(7, {2}, 7), (None, {3, 2}, 2), (100, {2}, 2), (None, set(), 0)]
)  # fmt: skip
def test_pad_token(token, eos, pad):
    """One beyond the embeddings cannot be fed."""
    method = Jacobi(2)
    method.check(
        SimpleNamespace(
            tokenizer=SimpleNamespace(pad_token_id=token), eos=frozenset(eos), vocab_size=100
        )
    )
    assert list(method.begin([1], Prefill(5), 0).propose([1, 5], 9).tokens) == [pad, pad]
