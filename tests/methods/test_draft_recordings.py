"""A draft model's forwards as a GPU has them, recorded once and replayed on fixed buffers, by a
stand-in on a CPU.
"""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from actors import inline_actor
from builders.models import VOCAB, build
from draft_models import MAKE, PARALLEL, begin, fitted, noisy, run, transcript
from head_models import card_of, target_of
from methods.parts import draft_lm
from methods.parts.draft_lm import CHAIN, DraftLM, DraftRequest, TreeRequest
from methods.self_speculation import SelfSpeculation, keep_layers
from playback import Playback
from specbench.decode.sampling import Sampling
from specbench.models import runner as runners
from specbench.models.fast.attention import FUSED, SDPA, TRITON
from specbench.models.fast.graphs import Buckets
from specbench.models.fast.operations import Unscaled
from specbench.models.runner import CompactRunner
from specbench.models.tree import TreeRows

FEW = Buckets((1, 2, 4, 8, 16, 32, 64), (64, 128, 256, 512, 1024))
LIMIT = 30
# a chain, a fixed tree, one that grows, late chains
SHAPES = ("speculative_sampling", "sequoia", "opt_tree", "pearl")
NAMES = [pytest.param(name, marks=[] if name in SHAPES else pytest.mark.exhaustive)
         for name in (*MAKE, "card", "pearl", "saguaro")]  # fmt: skip


class Recorded(CompactRunner):
    """Records as on a GPU. caches: all that there are."""

    def __init__(self, model, context, attention=SDPA) -> None:
        super().__init__(model, context, FEW, attention=attention)
        self.caches = []

    def new_cache(self):
        cache = super().new_cache()
        cache.graphs = Playback(SimpleNamespace(cache=cache.memory, frames=self.frames))
        self.caches.append(cache)
        return cache


def recorded(lm: DraftLM, attention: str = SDPA) -> DraftLM:
    lm.runner = Recorded(lm.model, lm.context, attention)
    lm._free.clear()
    return lm


def lm_of(method) -> DraftLM:
    return inline_actor(method.partner).lm if hasattr(method, "partner") else method.lm


def bind(name, method, model, draft):
    """Give a method its draft model, from the target's layers or loaded."""
    if name != "self_speculation":
        return fitted(method, draft)
    method.check(card_of(model))
    method.bind(target_of(model))
    return method


DRAFTING = [
    *MAKE,
    *(
        pytest.param(name, marks=pytest.mark.exhaustive if "card-" in name else ())
        for name in PARALLEL
    ),
    "self_speculation",
]


def record_by(name, monkeypatch):
    """A method whose draft models record from the start."""
    monkeypatch.setattr(draft_lm, "make_runner", Recorded)
    return {**MAKE, **PARALLEL, "self_speculation": lambda: SelfSpeculation(length=4)}[name]()


@pytest.mark.parametrize("name", DRAFTING)
def test_nothing_is_recorded_in_a_step(model, name, monkeypatch):
    """Of a first request, of a longer one, of two concurrent ones, and of one after another
    ``bind``.
    """
    method, draft = record_by(name, monkeypatch), noisy(model, 0.02)
    for prompts in ([[5, 6, 7], [place * 7 % VOCAB for place in range(50)]], [[5, 6, 7]]):
        caches = lm_of(bind(name, method, model, draft)).runner.caches
        prepared = {*caches[0].graphs._recorded}
        for prompt in prompts:
            run(model, method, prompt, 20)
        both = begin(method, [5, 6]), begin(method, [9, 8])
        for drafter, context, budget in zip(both, ([5, 6], [9, 8]), (64, 3), strict=True):
            drafter.propose(context, budget)
        assert [{*cache.graphs._recorded} for cache in caches] == [prepared] * 2


@pytest.mark.parametrize(
    "name", ["opt_tree", "ouroboros", "card", "specinfer", "pard", "speculative_sampling"]
)
def test_what_a_method_does_not_prepare_is_recorded_in_a_step(model, name, monkeypatch):
    """The wrong variant: chains alone are prepared."""
    prepare = DraftLM.prepare
    monkeypatch.setattr(
        DraftLM, "prepare", lambda lm, shapes: prepare(lm, shapes) if shapes is CHAIN else None
    )
    method = record_by(name, monkeypatch)
    [cache] = lm_of(bind(name, method, model, noisy(model, 0.02))).runner.caches
    prepared = {*cache.graphs._recorded}
    run(model, method, [5, 6, 7], 12)
    assert ({*cache.graphs._recorded} == prepared) is (name == "speculative_sampling")


