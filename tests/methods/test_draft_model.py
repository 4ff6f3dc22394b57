"""Draft models: odd requests, several at once, other widths, trees over the context, and recorded
forwards.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.models import VOCAB, build, plain_greedy
from draft_models import (
    MAKE,
    PARALLEL,
    begin,
    draft_behind,
    draft_together,
    fitted,
    keeps_the_distribution,
    markov_tables,
    noisy,
    plain_logits,
    run,
)
from methods.pard import Pard
from methods.parts.draft_lm import DraftLM, DraftRequest, TreeRequest
from methods.parts.draft_method import DrawingMethod
from methods.self_speculation import SelfSpeculation
from methods.sequoia import Sequoia
from methods.specinfer import SpecInfer
from methods.speculative_sampling import SpeculativeSampling
from specbench.decode.sampling import Sampling
from specbench.models.fast.cache import CachedPlace
from specbench.models.fast.host.forward import CompiledForward
from specbench.models.runner import RowFrame

SCHEDULED = {
    schedule: lambda schedule=schedule: SpeculativeSampling("unused", length=4, schedule=schedule)
    for schedule in ("fixed", "confidence")
}
EVERY = {**MAKE, **SCHEDULED, **PARALLEL}
# Tokens a step, at least, where the target is its own draft.
FULL = {
    "speculative_sampling": 5,
    "fixed": 5,
    "specinfer": 4,
    "sequoia": 4,
    "opt_tree": 2.5,
    "ouroboros": 4,
    "pearl": 2.5,
    "saguaro": 4,
}


@pytest.fixture(params=MAKE)
def name(request):
    return request.param


@pytest.fixture
def make(name):
    return MAKE[name]


@pytest.mark.matrix
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
@pytest.mark.parametrize("epsilon", [0.0, 0.03, 1.0])
def test_output_is_the_targets_whatever_the_draft(name, family, epsilon):
    model = build(family, torch.float64)
    method = fitted(EVERY[name](), noisy(model, epsilon))
    for _ in range(2):  # the second request reuses the first one's buffers, and what it learned
        out = run(model, method, limit=25)
        assert out.ids == plain_greedy(model, [5, 6, 7], 25)
    assert epsilon or sum(out.accept[:-1]) / len(out.accept[:-1]) >= FULL.get(name, 1)


@pytest.mark.parametrize("budget", [0, 1, 3, 8])
@pytest.mark.parametrize("sampling", [None, Sampling(1.0)], ids=["T0", "T1"])
def test_a_budget_is_kept(name, make, budget, sampling):
    model = build("llama")
    method = fitted(make(), model, sampling)
    run(model, method, sampling=sampling)  # after which there are phrases
    whole, cut = (len(draft_behind(method, [5, 6, 7], most)) for most in (64, budget))
    assert cut <= budget
    assert cut == min(whole, budget) or name == "ouroboros"  # whose endings are not cut


NUCLEUS = Sampling(0.7, top_k=3, top_p=0.8)


@pytest.mark.parametrize(
    "wrong",
    [False, pytest.param(True, marks=pytest.mark.exhaustive)],
    ids=["", "another distribution is stated"],
)
@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        (lambda: SpeculativeSampling("unused", length=3, schedule="fixed"), Sampling(1.0)),
        (
            lambda: SpeculativeSampling("unused", length=3, schedule="fixed"),
            Sampling(0.7, top_k=4, top_p=0.9),
        ),
        (lambda: SpeculativeSampling("unused", 3, "fixed", draft_temperature=0.4), Sampling(1.0)),
        (lambda: Pard("unused", length=3, mask_token=4), Sampling(1.0)),
        pytest.param(
            lambda: SelfSpeculation(length=3, schedule="fixed"),
            Sampling(1.0),
            marks=pytest.mark.exhaustive,
        ),
        (lambda: SpecInfer("unused", [2, 2, 1]), Sampling(1.0)),
        pytest.param(lambda: SpecInfer("unused", [2, 2, 1]), NUCLEUS, marks=pytest.mark.exhaustive),
        pytest.param(lambda: sequoia(), Sampling(1.0), marks=pytest.mark.exhaustive),
        (lambda: sequoia(), NUCLEUS),
    ],
)
def test_sampled_strings_keep_the_targets_distribution(method, sampling, wrong, monkeypatch):
    """In every run, wrong variants are those of a foreign draft (a chain), of fixed trees and of
    PEARL.
    """
    target, draft = markov_tables()
    if wrong:
        monkeypatch.setattr(DrawingMethod, "pad_probs", lambda self, probs: probs.flip(-1))
    found = keeps_the_distribution(method(), sampling, target, draft)
    assert found < 1e-6 if wrong else found > 1e-3


def sequoia() -> Sequoia:
    return Sequoia("unused", [0.6, 0.2, 0.1], nodes=9, depth=3)


@pytest.mark.parametrize("name", [*MAKE, *PARALLEL])
@pytest.mark.parametrize("prompt", [[5], [5, 6], list(range(3, 90))], ids=["one", "two", "many"])
def test_prompts_of_any_length_limits_within_a_path_and_eos(model, name, prompt):
    make = EVERY[name]
    method, truth = fitted(make(), noisy(model, 0.01)), plain_greedy(model, prompt, 24)
    for limit in (1, 2, 3, 4, 24):
        assert run(model, method, prompt, limit).ids == truth[:limit]
    for place in (0, 2, 9):
        eos = frozenset([truth[place]])
        out = run(model, fitted(make(), noisy(model, 0.01), eos=eos), prompt, 24, eos=eos)
        assert out.ids == truth[: truth.index(truth[place]) + 1]
        assert out.finish == "eos"


@pytest.mark.parametrize("width", [VOCAB - 50, VOCAB + 64])
def test_models_padded_to_other_widths_go_together(model, make, width):
    """A draft whose logits are narrower or wider than the target's: same ids, distributions of the
    target's width.
    """
    draft = noisy(model, 0.0)
    draft.resize_token_embeddings(width)
    assert run(model, fitted(make(), draft), limit=30).ids == plain_greedy(model, [5, 6, 7], 30)
    sampling = Sampling(1.0)
    method = fitted(make(), draft, sampling)
    probs = draft_behind(method, [5, 6, 7]).probs
    assert (probs is not None) == method.draws
    if probs is not None:
        assert probs.shape[1] == VOCAB
        assert torch.allclose(probs.sum(-1), torch.ones(len(probs)))
    assert len(run(model, method, sampling=sampling, limit=30).ids) == 30


@pytest.mark.parametrize("name", [*MAKE, "pearl", "saguaro"])
def test_a_request_with_a_seed_gives_the_same_again(name):
    make = EVERY[name]
    model, sampling = build("llama", torch.float64), Sampling(1.0)
    draft = noisy(model, 0.03)
    outs = [
        run(model, fitted(make(), draft, sampling), sampling=sampling, seed=seed)
        for seed in (3, 3, 4)
    ]
    assert (outs[0].ids, outs[0].accept) == (outs[1].ids, outs[1].accept)
    assert outs[0].ids != outs[2].ids


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_catching_up_builds_the_rows_that_are_fed(monkeypatch, family):
    """Three tokens behind forty: the mask's rows are three, not forty-three, and the logits are the
    model's own.
    """
    built = []
    make = RowFrame.build_mask
    monkeypatch.setattr(
        RowFrame, "build_mask", lambda *given: built.append((found := make(*given)).shape) or found
    )
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
    """The same bits, as many forwards as one request takes; contexts differ, and one more request
    joins and grows.
    """
    model = build("llama", torch.float32)
    method = fitted(MAKE[name](), model)
    contexts = [[5, 6, 7], [9, 8], [3] * 11, list(range(4, 40))]
    alone = [draft_behind(method, context) for context in contexts]
    counts = []
    feed = CompiledForward.feed
    monkeypatch.setattr(
        CompiledForward, "feed", lambda *given: counts.append(len(given[5])) or feed(*given)
    )

    def together():
        counts.clear()
        drafters = [begin(method, context) for context in contexts]
        drafts = draft_together(drafters, contexts)
        return [(list(draft.tokens), list(draft.parents)) for draft in drafts]

    truth = [(list(draft.tokens), list(draft.parents)) for draft in alone]
    assert together() == truth
    more = {"speculative_sampling": 3, "specinfer": 2, "pard": 0}[name]
    assert counts == [1, 3, *[4] * more]  # a long context is read alone
    monkeypatch.setattr(CachedPlace, "base", 0)
    assert together() != truth


MODELS = {}


def model_of(family):
    if family not in MODELS:
        MODELS[family] = build(family, torch.float64)
    return MODELS[family]


def request_of(family, vocab=VOCAB):
    lm = DraftLM(model_of(family), 512)
    return TreeRequest(lm, vocab)


class Twin:
    """A tree kept as plain paths of nodes: what each node's logits must be, computed from
    scratch.
    """

    def __init__(self, family):
        self.model, self.tree = model_of(family), request_of(family)
        # lines: of each node, its ancestors and itself
        self.context, self.tokens, self.lines = [], [], []

    def feed(self, context, settled=0):
        self.context, self.tokens, self.lines = list(context), [], []
        self.same(self.tree.feed(context, settled), [])

    def same(self, row, line):
        text = [*self.context, *(self.tokens[node] for node in line)]
        # The norms of a float64 model round to float32: where a sum lies next to a rounding
        # boundary, one unit moves a logit by up to 2.3e-6. A wrong mask moves it by more than 1e-3.
        assert torch.allclose(row, plain_logits(self.model, text), atol=1e-5)

    def expand(self, tokens, parents):
        start = len(self.lines)
        for token, parent in zip(tokens, parents, strict=True):
            self.lines.append([*(self.lines[parent] if parent >= 0 else []), len(self.lines)])
            self.tokens.append(token)
        rows = self.tree.expand(tokens, parents)
        assert len(rows) == len(tokens)
        for row, line in zip(rows, self.lines[start:], strict=True):
            self.same(row, line)

    def commit(self, path, kept=()):
        accepted = [self.tokens[node] for node in path]
        self.tree.commit(path, accepted, kept)
        self.context += accepted
        self.keep(kept, path)
        assert len(self.tree) == len(kept)
        assert self.tree.cached == len(self.context)

    def prune(self, kept):
        self.tree.prune(kept)
        self.keep(kept)

    def keep(self, kept, path=()):
        place = {node: number for number, node in enumerate(kept)}
        self.tokens = [self.tokens[node] for node in kept]
        self.lines = [
            [place[each] for each in self.lines[node] if each not in path] for node in kept
        ]


FAMILIES = ["llama", "mistral", "mistral-window", "qwen2", "qwen2-mixed", "phi3-window"]


@given(st.data())
def test_any_sequence_of_calls(data):
    twin = Twin(data.draw(st.sampled_from(FAMILIES)))
    token = st.integers(0, VOCAB - 1)
    twin.feed(data.draw(st.lists(token, min_size=1, max_size=20)))
    for _ in range(data.draw(st.integers(1, 5))):
        tokens = data.draw(st.lists(token, min_size=1, max_size=6))
        start = len(twin.lines)
        twin.expand(
            tokens, [data.draw(st.integers(-1, start + place - 1)) for place in range(len(tokens))]
        )
        match data.draw(st.sampled_from(["grow", "commit", "prune", "feed"])):
            case "prune":
                first = data.draw(st.integers(0, len(twin.lines) - 1))
                twin.prune(
                    [
                        node
                        for node, line in enumerate(twin.lines)
                        if line[0] == twin.lines[first][0]
                    ]
                )
            case "commit":
                path = data.draw(st.sampled_from([[], *twin.lines]))
                below = [
                    node
                    for node, line in enumerate(twin.lines)
                    if line[: len(path)] == path and line != path
                ]
                cut = data.draw(st.sets(st.integers(0, len(twin.lines) - 1)))
                kept = [node for node in below if not cut & set(twin.lines[node][len(path) :])]
                twin.commit(path, kept)
            case "feed":
                settled = data.draw(st.integers(0, len(twin.context)))
                twin.feed([*twin.context, data.draw(token)], settled)


def test_capacity_and_widths():
    twin = Twin("llama")
    twin.feed([5, 17, 3])
    for width in (100, 200):
        start = len(twin.lines)
        twin.tree.expand([7] * width, [-1] * width)
        twin.tokens += [7] * width
        twin.lines += [[start + place] for place in range(width)]
    assert twin.tree.cache.capacity >= 303
    twin.expand([9, 10], [0, 299])
    wide, narrow = request_of("llama"), request_of("llama", vocab=100)
    assert narrow.feed([1, 2], 0).shape == (100,)
    assert narrow.expand([3, 4], [-1, -1]).shape == (2, 100)
    assert torch.equal(wide.feed([1, VOCAB + 7], 0), wide.feed([1, VOCAB - 1], 0))


def test_nodes_that_see_each_other_would_be_found():
    """The wrong variant of the mask."""
    tree = request_of("llama")
    tree.feed([5, 17, 3], 0)
    tree.expand([1, 2], [-1, -1])
    tree._lines[1:] = True
    right = plain_logits(model_of("llama"), [5, 17, 3, 2, 9])
    assert not torch.allclose(tree.expand([9], [1])[0], right, atol=1e-3)


def test_a_chain_of_steps_has_the_same_rows_either_way():
    """What a step cached is compared with the next context."""
    lm, truth = DraftLM(model_of("llama"), 512), plain_logits(model_of("llama"), [5, 6, 7, 9, 11])
    chain, tree = requests = DraftRequest(lm, VOCAB), request_of("llama")
    for request in requests:
        request.feed([5, 6, 7], 0)
    for token in (9, 10):
        assert torch.allclose(chain.step(token), tree.step(token), atol=1e-9)
    for request in requests:
        assert torch.allclose(request.feed([5, 6, 7, 9, 11], 3), truth, atol=1e-9)
