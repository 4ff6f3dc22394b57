"""llama.cpp's ngram-map against a program that keeps arrays and indices as the server does."""

from __future__ import annotations

import random

import pytest

import methods.ngram_map as module
from draft_models import begin
from methods.ngram_map import NgramMap
from specbench.types import Step


def made(**options) -> NgramMap:
    return NgramMap(**{"match": 2, "num_draft": 2, **options})


def tokens(drafter, context, budget=64):
    return list(drafter.propose(context, budget).tokens)


def emit(drafter, context, accepted, then):
    """The context after a step of so many accepted tokens, which the drafter observes."""
    drafter.observe(Step(context[-1], (*accepted, then), tuple(range(len(accepted))), False))
    return [*context, *accepted, then]


class Server:
    """A slot of the server: hashed places (here without collisions), and records of n-grams in a
    growing list.
    """

    def __init__(self, n, m, key_only, min_hits, prompt):
        self.n, self.m, self.key_only, self.min_hits, self.begun = (
            n,
            m,
            key_only,
            min_hits,
            len(prompt),
        )
        self.table, self.table_end, self.records, self.chosen = {}, 0, [], None

    def same(self, text, one, two, count):
        return all(text[one + k] == two[k] for k in range(count))

    def search(self, text, wanted):
        at = self.table.get(str(wanted), 0)
        if at and at < len(text) - self.n - self.m - 1 and self.same(text, at, wanted, self.n):
            return at
        j = self.begun - self.n - self.m - 1
        while self.begun > self.n + self.m + 1 and j > self.table_end:
            if self.same(text, j, wanted, self.n):
                return j
            j -= 1
        j = len(text) - self.n - self.m - 1
        while j > self.begun and j > self.table_end:
            if self.same(text, j, wanted, self.n):
                return j
            j -= 1
        return 0

    def enter(self, text):
        first, second = self.begun - self.n - self.m - 1, len(text) - self.n - self.m - 1
        places = [
            j
            for j in range(first, 0, -1)
            if self.begun > self.n + self.m + 1 and j > self.table_end
        ]
        places += [j for j in range(second, 0, -1) if j > self.begun and j > self.table_end]
        for j in places:
            if self.table.get(str(text[j : j + self.n]), 0) == 0:
                self.table[str(text[j : j + self.n])] = j
        self.table_end = max(self.table_end, second)

    def draft(self, text, sampled):
        self.chosen = None
        if len(text) < 2 * self.n + self.m:
            return []
        wanted = [*text[len(text) - self.n + 1 :], sampled]
        at = self.search(text, wanted)
        self.enter(text)
        if at == 0:
            return []
        number = next(
            (i for i, one in enumerate(self.records) if self.same(text, one["at"], wanted, self.n)),
            None,
        )
        if number is None:
            number = len(self.records)
            self.records.append(
                {"at": at, "upto": 0, "hits": 0, "values": [[0, 0, self.m] for _ in range(4)]}
            )
        record = self.records[number]
        record["hits"] += 1
        value = 0
        if not self.key_only:
            if record["hits"] < self.min_hits:
                return []
            self.count(text, wanted, record, at)
            occurred = [value[1] for value in record["values"]]
            value = occurred.index(max(occurred))
            others = sum(occurred) - occurred[value]
            if others > 0 and occurred[value] < 2 * others:
                return []
        self.chosen = record["values"][value]
        return [text[at + self.n + i] for i in range(min(self.m, self.chosen[2]))]

    def count(self, text, wanted, record, at):
        for i in range(record["upto"], at + 1):
            if not self.same(text, i, wanted, self.n):
                continue
            for value in record["values"]:
                if value[0] == 0:
                    value[:] = [i + self.n, 0, self.m]
                if text[value[0] : value[0] + self.m] == text[i + self.n : i + self.n + self.m]:
                    value[1] += 1
                    break
        record["upto"] = at

    def accept(self, count):
        if self.chosen is not None:
            self.chosen[2] = count


def played(method, seed, wrong=None):
    """(drafts, whether all are the server's, unequal lengths) of requests over few tokens, partly
    accepted.
    """
    rng, equal, drafts, cut = random.Random(seed), True, 0, 0
    for _ in range(12):
        context = [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
        drafter = begin(method, context)
        server = Server(
            method.match, method.num_draft, not method.counts, method.min_hits, context[:-1]
        )
        for _ in range(60):
            found, wanted = tokens(drafter, context), server.draft(context[:-1], context[-1])
            equal, drafts, cut = (
                equal and found == wanted,
                drafts + bool(wanted),
                cut + (0 < len(wanted) < method.num_draft),
            )
            count = len(found) if rng.random() < 0.7 else rng.randrange(len(found) + 1)
            if wanted:
                server.accept(count)
            context = emit(drafter, context, found[:count], rng.randrange(3))
    return drafts, equal, cut


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"counts": True},
        {"counts": True, "min_hits": 3},
        {"match": 3, "num_draft": 5},
        {"match": 1, "num_draft": 1, "counts": True},
    ],
)
def test_drafts_are_the_servers(options, monkeypatch):
    drafts, equal, cut = played(made(**options), 3)
    assert equal
    assert drafts > 50
    assert cut > 5 or made(**options).num_draft == 1
    wrong = []
    # what was accepted is not remembered
    monkeypatch.setattr(module._Lookup, "observe", lambda self, step: None)
    wrong.append(played(made(**options), 3)[1])
    monkeypatch.undo()
    if options.get("counts"):
        monkeypatch.setattr(module, "RATIO", 3)
        wrong.append(played(made(**options), 3)[1])
    assert not any(wrong)