@pytest.mark.matrix
@pytest.mark.parametrize("sampling", [None, Sampling(1.0)], ids=["T0", "T1"])
@pytest.mark.parametrize("name", NAMES)
def test_recordings_draft_what_plain_forwards_draft(model, name, sampling):
    """Two requests one after the other, the second longer than the first one's keys; then two at
    once.
    """
    draft = noisy(model, 0.02)
    plain, method = (fitted({**MAKE, **PARALLEL}[name](), draft, sampling) for _ in range(2))
    runner = recorded(lm_of(method)).runner
    for prompt in ([5, 6, 7], [place * 7 % VOCAB for place in range(50)]):
        ours, truth = (run(model, each, prompt, LIMIT, sampling) for each in (method, plain))
        assert transcript(ours) == transcript(truth)
    assert len(runner.caches) == 1
    recordings = len(runner.caches[0].graphs)
    again = [transcript(run(model, each, [5, 6, 7], LIMIT, sampling)) for each in (method, plain)]
    assert again[0] == again[1]
    assert len(runner.caches[0].graphs) == recordings > 0
    drafts = []
    for each in (method, plain):
        both = begin(each, [5, 6]), begin(each, [9, 8])
        drafts.append(
            [
                list(drafter.propose(context, 64).tokens) if name not in ("card", "pearl") else []
                for drafter, context in zip(both, ([5, 6], [9, 8]), strict=True)
            ]
        )
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_every_row_is_that_of_a_plain_forward(family):
    """Chains, catching up, trees of many sizes, ids that stay on the device; behind the draft's own
    context too.
    """
    rng = random.Random(4)
    requests = [TreeRequest(lm, VOCAB) for lm in (recorded(lm_behind(family)), lm_behind(family))]
    context = [rng.randrange(VOCAB) for _ in range(9)]
    for _ in range(12):
        same([request.feed(context, 0) for request in requests])
        count = 0
        for _ in range(rng.randrange(4)):
            tokens = [rng.randrange(VOCAB + 3) for _ in range(rng.choice((1, 3, 8, 20)))]
            parents = [rng.randrange(-1, count + place) for place in range(len(tokens))]
            count += len(tokens)
            fed = torch.tensor(tokens) if rng.random() < 0.5 else tokens
            same([request.expand(fed, parents) for request in requests])
        path = [0] if count else []
        for request in requests:
            request.commit(path, [7] * len(path))
        context = [
            *context,
            *[7] * len(path),
            *(rng.randrange(VOCAB) for _ in range(rng.choice((1, 2, 6)))),
        ]
        context = context[: rng.randrange(len(context) - 2, len(context)) + 1]


def lm_behind(family) -> DraftLM:
    return DraftLM(build(family, torch.float64), 40)


