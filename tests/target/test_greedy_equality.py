"""Whatever is drafted, the emitted ids are those of plain greedy decoding: every family, window, drafter."""

from __future__ import annotations

import pytest
import torch
from target.test_rows import ScriptedRows
from target.test_rows import scripts as row_scripts

from builders.engines import COUNT, PROMPTS, Scripted, decode_one, decode_script, eager_engine, fast_engine, scripts
from builders.models import EVERY_FAMILY, build, plain_greedy
from specbench.models.eager.engine import EagerEngine

WAYS = pytest.mark.parametrize(
    ("make", "method", "drafts"),
    [(eager_engine, Scripted, scripts), (eager_engine, ScriptedRows, row_scripts), (fast_engine, Scripted, scripts)],
    ids=["eager", "eager, as rows", "fast"],
)
DRAFTERS = ("empty", "wrong", "chain", "oracle", "wide", "repeated", "as_tensors")


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_every_drafter_emits_plain_greedy_ids(family, dtype):
    model = build(family, dtype)
    engine = eager_engine(model)
    for prompt in PROMPTS.values():
        truth = plain_greedy(model, prompt, COUNT + 8)
        for name, script in scripts(truth).items():
            out = decode_script(engine, script, prompt)
            assert out.ids == truth[:COUNT], (family, name, len(prompt))
            assert 1 + sum(out.accept) == len(out.ids) == COUNT
            assert engine.cache.length == len(prompt) + COUNT - 1


def test_eager_attention_agrees_too():
    model = build("mistral-window", attention="eager")
    truth = plain_greedy(model, PROMPTS["short"], COUNT + 8)
    for script in scripts(truth).values():
        assert decode_script(eager_engine(model), script, PROMPTS["short"]).ids == truth[:COUNT]


def test_oracle_and_adversary_bound_the_steps():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    assert set(decode_script(eager_engine(model), scripts(truth)["wrong"], [5, 6]).accept) == {1}
    assert decode_script(eager_engine(model), scripts(truth)["oracle"], [5, 6], limit=1 + 7 * 5).accept == [7] * 5


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_cache_content_after_every_step(family):
    """The cache holds exactly the keys and values of the committed tokens, as one clean forward would make them."""
    model = build(family, torch.float64)
    engine = eager_engine(model)
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
    out = decode_script(engine, scripts(truth)["wide"], prompt, limit=16)
    lengths, total = [], len(prompt)
    for accepted in out.accept:
        total += accepted
        lengths.append(total)
    assert seen == lengths


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


def test_a_cache_that_forgets_to_compact_is_caught():
    """The wrong variant: leaving accepted nodes where they were drafted must change the output."""
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    engine = eager_engine(model)
    engine.cache.keep = lambda start, slots: engine.cache.truncate(start + len(slots))
    assert decode_script(engine, scripts(truth)["wide"], [5, 6]).ids != truth[:COUNT]
