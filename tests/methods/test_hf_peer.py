"""Hugging Face's generate as a peer: reported as it runs, and compiled on a static cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from builders.models import VOCAB, build, plain_greedy
from methods.hf_compiled import HFCompiled
from methods.hf_generate import HFGenerate
from methods.parts import hf_peer
from specbench.decode import loop
from specbench.measure.clock import Clock
from specbench.models.facade import ModelCard, Target
from specbench.types import CaseError, InputError


def decode(model, limit: int = 30) -> list[int]:
    card = ModelCard("m", "random", model.config, None, 512, frozenset(), "float64", "cpu")
    method = HFGenerate()
    method.bind(Target(card, model, 64, None))
    found: list[int] = []
    with method.around(limit, 0):
        method.decode([5, 6], limit, 0, lambda ids: bool(found.extend(ids)))
    return found


def test_the_repositorys_generation_config_does_not_leak():
    model = build("llama", torch.float64)
    truth = plain_greedy(model, [5, 6], 30)
    model.generation_config.repetition_penalty = 1.8
    model.generation_config.suppress_tokens = [truth[0], truth[1] % VOCAB]
    assert decode(model) == truth


def test_the_config_and_the_seeds_are_made_before_the_clock_starts(monkeypatch):
    seen, model = [], build("llama", torch.float64)
    for owner, name in ((hf_peer, "GenerationConfig"), (torch, "manual_seed"), (Clock, "start")):
        real = getattr(owner, name)

        def note(*given, real=real, name=name, **named):
            seen.append(name)
            return real(*given, **named)

        monkeypatch.setattr(owner, name, note)
    card = ModelCard("m", "random", model.config, None, 512, frozenset(), "float64", "cpu")
    method = HFGenerate()
    method.bind(Target(card, model, 64, None))
    engine = SimpleNamespace(
        context=512, eos=card.eos, keep_prefix=lambda count: 0, reserve=lambda count: None
    )
    clock, before = Clock(torch.device("cpu")), torch.get_rng_state()
    seen.clear()
    out = loop.decode(engine, method, loop.Request([5, 6], 9, None, 0), clock)
    assert len(out.ids) == 9
    assert seen == ["GenerationConfig", "manual_seed", "start"]
    assert torch.equal(torch.get_rng_state(), before)


PROMPTS = ([5, 6], [9, 8, 7, 6, 5, 4, 3], [11], [5, 6])


def bound(model, context: int = 512, **options) -> HFCompiled:
    card = ModelCard("m", "random", model.config, None, context, frozenset({2}), "float64", "cpu")
    method = HFCompiled(**options)
    method.bind(Target(card, model, 64, None))
    method.options["eos_token_id"] = None
    return method


def decode_by(method: HFCompiled, prompt: list[int], limit: int = 20) -> list[int]:
    found: list[int] = []
    with method.around(limit, 0):
        method.decode(prompt, limit, 0, lambda ids: bool(found.extend(ids)))
    return found


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
def test_a_request_sees_nothing_of_the_ones_before_it(family):
    model = build(family, torch.float64)
    method = bound(model, length=40, compile=False)
    for prompt in PROMPTS:
        assert decode_by(method, prompt) == plain_greedy(model, prompt, 20)


@pytest.mark.exhaustive
def test_nothing_is_compiled_or_allocated_after_bind():
    model = build("llama", torch.float64)
    truth = [plain_greedy(model, prompt, 20) for prompt in PROMPTS]
    method = bound(model, length=40)
    layer = method._cache.layers[0]
    place = layer.keys.data_ptr()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    assert [decode_by(method, prompt) for prompt in PROMPTS] == truth
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert layer.keys.data_ptr() == place
    assert layer.keys.shape[2] == 40
    method.close()


def test_a_request_beyond_the_cache_names_the_setting():
    method = bound(build("llama"), length=24, compile=False)
    assert len(decode_by(method, [5, 6, 7, 8])) == 20
    with pytest.raises(CaseError, match=r"24 slots.*raise method\.hf_compiled\.length"):
        decode_by(method, [5, 6, 7, 8, 9])
    assert bound(build("llama"), context=30, length=2048, compile=False)._slots == 30


@pytest.mark.exhaustive
def test_without_a_compiler_the_way_out_is_named(monkeypatch, tmp_path):
    # what is on disk needs no compiler
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    torch._dynamo.reset()
    with pytest.raises(
        InputError, match=r"compile=true: torch\.compile failed .*expected a working compiler"
    ):
        bound(build("llama"), length=28)
    torch._dynamo.reset()