def same(rows) -> None:
    torch.testing.assert_close(rows[0], rows[1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("wrong", ["", "buffers that move", "rows that see each other"])
def test_wrong_variants_are_found(wrong, monkeypatch):
    """Catching up with three tokens, in a frame of four rows."""
    model, context = build("llama", torch.float64), list(range(9, 21))
    lm = recorded(DraftLM(model, 512))
    truth, found = (DraftRequest(each, VOCAB) for each in (DraftLM(model, 512), lm))
    rows = [truth.feed(context[:end], end - 3).clone() for end in (6, 9, 12)]
    if wrong == "buffers that move":
        monkeypatch.setattr(lm.runner, "_find_frame", lambda *size: moved(lm.runner, size))
    elif wrong:
        monkeypatch.setattr(
            TreeRows, "list_near", lambda rows, window: np.ones([len(rows.places)] * 2, dtype=bool)
        )
    close = [
        torch.allclose(found.feed(context[:end], end - 3), row)
        for end, row in zip((6, 9, 12), rows, strict=True)
    ]
    assert all(close) == (not wrong)


def test_a_cache_that_moves_under_its_recordings_is_found(monkeypatch):
    request = DraftRequest(recorded(DraftLM(build("llama"), 512)), VOCAB)
    request.feed([5, 6, 7], 0)
    request.step(3)
    request.cache.grow(2000)
    request.step(4)
    monkeypatch.setattr(request.cache.graphs, "drop", lambda: None)
    request.cache.grow(5000)
    with pytest.raises(AssertionError, match="the cache has moved"):
        request.step(4)


@pytest.mark.parametrize(
    "name", [pytest.param("speculative_sampling", marks=pytest.mark.exhaustive), "specinfer"]
)
def test_our_kernel_drafts_what_sdpa_drafts(name):
    """In its interpreter: of each shape there is one recording, though the second request reads
    more keys.
    """
    pytest.importorskip(
        "specbench.models.fast.kernels.tree_attention", reason="pip install '.[triton]'"
    )
    model = build("mistral-window")
    draft = noisy(model, 0.02)
    found = []
    for way in (SDPA, TRITON):
        method = fitted(MAKE[name](), draft)
        cache_of = recorded(lm_of(method), way).runner
        prompts = [5, 6, 7], [place * 7 % VOCAB for place in range(70)]
        found.append([transcript(run(model, method, prompt, 6)) for prompt in prompts])
        [cache] = cache_of.caches
        shapes = {(width, room, last) for width, room, _, last in cache.graphs._recorded}
        assert (len(cache.graphs) == len(shapes)) is (way == TRITON)
    assert found[0] == found[1]


@torch.inference_mode()
def test_the_fused_forward_is_as_near_to_exact_numbers_as_torchs(monkeypatch):
    """In float16, in Triton's interpreter: catching up, and trees of up to 16 rows and more; all
    products are ours.
    """
    products = pytest.importorskip(
        "specbench.models.fast.kernels.products", reason="pip install '.[triton]'"
    )
    launch, kinds, wrong = products.ShortLinear._launch, set(), []

    def run_product(self, given, after, *rest, **named):
        kinds.add(after)
        if wrong:
            (given.rows if isinstance(given, Unscaled) else given)[:, -1] = 0
        return launch(self, given, after, *rest, **named)

    def read(model, trees, way=SDPA):
        runner = CompactRunner(model, 512, FEW, attention=way)
        request, lm.runner = TreeRequest(lm, VOCAB), runner
        request.cache = runner.new_cache()
        request.feed(context[:5], 0)
        rows = [request.feed(context[:7], 5).clone()[None]]
        rows += [request.expand(context[:count], [-1] * count).clone() for count in trees]
        return torch.cat(rows).double()

    monkeypatch.setattr(products.ShortLinear, "_launch", run_product)
    model, context = (
        keep_layers(build("qwen2", torch.float16), [0]),
        [place * 7 % VOCAB for place in range(17)],
    )
    lm = DraftLM(model, 512)
    truth, sdpa, fused = (
        read(copy.deepcopy(model).double(), (3, 17)),
        read(model, (3, 17)),
        read(model, (3, 17), FUSED),
    )
    nearness = float((sdpa - truth).abs().max())
    assert float((fused - truth).abs().max()) < 2 * nearness < 0.1 * float(truth.abs().max())
    assert len(kinds) == 4
    wrong.append("an input is left out")
    assert float((read(model, (), FUSED) - truth[:1]).abs().max()) > 2 * nearness


def moved(runner, size):
    runner.frames.known.clear()
    return CompactRunner._find_frame(runner, *size)


def test_a_draft_model_is_recorded_on_when_it_is_loaded_and_its_methods_share_that(
    model, monkeypatch
):
    monkeypatch.setattr(runners, "STANDING", 100)
    lm = recorded(DraftLM(model, 512))
    lm.prepare(CHAIN)
    (cache,) = lm.runner.caches
    assert cache.capacity >= 100 + FEW.widths[-1]
    recorded_shapes = set(cache.graphs._recorded)
    assert {(width, length) for width, _, length, _ in recorded_shapes} == {
        (w, n) for w in (1, 2, 16) for n in (64, 128, 256)
    }
    for _ in range(2):
        method = fitted(MAKE["speculative_sampling"](), model)
        method.lm = lm
        run(model, method, limit=LIMIT)
    assert lm.runner.caches == [cache]
    assert set(cache.graphs._recorded) == recorded_shapes


@torch.inference_mode()
def test_what_one_request_left_does_not_reach_the_next():
    """Keys are read beyond those that are stored: numbers there that are not finite would make all
    of them so.
    """
    lm = recorded(DraftLM(build("llama", torch.float64), 512))
    request = DraftRequest(lm, VOCAB)
    request.feed([5, 6, 7], 0)
    request.cache.memory._all.fill_(torch.nan)
    del request
    request = DraftRequest(lm, VOCAB)
    request.feed([5, 6, 7], 0)
    assert request.step(3).isfinite().all()
