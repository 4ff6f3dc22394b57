"""Whatever is drafted, the emitted ids are those of plain greedy decoding: every family, window, drafter."""

from __future__ import annotations

import pytest
import torch

from models import EVERY_FAMILY, Scripted, build, plain_greedy, scripts
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.models.eager.engine import EagerEngine

COUNT = 28
PROMPTS = {"one token": [5], "short": [5, 17, 3, 42, 8], "past the window": list(range(20, 50))}
DRAFTERS = ("empty", "wrong", "chain", "oracle", "wide", "repeated", "as_tensors")


def engine_for(model, eos=frozenset(), context=512) -> EagerEngine:
    return EagerEngine(model, context=context, eos=frozenset(eos), max_nodes=64)


def run(engine, script, prompt, limit=COUNT, sampling=None, seed=0):
    request = Request(prompt, limit, sampling, seed)
    return decode(engine, Scripted(script), request, Clock(torch.device("cpu")))


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_drafter_emits_plain_greedy_ids(family, dtype):
    model = build(family, dtype)
    engine = engine_for(model)
    for prompt in PROMPTS.values():
        truth = plain_greedy(model, prompt, COUNT + 8)
        for name, script in scripts(truth).items():
            out = run(engine, script, prompt)
            assert out.ids == truth[:COUNT], (family, name, len(prompt))
            assert 1 + sum(out.accept) == len(out.ids) == COUNT
            assert engine.cache.length == len(prompt) + COUNT - 1


def test_eager_attention_agrees_too():
    model = build("mistral-window", attention="eager")
    truth = plain_greedy(model, PROMPTS["short"], COUNT + 8)
    for script in scripts(truth).values():
        assert run(engine_for(model), script, PROMPTS["short"]).ids == truth[:COUNT]


def test_oracle_and_adversary_bound_the_steps():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    assert set(run(engine_for(model), scripts(truth)["wrong"], [5, 6]).accept) == {1}
    assert run(engine_for(model), scripts(truth)["oracle"], [5, 6], limit=1 + 7 * 5).accept == [7] * 5


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_cache_content_after_every_step(family):
    """The cache holds exactly the keys and values of the committed tokens, as one clean forward would make them."""
    model = build(family, torch.float64)
    engine = engine_for(model)
    prompt = PROMPTS["past the window"]
    truth = plain_greedy(model, prompt, COUNT + 8)
    seen = []
    settle = engine.settle

    def checked(left, late=None):
        step = settle(left, late)
        seen.append(engine.cache.length)
        context = [*prompt, *truth][: engine.cache.length]
        fresh = EagerEngine(model, 512, frozenset(), 1)
        fresh.gaps(context, [0])
        for ours, clean in zip(engine.cache.layers, fresh.cache.layers, strict=True):
            for mine, theirs in ((ours.keys, clean.keys), (ours.values, clean.values)):
                torch.testing.assert_close(mine[:, :, : ours.length], theirs[:, :, : ours.length], atol=1e-5, rtol=0)
        return step

    engine.settle = checked
    out = run(engine, scripts(truth)["wide"], prompt, limit=16)
    lengths, total = [], len(prompt)
    for accepted in out.accept:
        total += accepted
        lengths.append(total)
    assert seen == lengths


def test_eos_inside_a_draft_ends_the_answer_there():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    eos = truth[9]
    first = truth.index(eos)
    for name, script in scripts(truth).items():
        engine = engine_for(model, eos={eos})
        out = run(engine, script, [5, 6])
        assert (out.ids, out.finish) == (truth[: first + 1], "eos"), name
        assert engine.cache.length == 2 + first


@pytest.mark.parametrize("limit", range(1, 10))
def test_limit_inside_an_accepted_path(limit):
    model = build("qwen3")
    truth = plain_greedy(model, [5, 6], COUNT)
    for script in scripts(truth).values():
        out = run(engine_for(model), script, [5, 6], limit=limit)
        assert (out.ids, out.finish) == (truth[:limit], "length")


def test_context_limit_is_a_finish_of_its_own():
    model = build("llama")
    truth = plain_greedy(model, [5, 6, 7], COUNT)
    out = run(engine_for(model, context=12), scripts(truth)["oracle"], [5, 6, 7])
    assert (out.ids, out.finish) == (truth[:9], "context")


def test_a_cache_that_forgets_to_compact_is_caught():
    """The wrong variant: leaving accepted nodes where they were drafted must change the output."""
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    engine = engine_for(model)
    engine.cache.keep = lambda start, slots: engine.cache.truncate(start + len(slots))
    assert run(engine, scripts(truth)["wide"], [5, 6]).ids != truth[:COUNT]
