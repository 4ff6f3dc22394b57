"""A prompt that begins as the last request is read from there on, and gives what reading all of it
gives.
"""

from __future__ import annotations

import pytest
import torch

from builders.engines import CPU, Scripted, eager_engine, fast_engine, read_slots
from builders.models import build
from methods.vanilla import Vanilla
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.models import tree
from specbench.models.fast.graphs import Buckets
from specbench.records.record import PREFIX
from specbench.types import Draft, Needs

FIRST, SECOND = list(range(20, 60)), [*range(20, 52), 7, 8, 9, *range(30, 70)]
ENGINES = {
    "eager": eager_engine,
    "fast": fast_engine,
    "torch": lambda model: fast_engine(model, compiled=False),
    "buckets": lambda model: fast_engine(
        model, Buckets((1, 2, 4, 8), (64, 128, 256, 512)), compiled=False
    ),
}


def ask(engine, prompt, kept=0, method=None, limit=12):
    return decode(
        engine, method or Vanilla(), Request(prompt, limit, None, 0, kept=kept), Clock(CPU)
    )


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
@pytest.mark.parametrize("name", ENGINES)
def test_a_kept_prefix_gives_the_slots_and_ids_of_the_whole_prompt(name, family, monkeypatch):
    # several chunks, before and after the place where reading begins
    monkeypatch.setattr(tree, "CHUNK", 16)
    model = build(family, torch.float64)
    engine, fresh = ENGINES[name](model), ENGINES[name](model)
    shared = 32  # tokens
    ask(engine, FIRST)
    found, right = ask(engine, SECOND, shared), ask(fresh, SECOND)
    assert (found.ids, found.accept) == (right.ids, right.accept)
    assert (found.stats, right.stats) == ({PREFIX: 32.0}, {})
    for one, other in zip(
        read_slots(engine, len(SECOND)), read_slots(fresh, len(SECOND)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
    ask(engine, FIRST)
    ask(engine, SECOND, shared + 2)  # of another request
    slots = zip(read_slots(engine, len(SECOND)), read_slots(fresh, len(SECOND)), strict=True)
    assert not all(torch.allclose(one, other, atol=1e-9, rtol=1e-7) for one, other in slots)


@pytest.mark.parametrize("name", ENGINES)
def test_the_answer_is_kept_too_and_the_cache_may_grow(name):
    engine, fresh = (ENGINES[name](build("llama", torch.float64)) for _ in range(2))
    tree_draft = Scripted(lambda *given: Draft([1, 2, 3, 4], [-1, -1, 0, 1]))
    prompt = [*FIRST, *ask(engine, FIRST, method=tree_draft).ids]
    kept = len(prompt) - 1
    prompt += 3 * [*range(100, 190)]
    found = ask(engine, prompt, kept)
    assert (found.ids, found.stats[PREFIX]) == (ask(fresh, prompt).ids, kept)
    assert ask(engine, prompt[:5], 5).stats[PREFIX] == 4  # a token is read at least
    assert PREFIX not in ask(engine, prompt).stats


class Reader(Vanilla):
    needs = Needs(prompt_topk=2)


def test_a_drafter_that_needs_every_row_of_the_prompt_gets_all_of_it():
    engine = eager_engine(build("llama"))
    ask(engine, FIRST)
    assert ask(engine, SECOND, 32, Reader()).stats == {}
