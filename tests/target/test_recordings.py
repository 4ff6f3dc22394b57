"""What a GPU records once and replays, by a stand-in on a CPU: the same steps, whatever was decoded before."""

from __future__ import annotations

import pytest
import torch

from models import VOCAB, Scripted, build, plain_greedy, scripts
from playback import Playback, played
from specbench.decode.check import check_engine
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.target.eager.engine import EagerEngine
from specbench.target.fast import engine as fast_engine
from specbench.target.fast.engine import FastEngine
from specbench.target.fast.graphs import GRAPHED, Buckets
from specbench.target.runner import make_runner
from specbench.types import InputError, Needs

COUNT = 40
PROMPTS = {"one token": [5], "short": [5, 17, 3, 42, 8], "past the window": list(range(20, 50))}
FEW = Buckets((1, 2, 4, 8, 16, 32, 64, 96), (64, 128, 256, 512))


def engine_for(model, buckets=FEW) -> FastEngine:
    return played(FastEngine(model, 512, frozenset(), 64, buckets))


def ids(engine, script, prompt, limit=COUNT) -> list[int]:
    return decode(engine, Scripted(script), Request(prompt, limit, None, 0), Clock(torch.device("cpu"))).ids


@pytest.mark.matrix
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen3"])
def test_recording_and_replaying_take_the_same_steps(family, prepared):
    """A graph's outputs are always the same tensors, and its first use, which also records it, moves the cache once."""
    model = build(family)
    engine = engine_for(model)
    check_engine(engine, model)
    if prepared:
        engine.prepare(Needs(), True)
        assert len(engine.graphs._held) >= 8 * 3
        outputs = [kept for _, kept in engine.graphs._held.values()]
        logits = {each[0].untyped_storage().data_ptr() for each in outputs if isinstance(each, tuple)}
        assert len(logits) == 1, "one memory for the logits of all widths and lengths"
        engine.prepare(Needs(hidden=(1,)), True)
        engine.prepare(Needs(rows=True), True)
    for prompt in PROMPTS.values():
        truth = plain_greedy(model, prompt, COUNT + 8)
        for name, script in scripts(truth).items():
            assert ids(engine, script, prompt) == truth[:COUNT], name


def test_a_recording_that_runs_its_call_twice_is_caught(monkeypatch):
    """The wrong variant: a warm-up whose effects stay moves the accepted path twice."""
    model = build("llama")
    engine = engine_for(model, GRAPHED)
    monkeypatch.setattr(Playback, "_warm_up", lambda self, call: (call(), call())[1])
    with pytest.raises(InputError, match="does not see a draft tree"):
        check_engine(engine, model)


def long_prompt(tokens: int) -> list[int]:
    return [(7 * place) % VOCAB for place in range(tokens)]


@pytest.mark.parametrize("again", ["a context beyond the standing one", "new taps"])
def test_recording_again_behind_decoded_requests_reads_no_place_of_theirs(again, monkeypatch):
    """A frame keeps where its last draft lay, which is behind the keys that a shorter recording reads."""
    monkeypatch.setattr(fast_engine, "STANDING", 128)
    model = build("llama")
    engine = engine_for(model)
    engine.prepare(Needs(), True)
    first, held = long_prompt(100), engine.cache.capacity
    truth = plain_greedy(model, first, 24)
    assert ids(engine, scripts(truth)["wide"], first, 16) == truth[:16]
    if again == "new taps":
        engine.prepare(Needs(hidden=(1,)), True)
    second = long_prompt(300)
    truth = plain_greedy(model, second, 12)
    assert ids(engine, scripts(truth)["wide"], second, 4) == truth[:4]
    assert engine.cache.capacity > held


class FailingAllocations:
    """``torch.zeros`` of a device with room for so many bytes in one tensor. failed: how often it had none."""

    def __init__(self, most: int) -> None:
        self.most, self.failed, self._zeros = most, 0, torch.zeros

    def __call__(self, *shape, dtype=None, **options):
        found = self._zeros(*shape, dtype=dtype, **options)
        if found.nbytes > self.most:
            self.failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


@pytest.mark.parametrize("kind", ["fast", "eager"])
def test_a_case_without_memory_leaves_the_next_one_sound(kind, monkeypatch):
    """The cache has room only once it is there, and no recording reads where it was."""
    monkeypatch.setattr(fast_engine, "STANDING", 64)
    model = build("llama")
    engine = engine_for(model) if kind == "fast" else EagerEngine(model, 512, frozenset(), 64)
    engine.prepare(Needs(), True)
    engine.reserve(64)
    short = PROMPTS["short"]
    truth = plain_greedy(model, short, 24)
    memory = FailingAllocations(most=engine.cache.nbytes())
    monkeypatch.setattr(torch, "zeros", memory)
    for _ in range(2):
        assert ids(engine, scripts(truth)["wide"], short, 8) == truth[:8]
        with pytest.raises(torch.OutOfMemoryError):
            ids(engine, scripts(truth)["wide"], long_prompt(450), 8)
    assert memory.failed == 2
    assert ids(engine, scripts(truth)["wide"], short, 8) == truth[:8]


def test_a_draft_models_cache_that_cannot_grow_is_empty_and_grows_later(monkeypatch):
    runner = make_runner(build("llama"), 512)
    cache = runner.new_cache()
    cache.grow(64)
    runner.run(cache, torch.tensor([5, 6]), range(2), None, 1)
    memory = FailingAllocations(most=cache.nbytes())
    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", memory)
        with pytest.raises(torch.OutOfMemoryError):
            cache.grow(500)
    assert (cache.length, cache.capacity) == (0, 0)
    cache.grow(500)
    runner.run(cache, torch.tensor([5, 6]), range(2), None, 1)
    assert cache.length == 2
