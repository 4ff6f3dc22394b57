"""Engines around small models, the decoding of one request, and scripted drafters that attack the
runtime.
"""

from __future__ import annotations

import random

import torch

from builders.models import VOCAB, plain_greedy
from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.method import Drafter, Method
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import Silent
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import Buckets
from specbench.types import ROOT, Draft, Needs, Step

CPU = torch.device("cpu")
COUNT = 28
PROMPTS = {"one token": [5], "short": [5, 17, 3, 42, 8], "past the window": list(range(20, 50))}


def eager_engine(model, eos=(), context: int = 512, max_nodes: int = 64) -> EagerEngine:
    """An eager engine around ``model``."""
    return EagerEngine(model, context, frozenset(eos), max_nodes)


def fast_engine(
    model,
    buckets: Buckets | None = None,
    eos=(),
    context: int = 512,
    max_nodes: int = 64,
    **options,
) -> FastEngine:
    """A fast engine around ``model``; options: fields of ``FastOptions``."""
    return FastEngine(model, context, frozenset(eos), max_nodes, buckets, FastOptions(**options))


def decode_one(
    engine,
    method: Method,
    prompt,
    limit: int = COUNT,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Transcript:
    """The transcript of one request on a CPU."""
    return decode(engine, method, Request(list(prompt), limit, sampling, seed), Clock(CPU))


def decode_script(
    engine, script, prompt, limit: int = COUNT, sampling: Sampling | None = None, seed: int = 0
):
    """The transcript of one request whose drafts ``script`` writes."""
    return decode_one(engine, Scripted(script), prompt, limit, sampling, seed)


def assert_greedy(engine, model, prompt, limit: int, script: str = "wide") -> None:
    """Decoding with a scripted drafter emits the ids of plain greedy decoding."""
    truth = plain_greedy(model, prompt, limit + 8)
    assert decode_script(engine, scripts(truth)[script], prompt, limit).ids == truth[:limit]


def started(engine, prompt, needs: Needs | None = None):
    """The engine, which has read the prompt of a greedy request."""
    engine.start(prompt, COUNT, Walk(None, 0), needs or Needs(), Silent())
    return engine


def take_step(engine, draft: Draft) -> Step:
    """One forward and what it emits."""
    engine.forward(draft)
    return engine.settle(COUNT)


def read_slots(engine, length: int) -> list[torch.Tensor]:
    """[(K, length, D) keys, values, ...] of the first slots, layer by layer."""
    if isinstance(engine, FastEngine):
        return [each[0] for each in engine.cache.read(length)]
    return [
        each[0, :, :length] for layer in engine.cache.slots for each in (layer.keys, layer.values)
    ]


def assert_same_rows(found, right, near: float = 1e-8) -> None:
    """Two steps, or two prefills, have the same top tokens and hidden states."""
    assert torch.equal(found.topk.ids, right.topk.ids)
    torch.testing.assert_close(found.topk.logits, right.topk.logits, atol=near, rtol=near)
    assert found.hidden.keys() == right.hidden.keys()
    for layer, states in right.hidden.items():
        torch.testing.assert_close(found.hidden[layer], states, atol=near, rtol=near)
    if isinstance(right, Step):
        assert (found.emitted, found.path, found.fed.tolist()) == (
            right.emitted,
            right.path,
            right.fed.tolist(),
        )


def draw_rows(rng: random.Random, right: list[int]) -> Draft:
    """Some rows from the root, one of them right for a while."""
    rows = [
        [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 6))]
        for _ in range(rng.randrange(1, 5))
    ]
    rows.insert(rng.randrange(len(rows) + 1), [*right[: rng.randrange(1, 6)]])
    tokens, parents = [], []
    for row in rows:
        parents += [ROOT, *range(len(tokens), len(tokens) + len(row) - 1)]
        tokens += row
    return Draft(tokens, parents)


class _ScriptedDrafter(Drafter):
    def __init__(self, method: Scripted, prompt_length: int) -> None:
        self.method, self.prompt_length = method, prompt_length
        self.random = random.Random(7)

    def propose(self, context, budget):
        return self.method.script(list(context), len(context) - self.prompt_length, self.random)


class Scripted(Method):
    """A method whose drafts are a function (context, emitted so far, random) -> Draft."""

    sources = ("script", "noise")

    def __init__(self, script) -> None:
        self.script = script

    def begin(self, prompt, prefill, seed):
        return _ScriptedDrafter(self, len(prompt))


def scripts(truth: list[int]) -> dict:
    """Drafters by name; ``truth`` is what the target will emit (long enough to draft past the
    end).
    """

    def upcoming(done, count):
        return truth[done : done + count]

    def wrong(context, done, rng):
        return Draft.chain([(token + 1) % VOCAB for token in upcoming(done, 4)])

    def chain(context, done, rng):
        good = rng.randrange(0, 6)
        return Draft.chain([*upcoming(done, good), *(rng.randrange(VOCAB) for _ in range(2))])

    def oracle(context, done, rng):
        return Draft.chain(upcoming(done, 6))

    def wide(context, done, rng):
        """The true path hidden in a tree whose slots are not in path order; passengers below the
        root.
        """
        tokens, parents, last = [], [], -1
        for token in upcoming(done, rng.randrange(0, 5)):
            for _ in range(rng.randrange(0, 4)):
                tokens.append(rng.randrange(VOCAB))
                parents.append(rng.choice([-1, last, *range(len(tokens) - 1)]))
            tokens.append(token)
            parents.append(last)
            last = len(tokens) - 1
        passenger = [rng.random() < 0.1 for _ in tokens]
        return Draft(tokens, parents, passenger=passenger, source=[0] * len(tokens))

    def repeated(context, done, rng):
        """Siblings that repeat the right token; only the last twin carries the right child."""
        one = upcoming(done, 3)
        if len(one) < 3:
            return Draft()
        a, b, c = one
        return Draft([a, a, (b + 1) % VOCAB, b, a, c, b], [-1, -1, 0, 1, -1, 3, 4])

    def empty(context, done, rng):
        return Draft()

    def as_tensors(context, done, rng):
        return Draft(torch.tensor(upcoming(done, 3)), torch.arange(-1, len(upcoming(done, 3)) - 1))

    return {f.__name__: f for f in (empty, wrong, chain, oracle, wide, repeated, as_tensors)}
