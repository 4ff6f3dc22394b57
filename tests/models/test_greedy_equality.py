"""Whatever is drafted, each engine emits the ids of plain decoding: every family, window,
drafter.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from models.test_rows import ScriptedRows
from models.test_rows import scripts as row_scripts

from builders.engines import (
    COUNT,
    PROMPTS,
    Scripted,
    decode_one,
    decode_script,
    eager_engine,
    fast_engine,
    read_slots,
    scripts,
)
from builders.models import EVERY_FAMILY, build, plain_greedy
from specbench.decode.sampling import Sampling
from specbench.models.eager.engine import EagerEngine
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import GRAPHED


def graphed(model, **options) -> FastEngine:
    return fast_engine(model, GRAPHED, **options)


WAYS = pytest.mark.parametrize(
    ("make", "method", "drafts"),
    [
        (eager_engine, Scripted, scripts),
        (eager_engine, ScriptedRows, row_scripts),
        (fast_engine, Scripted, scripts),
        (graphed, Scripted, scripts),
    ],
    ids=["eager", "eager, as rows", "fast", "graphed"],
)  # fmt: skip


def cached(engine) -> int:
    """[tokens] in the cache."""
    return engine.cache.length if isinstance(engine, EagerEngine) else engine.request.length


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(
    "make", [eager_engine, fast_engine, graphed], ids=["eager", "fast", "graphed"]
)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_drafter_emits_plain_greedy_ids(family, make, dtype):
    model = build(family, dtype)
    engine = make(model)
    for prompt in PROMPTS.values():
        truth = plain_greedy(model, prompt, COUNT + 8)
        for name, script in scripts(truth).items():
            out = decode_script(engine, script, prompt)
            assert out.ids == truth[:COUNT], (family, name, len(prompt))
            assert 1 + sum(out.accept) == len(out.ids) == COUNT
            assert cached(engine) == len(prompt) + COUNT - 1


@pytest.mark.parametrize(
    ("method", "drafts"), [(Scripted, scripts), (ScriptedRows, row_scripts)], ids=["tree", "rows"]
)
def test_eager_attention_agrees_too(method, drafts):
    model = build("mistral-window", attention="eager")
    truth = plain_greedy(model, PROMPTS["short"], COUNT + 8)
    for script in drafts(truth).values():
        assert (
            decode_one(eager_engine(model), method(script), PROMPTS["short"]).ids == truth[:COUNT]
        )


@pytest.mark.matrix
@WAYS
@pytest.mark.parametrize("family", ["llama", "mistral-window"])
@pytest.mark.parametrize(
    "sampling", [Sampling(0.8), Sampling(1.0, 20, 0.9)], ids=["T0.8", "T1-k20-p0.9"]
)
def test_sampling_emits_vanillas_ids_for_the_same_seed(make, method, drafts, family, sampling):
    """Whatever is drafted, if nodes are chosen; another seed gives other ids."""
    model, prompt, answers = build(family, torch.float64), PROMPTS["short"], []
    plain, engine, longest = eager_engine(model), make(model), 0
    for seed in range(3):
        answers.append(
            decode_script(plain, scripts([])["empty"], prompt, COUNT, sampling, seed).ids
        )
        for name, script in drafts([*answers[-1], 1, 2, 3, 4]).items():
            out = decode_one(engine, method(script), prompt, COUNT, sampling, seed)
            assert out.ids == answers[-1], (name, seed)
            longest = max(longest, *out.accept)
    assert longest > 3
    assert answers[0] != answers[1]


@WAYS
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_cache_content_after_every_step(make, method, drafts, family):
    """The cache has exactly the keys and values of the committed tokens, as one clean forward would
    make them.
    """
    model = build(family, torch.float64)
    engine, clean, prompt = make(model), make(model), PROMPTS["past the window"]
    truth = plain_greedy(model, prompt, COUNT + 8)
    settle, seen = engine.settle, []

    def checked(left, late=None):
        step = settle(left, late)
        seen.append(cached(engine))
        clean.gaps([*prompt, *truth][: seen[-1]], [0])
        for ours, theirs in zip(
            read_slots(engine, seen[-1]), read_slots(clean, seen[-1]), strict=True
        ):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        return step

    engine.settle = checked
    out = decode_one(
        engine, method(drafts(truth)["changing" if drafts is row_scripts else "wide"]), prompt, 16
    )
    assert seen == [len(prompt) + sum(out.accept[: step + 1]) for step in range(len(out.accept))]


@WAYS
def test_eos_inside_a_draft_ends_the_answer_there(make, method, drafts):
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    first = truth.index(truth[9])
    for name, script in drafts(truth).items():
        engine = make(model, eos={truth[9]})
        out = decode_one(engine, method(script), [5, 6])
        assert (out.ids, out.finish) == (truth[: first + 1], "eos"), name
        if isinstance(engine, EagerEngine):
            assert engine.cache.length == 2 + first


@pytest.mark.parametrize("limit", range(1, 10))
@WAYS
def test_limit_inside_an_accepted_path(make, method, drafts, limit):
    model = build("qwen3")
    truth = plain_greedy(model, [5, 6], COUNT)
    for script in drafts(truth).values():
        out = decode_one(make(model), method(script), [5, 6], limit)
        assert (out.ids, out.finish) == (truth[:limit], "length")


@WAYS
def test_context_limit_is_a_finish_of_its_own(make, method, drafts):
    model = build("llama")
    truth = plain_greedy(model, [5, 6, 7], COUNT)
    script = drafts(truth)["last_wins" if drafts is row_scripts else "oracle"]
    out = decode_one(make(model, context=12), method(script), [5, 6, 7])
    assert (out.ids, out.finish) == (truth[:9], "context")


def forgets_to_keep(engine) -> None:
    engine.cache.keep = lambda start, slots: engine.cache.truncate(start + len(slots))


def forgets_to_move(engine) -> None:
    engine.cache.move = lambda source, target: None


def keeps_the_row_before(engine) -> None:
    keep = engine.cache.keep_row
    engine.cache.keep_row = lambda row, count: keep(max(row - 1, 0), count)


@pytest.mark.parametrize(
    ("make", "method", "drafts", "wrong"),
    [
        (eager_engine, Scripted, scripts, forgets_to_keep),
        (eager_engine, ScriptedRows, row_scripts, keeps_the_row_before),
        (partial(fast_engine, compiled=False), Scripted, scripts, forgets_to_move),
    ],
)
def test_keeping_the_wrong_slots_is_caught(make, method, drafts, wrong):
    """The wrong variants: leaving accepted nodes where they were drafted, or keeping another
    row's.
    """
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    engine = make(model)
    wrong(engine)
    script = drafts(truth)["last_wins" if drafts is row_scripts else "wide"]
    assert decode_one(engine, method(script), [5, 6]).ids != truth[:COUNT]
