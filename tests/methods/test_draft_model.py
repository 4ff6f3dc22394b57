"""What every method with a draft model must stand: odd requests, two at once, its own card, models of other widths."""

from __future__ import annotations

import pytest
import torch

from builders.models import VOCAB, build, plain_greedy
from draft_models import begin, fitted, noisy, plain_logits, run
from methods.opt_tree import OptTree
from methods.ouroboros import Ouroboros
from methods.pard import Pard
from methods.parts.draft_lm import DraftLM, DraftRequest
from methods.sequoia import Sequoia
from methods.specinfer import SpecInfer
from methods.speculative_sampling import SpeculativeSampling
from specbench.decode.sampling import Sampling
from specbench.decode.together import SharedRequest, draft_on
from specbench.models.fast.cache import HeldPlace
from specbench.models.fast.host.forward import CompiledForward
from specbench.models.runner import RowFrame

MAKE = {
    "speculative_sampling": lambda **options: SpeculativeSampling("unused", length=4, **options),
    "pard": lambda **options: Pard("unused", length=4, mask_token=3, **options),
    "specinfer": lambda **options: SpecInfer("unused", [2, 1, 2], **options),
    "sequoia": lambda **options: Sequoia("unused", [0.6, 0.2], nodes=10, depth=3, **options),
    "opt_tree": lambda **options: OptTree("unused", nodes=10, threshold=0.1, max_depth=3, **options),
    "ouroboros": lambda **options: Ouroboros("unused", gamma=3, window=3, level=4, endings=2, **options),
}


@pytest.fixture(params=MAKE)
def make(request):
    return MAKE[request.param]


@pytest.mark.parametrize("prompt", [[5], [5, 6], list(range(3, 90))])
def test_prompts_of_any_length_limits_within_a_path_and_eos(make, prompt):
    model = build("llama", torch.float64)
    method, truth = fitted(make(), noisy(model, 0.01)), plain_greedy(model, prompt, 24)
    for limit in (1, 2, 3, 24):
        assert run(model, method, prompt, limit).ids == truth[:limit]
    for place in (2, 9):
        eos = frozenset([truth[place]])
        out = run(model, fitted(make(), noisy(model, 0.01), eos=eos), prompt, 24, eos=eos)
        assert out.ids == truth[: truth.index(truth[place]) + 1]


def test_two_requests_alive_at_once_do_not_share_a_cache(make):
    model = build("llama", torch.float64)
    alone = [list(begin(fitted(make(), model), context).propose(context, 64).tokens) for context in ([5, 6], [9, 8])]
    method = fitted(make(), model)
    first, second = begin(method, [5, 6]), begin(method, [9, 8])
    first.propose([5, 6], 64)
    assert list(second.propose([9, 8], 64).tokens) == alone[1]
    assert list(first.propose([5, 6], 64).tokens) == alone[0]


@pytest.mark.parametrize("width", [VOCAB - 50, VOCAB + 64])
def test_models_padded_to_other_widths_go_together(make, width):
    """A draft whose logits are narrower or wider than the target's: same ids, distributions of the target's width."""
    model = build("llama", torch.float64)
    draft = noisy(model, 0.0)
    draft.resize_token_embeddings(width)
    assert run(model, fitted(make(), draft), limit=30).ids == plain_greedy(model, [5, 6, 7], 30)
    sampling = Sampling(1.0)
    method = fitted(make(), draft, sampling)
    probs = begin(method, [5, 6, 7]).propose([5, 6, 7], 64).probs
    assert (probs is not None) == method.draws
    if probs is not None:
        assert probs.shape[1] == VOCAB
        assert torch.allclose(probs.sum(-1), torch.ones(len(probs)))
    assert len(run(model, method, sampling=sampling, limit=30).ids) == 30


def test_a_request_with_a_seed_gives_the_same_again(make):
    model, sampling = build("llama", torch.float64), Sampling(1.0)
    draft = noisy(model, 0.03)
    outs = [run(model, fitted(make(), draft, sampling), sampling=sampling, seed=seed) for seed in (3, 3, 4)]
    assert (outs[0].ids, outs[0].accept) == (outs[1].ids, outs[1].accept)
    assert outs[0].ids != outs[2].ids


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_catching_up_builds_the_rows_that_are_fed(monkeypatch, family):
    """Three tokens behind forty: the mask's rows are three, not forty-three, and the logits are the model's own."""
    built = []
    make = RowFrame.build_mask
    monkeypatch.setattr(RowFrame, "build_mask", lambda *given: built.append((found := make(*given)).shape) or found)
    lm = DraftLM(build(family, torch.float64), 512)
    request = DraftRequest(lm, VOCAB)
    context = [5 + place * 7 % 90 for place in range(43)]
    request.feed(context[:40], 0)
    assert not built
    caught_up = request.feed(context, 40)
    assert set(built) == {(3 * lm.runner._model.groups, 43)}
    torch.testing.assert_close(caught_up, plain_logits(lm.model, context), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["speculative_sampling", "specinfer", "pard"])
def test_several_requests_draft_in_one_forward_what_each_drafts_alone(name, monkeypatch):
    """The same bits, as many forwards as one request takes; contexts differ, and one more request joins and grows."""
    model = build("llama", torch.float32)
    method = fitted(MAKE[name](), model)
    contexts = [[5, 6, 7], [9, 8], [3] * 11, list(range(4, 40))]
    alone = [begin(method, context).propose(context, 64) for context in contexts]
    counts = []
    feed = CompiledForward.feed
    monkeypatch.setattr(CompiledForward, "feed", lambda *given: counts.append(len(given[2])) or feed(*given))

    def together():
        counts.clear()
        drafters = [begin(method, context) for context in contexts]
        asked = [SharedRequest(None, drafter=each) for each in drafters]
        waiting = [(each, each.drafter.drafting(own, 64), None) for each, own in zip(asked, contexts, strict=True)]
        while waiting:
            waiting = draft_on(waiting)
        assert [each.error for each in asked] == [None] * 4
        return [(list(each.draft.tokens), list(each.draft.parents)) for each in asked]

    truth = [(list(draft.tokens), list(draft.parents)) for draft in alone]
    assert together() == truth
    more = {"speculative_sampling": 3, "specinfer": 2, "pard": 0}[name]
    assert counts == [1, 3, *[4] * more]  # a long context is read alone
    monkeypatch.setattr(HeldPlace, "base", 0)
    assert together() != truth
