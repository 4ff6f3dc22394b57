"""A draft of rows verified as a batch: the same ids, steps and cache as the same draft verified as
a tree.
"""

from __future__ import annotations

import pytest
import torch

from builders.engines import COUNT, PROMPTS, Scripted, decode_one, eager_engine
from builders.models import VOCAB, build, plain_greedy
from specbench.models.eager.cache import RowCopies
from specbench.types import ROOT, CaseError, Draft, Needs

FAMILIES = (
    "llama",
    "mistral-window",
    "qwen2-mixed",
    pytest.param("phi3", marks=pytest.mark.exhaustive),
)
BATCH, TREE = Needs(rows=True), Needs()


class ScriptedRows(Scripted):
    """``Scripted`` with a say in how its drafts are verified."""

    def __init__(self, script, needs=BATCH) -> None:
        super().__init__(script)
        self._needs = needs

    @property
    def needs(self):
        return self._needs


def rows(*chains) -> Draft:
    tokens: list[int] = []
    parents: list[int] = []
    for chain in chains:
        parents += [ROOT, *range(len(tokens), len(tokens) + len(chain) - 1)][: len(chain)]
        tokens += chain
    return Draft(tokens, parents, source=[0] * len(tokens))


def scripts(truth) -> dict:
    def ragged(context, done, rng):
        """Rows of different lengths, each right for a while."""
        chains = []
        for _ in range(rng.randrange(2, 6)):
            right = truth[done : done + rng.randrange(0, 5)]
            chains.append([*right, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 4)))])
        return rows(*chains)

    def last_wins(context, done, rng):
        right = truth[done : done + 6]
        return rows([1, 2], [*right[:2], 0, 0], right) if right else Draft()

    def ties(context, done, rng):
        right = truth[done : done + 3]
        return rows([7], right, right, [*right, 3]) if right else Draft()

    def changing(context, done, rng):
        """More rows, fewer rows, one row, none: copies of the context fall behind and catch up."""
        return rng.choice([ragged, last_wins, alone, empty])(context, done, rng)

    def alone(context, done, rng):
        return rows(truth[done : done + 4])

    def empty(context, done, rng):
        return Draft()

    def on_device(context, done, rng):
        draft = ragged(context, done, rng)
        return Draft(torch.tensor(draft.tokens), torch.tensor(draft.parents))

    return {f.__name__: f for f in (ragged, last_wins, ties, changing, alone, empty, on_device)}


def run(engine, script, prompt, needs=BATCH, **options):
    return decode_one(engine, ScriptedRows(script, needs), prompt, **options)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_and_tree_commit_the_same(family, dtype):
    model = build(family, dtype)
    engine = eager_engine(model)
    for prompt in PROMPTS.values():
        truth = plain_greedy(model, prompt, COUNT + 8)
        for name, script in scripts(truth).items():
            batch, tree = run(engine, script, prompt), run(engine, script, prompt, TREE)
            assert batch.ids == tree.ids == truth[:COUNT], (family, name, len(prompt))
            assert batch.accept == tree.accept
            assert batch.sources == tree.sources
            assert engine.cache.length == len(prompt) + COUNT - 1


def test_fed_counts_the_whole_batch():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    out = run(eager_engine(model), scripts(truth)["last_wins"], [5, 6], limit=1 + 7 * 2)
    assert (out.accept, out.fed) == ([7, 7], [3 * 7, 3 * 7])
    assert run(
        eager_engine(model), scripts(truth)["last_wins"], [5, 6], TREE, limit=1 + 7 * 2
    ).fed == [13, 13]
    assert set(run(eager_engine(model), scripts(truth)["empty"], [5, 6]).fed) == {1}


@pytest.mark.parametrize(
    ("parents", "named"),
    [([-1, 0, 0], "node 2 hangs from node 0"), ([-1, -1, 0], "node 2 hangs from node 0")],
)
def test_a_draft_that_is_not_rows_is_refused(parents, named):
    engine = eager_engine(build("llama"))
    with pytest.raises(CaseError, match=named):
        run(engine, lambda context, done, rng: Draft([1, 2, 3], parents), [5, 6])


def two_requests(engine, first, second):
    """Two prompts of the same length, one after the other; ids and what they should be."""
    for prompt in (first, second):
        truth = plain_greedy(engine.model, prompt, COUNT + 8)
        yield run(engine, scripts(truth)["ragged"], prompt).ids, truth[:COUNT]


def test_a_request_leaves_nothing_in_the_copies():
    engine = eager_engine(build("llama"))
    long = [(7 * place) % VOCAB for place in range(200)]  # the slots grow between the two
    for first, second in (([5, 6, 7], [9, 8, 3]), ([9, 8, 3], long), (long, [5, 6, 7])):
        assert all(ids == truth for ids, truth in two_requests(engine, first, second))


def test_copies_that_keep_the_last_request_are_caught(monkeypatch):
    """The wrong variant: rows that still hold another prompt must change the output."""
    monkeypatch.setattr(RowCopies, "truncate", lambda self, length: None)
    (first, right), (second, wanted) = two_requests(
        eager_engine(build("llama")), [5, 6, 7], [9, 8, 3]
    )
    assert first == right
    assert second != wanted


def test_copies_are_freed_for_a_method_without_rows():
    model = build("llama")
    truth = plain_greedy(model, [5, 6], COUNT + 8)
    engine = eager_engine(model)
    run(engine, scripts(truth)["ragged"], [5, 6])
    before = engine.cache.nbytes()
    run(engine, scripts(truth)["ragged"], [5, 6], TREE)
    assert before > 2 * engine.cache.nbytes()
