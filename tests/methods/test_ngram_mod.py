"""llama.cpp's ngram-mod against the server's own loop: when its table takes a context in, and when
it is emptied.
"""

from __future__ import annotations

import random

import pytest

from draft_models import begin, draft_behind
from methods.ngram_mod import BEHIND, NgramMod
from specbench.types import Step


def made(**options) -> NgramMod:
    method = NgramMod(**{"match": 2, "num_draft": 3, "min_draft": 1, **options})
    method.reset()
    return method


def draft(method, context):
    return list(draft_behind(method, context).tokens)


def test_the_table_outlives_a_request_until_it_is_reset():
    method = made()
    draft(method, [1, 2, 3, 4, 5])
    assert draft(method, [9, 1, 2]) == [3, 4]
    method.reset()
    assert draft(method, [9, 1, 2]) == []


class Server:
    """The server's loop in its own order: an array of slots, indices, chunks; n-grams stand for
    their hashes.
    """

    def __init__(self, n, most, least):
        self.n, self.most, self.least, self.slots = n, most, least, {}

    def begin(self, prompt):
        self.last, self.drafted, self.low = 0, 0, 0
        if len(prompt) >= self.n:
            for i in range(len(prompt) - self.n):
                self.slots[str(prompt[i : i + self.n])] = prompt[i + self.n]
            self.last = len(prompt) - self.n

    def draft(self, prompt, sampled):
        self.drafted = 0
        if len(prompt) < self.n:
            return []
        if self.last + 32 < len(prompt):
            for i in range(self.last, len(prompt) - self.n):
                self.slots[str(prompt[i : i + self.n])] = prompt[i + self.n]
            self.last = len(prompt) - self.n
        result = [*prompt[len(prompt) - self.n + 1 :], sampled]
        for i in range(self.most):
            token = self.slots.get(str(result[i : i + self.n]))
            if token is None:
                if i < self.least:
                    return []
                break
            result.append(token)
        self.drafted = len(result) - self.n
        return result[self.n :]

    def accept(self, count):
        if self.drafted and count / self.drafted < 0.25:
            self.low += 1
            if self.low >= 5:
                self.slots.clear()
                self.low = self.last = 0
        elif self.drafted:
            self.low = 0


@pytest.mark.parametrize(
    "behind", [BEHIND, 1], ids=["", "a context entered at once, the wrong variant"]
)
def test_drafts_are_the_servers(behind, monkeypatch):
    monkeypatch.setattr("methods.ngram_mod.BEHIND", behind)
    rng, method, server, equal = random.Random(2), made(num_draft=8), Server(2, 8, 1), True
    for _ in range(4):
        context = [rng.randrange(4) for _ in range(rng.randrange(1, 30))]
        drafter = begin(method, context)
        server.begin(context[:-1])
        for _ in range(60):
            found, wanted = (
                list(drafter.propose(context, 64).tokens),
                server.draft(context[:-1], context[-1]),
            )
            equal = equal and found == wanted
            count = rng.randrange(len(found) + 1) if rng.random() < 0.2 else 0
            emitted = [*found[:count], rng.randrange(4)]
            drafter.observe(Step(context[-1], tuple(emitted), tuple(range(count)), False))
            server.accept(count)
            context = [*context, *emitted]
    assert equal == (behind == BEHIND)
