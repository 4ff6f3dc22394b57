"""Lookahead decoding against the integer example of the reference, and against its window written
cell by cell.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import judge
from builders.models import build
from draft_models import begin
from methods.lookahead import Lookahead
from methods.parts import lookahead_window
from methods.parts.lookahead_window import largest_window
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.models.eager.engine import EagerEngine
from specbench.types import ROOT


def markov(path):
    return (3 * path[-1] + 1) % 11


def mixed(path):
    """Depends on the last tokens and, through the length, on the position: a wrong parent shows."""
    return (5 * path[-1] + 3 * path[-2] + path[max(0, len(path) - 4)] + len(path) // 5) % 7


def trace(method, model, context, steps, level=None, seed=0, budget=256):
    """(draft, emitted, pool) of each step. level: the window's first level, None = as the method
    drew it.
    """
    context = list(context)
    drafter = begin(method, context, seed)
    if level is not None:
        drafter._window.levels = [list(level)]
    out = []
    for _ in range(steps):
        draft = drafter.propose(context, budget)
        step = judge(draft, context, model)
        drafter.observe(step)
        context += step.emitted
        listed = {
            key: list(map(tuple, method.pool.list_followers([key], 99).tolist()))
            for key in range(11)
        }
        pool = {key: grams[::-1] for key, grams in listed.items() if grams}  # oldest first
        out.append((draft, list(step.emitted), pool))
    return out


def parts(draft):
    """(window, branch): the tokens that ride along and those to verify."""
    pairs = list(zip(draft.tokens, draft.passenger, strict=True))
    return [token for token, rides in pairs if rides], [
        token for token, rides in pairs if not rides
    ]


@pytest.mark.parametrize(
    ("bonus", "third"), [("dropped", ([7], [7, 0])), ("kept", ([7, 0], [7, 0, 1]))]
)
def test_integer_example_of_the_reference(bonus, third):
    steps = trace(Lookahead(3, 3, 2, bonus), markov, [9, 1], 4, level=[4, 2, 5])
    windows = [parts(draft)[0] for draft, _, _ in steps]
    assert windows[:3] == [[4, 2, 5], [2, 5, 2, 7, 5], [7, 5, 7, 0, 5]]
    assert windows[3] == [0, 5, 0, 1, 5]
    assert [emitted for _, emitted, _ in steps[:2]] == [[4], [2]]
    assert (parts(steps[2][0])[1], steps[2][1]) == third
    assert steps[0][2] == {}
    assert steps[1][2] == {4: [(2, 7)], 2: [(7, 0)], 5: [(5, 5)]}
    assert steps[2][2] == {4: [(2, 7)], 2: [(7, 0)], 5: [(5, 5)], 7: [(0, 1)]}
    if bonus == "dropped":
        assert steps[3][1] == [1]
        # the first is off by one: the window was not moved to the new root
        assert steps[3][2][0] == [(0, 1), (1, 4)]


def test_the_window_is_never_drafted_and_hung_as_one_chain_it_would_fail(monkeypatch):
    for draft, _, _ in trace(Lookahead(4, 5, 3), mixed, [3, 1, 4, 1, 5], 20):
        assert list(draft.source) == [int(rides) for rides in draft.passenger]
        assert all(
            draft.passenger[parent] == draft.passenger[node]
            for node, parent in enumerate(draft.parents)
            if parent != ROOT
        )

    def emitted():
        return [
            (emitted, pool)
            for _, emitted, pool in trace(Lookahead(4, 4, 3), mixed, [3, 1, 4, 1, 5], 25)
        ]

    right = emitted()
    monkeypatch.setattr(
        lookahead_window, "window_parents", lambda widths: list(range(-1, sum(widths) - 1))
    )
    assert emitted() != right


class ByTheCell:
    """The reference's loop in coordinates: cell (level, column) with what it sees spelled out; its
    pool as lists.
    """

    def __init__(self, n, w, g, keep_bonus, from_prompt, context, level, model):
        self.n, self.w, self.g, self.keep_bonus, self.from_prompt = n, w, g, keep_bonus, from_prompt
        self.model, self.context = model, list(context)
        self.levels, self.pool = [list(level)], {}
        if from_prompt:
            for end in range(n, len(context) + 1):
                self.put(context[end - n : end])

    def put(self, window):
        grams = self.pool.setdefault(window[0], [])
        gram = tuple(window[1:])
        if gram in grams:
            grams.remove(gram)
        elif len(grams) == self.g:
            del grams[0]
        grams.append(gram)

    def says(self, level, column):
        """The target's word at a cell: it sees the context, level 0 up to its column, then its own
        column.
        """
        row = [
            *self.levels[0][:column],
            *(self.levels[above][column] for above in range(1, level + 1)),
        ]
        return self.model([*self.context, *row])

    def step(self):
        first = self.model(self.context)
        best, root, last = [first], self.context[-1], len(self.levels) - 1
        full = last == self.n - 2
        for gram in self.pool.get(root, []) if full else []:
            picks = [self.model([*self.context, *gram[:count]]) for count in range(self.n)]
            hit = 0
            while hit < self.n - 1 and gram[hit] == picks[hit]:
                hit += 1
            if not self.keep_bonus:
                hit = min(hit, self.n - 2)
            if hit > len(best) - 1:
                best = picks[: hit + 1]
        columns = range(len(self.levels[0]) + 1) if last else range(1, len(self.levels[0]) + 1)
        new = [self.says(last, column) for column in columns]
        if full:
            for column in range(self.w):
                key = self.levels[0][column - 1] if column else root
                self.put([key, *(level[column] for level in self.levels[1:]), new[column]])
            self.levels = [self.levels[1][1:], *self.levels[2:], new]
        elif last == 0:
            self.levels = [self.levels[0][1:], new]
        else:
            self.levels = [*(level[1:] for level in self.levels), new[1:]]
        for token in best:
            self.context.append(token)
            if self.from_prompt and len(self.context) >= self.n:
                self.put(self.context[-self.n :])
        return best


def settings_of(draw):
    n, w, g = draw(st.integers(3, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    return n, w, g, draw(st.booleans()), draw(st.booleans())


@given(st.data())
def test_every_step_equals_the_cells(data):
    n, w, g, keep, from_prompt = settings_of(data.draw)
    context = data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=12))
    verification = data.draw(st.sampled_from(["chains", "trie"]))
    method = Lookahead(n, w, g, "kept" if keep else "dropped", verification, from_prompt)
    steps = trace(method, mixed, context, 25, seed=data.draw(st.integers(0, 99)))
    oracle = ByTheCell(n, w, g, keep, from_prompt, context, parts(steps[0][0])[0], mixed)
    for draft, emitted, pool in steps:
        assert parts(draft)[0] == [token for level in oracle.levels for token in level]
        assert emitted == oracle.step()
        assert pool == oracle.pool
        assert len(parts(draft)[0]) <= largest_window(n, w)
        assert len(draft.tokens) <= largest_window(n, w) + g * (n - 1 if keep else n - 2)


@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_the_engine_shows_each_cell_what_it_may_see(family):
    """Masks and positions of passengers: the engine's steps are those of a model that reads every
    cell's own text.
    """
    model = build(family, torch.float64)
    known: dict[tuple[int, ...], int] = {}

    @torch.inference_mode()
    def plain(path):
        key = tuple(path)
        if key not in known:
            known[key] = int(model(torch.tensor([path]), use_cache=False).logits[0, -1].argmax())
        return known[key]

    prompt = [5, 17, 3, 42, 8, 17, 3]
    method = Lookahead(4, 4, 3, "kept")
    method.reset()
    engine = EagerEngine(model, context=512, eos=frozenset(), max_nodes=64)
    drafts = []
    forward = engine.forward
    engine.forward = lambda draft: (drafts.append(draft), forward(draft))
    out = decode(engine, method, Request(prompt, 80, None, 0), Clock(torch.device("cpu")))
    oracle = ByTheCell(4, 4, 3, True, False, [*prompt, plain(prompt)], parts(drafts[0])[0], plain)
    for draft in drafts:
        assert parts(draft)[0] == [token for level in oracle.levels for token in level]
        oracle.step()
    assert out.ids == oracle.context[len(prompt) :][:80]
    assert max(out.accept) > 1


@pytest.mark.parametrize("budget", [0, 5, 12, 17])
def test_budget_is_kept(budget):
    """A window that does not fit stays where it is."""
    for draft, _, _ in trace(
        Lookahead(4, 4, 3, pool_from_prompt=True),
        mixed,
        [3, 1, 4, 1, 5, 3, 1, 4],
        12,
        None,
        0,
        budget,
    ):
        assert len(draft) <= budget


def test_pool_lives_until_reset_and_the_window_is_seeded():
    method = Lookahead(3, 4, 2)
    context = [3, 1, 4, 1, 5, 6, 0, 2]
    windows = [parts(trace(method, mixed, context, 1, seed=seed)[0][0])[0] for seed in (1, 1, 2)]
    assert windows[0] == windows[1] != windows[2]
    assert set(windows[0]) <= set(context[:-1])
    trace(method, mixed, context, 4)
    known = [token for token in range(7) if method.draft(token, 99, 0)[0]]
    assert known
    assert method.state_bytes() > 0
    method.reset()
    assert not any(method.draft(token, 99, 0)[0] for token in known)
    assert method.state_bytes() == 0
