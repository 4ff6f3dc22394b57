"""PARD: a chain in one forward is what a plain forward over context and masks says, row by row,
without a cache.
"""

from __future__ import annotations

import pytest
import torch

from builders.drafts import require_laws
from builders.models import VOCAB, build, plain_greedy
from draft_models import begin, draft_behind, fitted, noisy, run
from methods.pard import Pard
from methods.parts.draft_lm import DraftRequest
from specbench.decode.sampling import Sampling
from specbench.models.load import read_card
from specbench.types import InputError

MASK, LENGTH, PROMPT = 11, 5, [5, 6, 7]


def method_with(draft, sampling=None, **options) -> Pard:
    return fitted(Pard("unused", length=LENGTH, mask_token=MASK, **options), draft, sampling)


@torch.inference_mode()
def plain_rows(model, context, mask=MASK, count=LENGTH):
    """(count, V) logits of the last real token and of the masks behind it."""
    return model(torch.tensor([[*context, *[mask] * (count - 1)]]), use_cache=False).logits[
        0, -count:
    ]


def drafts_along(method, ids, prompt) -> list[tuple[list[int], list[int]]]:
    """Contexts and drafts of a request that emits ``ids``, one to four tokens a step."""
    drafter, found, end = begin(method, ids[:prompt]), [], prompt
    for grown in (1, 3, 1, 4, 2):
        found.append((list(ids[:end]), list(drafter.propose(ids[:end], 64).tokens)))
        end += grown
    return found


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_a_chain_is_the_plain_forwards(family):
    model = build(family, torch.float64)
    ids = [5 + place * 7 % 90 for place in range(40)]
    for context, draft in drafts_along(method_with(model), ids, 20):
        assert draft == plain_rows(model, context).argmax(-1).tolist()


def test_another_mask_and_masks_that_stay_in_the_cache_draft_otherwise(model, monkeypatch):
    ids = [5 + place * 7 % 90 for place in range(40)]
    right = [
        plain_rows(model, context).argmax(-1).tolist()
        for context, _ in drafts_along(method_with(model), ids, 20)
    ]
    other = fitted(Pard("unused", length=LENGTH, mask_token=MASK + 1), model)
    assert [draft for _, draft in drafts_along(other, ids, 20)] != right
    monkeypatch.setattr(DraftRequest, "rewind", lambda self, context, settled: len(self._cached))
    with_masks = method_with(model)
    drafter = begin(with_masks, ids[:20])
    drafter.propose(ids[:20], 64)
    assert (
        list(drafter.propose(ids[:30], 64).tokens)
        != plain_rows(model, ids[:30]).argmax(-1).tolist()
    )


@pytest.mark.parametrize("sampling", [None, Sampling(0.7), Sampling(0.7, top_k=4)])
@pytest.mark.parametrize("stop", [3, 99])
def test_rows_are_what_is_drawn_from_and_what_a_policy_of_lengths_gets(model, sampling, stop):
    rows = plain_rows(model, PROMPT)
    require_laws(
        begin(method_with(model, sampling), PROMPT),
        PROMPT,
        lambda path: rows[len(path)],
        sampling,
        stop,
        1e-6,
    )


def test_a_budget_cuts_masks_and_chosen_tokens_leave_the_ids(model):
    assert len(draft_behind(method_with(model), PROMPT, 0)) == 0
    assert (
        draft_behind(method_with(model), PROMPT, 2).tokens
        == plain_rows(model, PROMPT, count=2).argmax(-1).tolist()
    )
    sampling = Sampling(0.7, top_k=4)
    out = run(model, method_with(noisy(model, 0.02), sampling, choice="argmax"), sampling=sampling)
    assert out.ids == run(model, method_with(model, sampling), sampling=sampling, max_nodes=0).ids
    assert run(model, method_with(model)).ids == plain_greedy(model, PROMPT, 61)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"draft": None}, "^draft: not set and model=tiny names none"),
        (
            {"draft": "bundled:tiny_draft"},
            "^draft=bundled:tiny_draft: its config.json has neither pard_token",
        ),
        (
            {"draft": "bundled:tiny_draft", "mask_token": 2048},
            "^mask_token=2048: expected an id of the draft",
        ),
    ],
)
def test_a_draft_that_was_not_trained_for_it_is_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        Pard(**options).check(read_card(path="bundled:tiny", name="tiny", device="cpu"))


def test_the_mask_token_is_the_one_of_its_configuration():
    method = Pard("bundled:tiny_pard")
    method.check(read_card(path="bundled:tiny", name="tiny", device="cpu"))
    assert method.mask == 0 < VOCAB
