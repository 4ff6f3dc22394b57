"""CARD: its cache against one stored as plain paths, the draft model's tree, hits and misses, its
parameters.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actors import inline_actor
from builders.models import build, plain_greedy
from draft_models import MarkovLM, begin, fitted, noisy, run
from methods.card import Card, CardActor, DraftCache
from specbench.models.facade import Target
from specbench.types import InputError, Step

VOCAB = 7


def distribution_after(path: tuple[int, ...], seed: int) -> np.ndarray:
    """(VOCAB,) log-probabilities, a function of the whole path: no two paths share a
    distribution.
    """
    probs = np.random.default_rng([seed, len(path), *path]).dirichlet(np.ones(VOCAB) * 0.7)
    return np.log(probs)


class Paths:
    """The cache kept as tuples of tokens: what every operation must come to."""

    def __init__(self, width, children, context, seed):
        self.width, self.children, self.context, self.seed = width, children, context, seed
        self.layers: list[list[tuple[int, ...]]] = []

    def weight(self, path):
        return sum(
            distribution_after((*self.context, *path[:n]), self.seed)[token]
            for n, token in enumerate(path)
        )

    def best(self, path):
        return np.argsort(-distribution_after((*self.context, *path), self.seed))[
            : self.children
        ].tolist()

    def grow(self):
        above = self.layers[-1] if self.layers else [()]
        pool = [(*path, token) for path in above for token in self.best(path)]
        self.layers.append(sorted(pool, key=self.weight, reverse=True)[: self.width])

    def query(self):
        path = ()
        for layer in self.layers:
            below = [each for each in layer if each[:-1] == path]
            if not below:
                break
            path = max(below, key=self.weight)
        return list(path)

    def correct(self, accepted, token) -> bool:
        moved = (*accepted, token)
        hit = len(self.layers) >= len(moved) and moved in self.layers[len(moved) - 1]
        deeper = [
            [path[len(moved) :] for path in layer if path[: len(moved)] == moved]
            for layer in self.layers
        ]
        deeper = deeper[len(moved) :]
        read = len(self.layers) > len(moved)  # whether the hit node's children are known
        self.context = (*self.context, *moved)
        self.layers = []
        if not hit:
            return False
        for layer in deeper:
            if not layer:
                self.grow()  # from what the layer above remembers
                return True
            self.layers.append(layer)
        assert read or not self.layers
        return True


def read_frontier(cache: DraftCache, context, seed):
    """The work of the draft model: the best children of every node of the frontier."""
    lines = {cache.frontier.ids[0]: ()} if not cache.layers else paths_of(cache)
    rows = [distribution_after((*context, *lines[node]), seed) for node in cache.frontier.ids]
    best = np.array([np.argsort(-row)[: cache.children] for row in rows])
    cache.grow(best, np.take_along_axis(np.array(rows), best, axis=1))


def paths_of(cache: DraftCache) -> dict[int, tuple[int, ...]]:
    """Id -> tokens from the base."""
    lines = {cache._base.ids[0]: ()}
    for layer in cache.layers:
        for node, token, parent in zip(layer.ids, layer.tokens, layer.parents, strict=True):
            lines[node] = (*lines[parent], int(token))
    return lines


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_cache_is_the_one_kept_as_paths(width, children, seed):
    """Growing, querying, hits, misses and refills in any order; a hit is never missed, nor a miss
    taken for a hit.
    """
    choose = random.Random(seed)
    cache, twin = DraftCache(width, children, frozenset()), Paths(width, children, (), seed)
    seen: set[int] = set()
    for _ in range(12):
        for _ in range(choose.randrange(1, 4)):
            read_frontier(cache, twin.context, seed)
            twin.grow()
        same(cache, twin)
        ids, tokens = cache.query(99)
        accepted = choose.randrange(len(ids) + 1)
        known = (
            [
                path[accepted]
                for path in twin.layers[accepted]
                if list(path[:accepted]) == tokens[:accepted]
            ]
            if (accepted < len(twin.layers))
            else []
        )
        token = choose.choice([*known, choose.randrange(VOCAB)])
        node = cache.find(ids[:accepted], token)
        assert (node is not None) == twin.correct(tokens[:accepted], token) == (token in known)
        if node is None:
            cache.restart()
        else:
            assert node not in seen
            seen.update(ids[:accepted])
            cache.correct(node, accepted + 1)
        same(cache, twin)


def same(cache: DraftCache, twin: Paths):
    lines = paths_of(cache)
    assert [[lines[node] for node in layer.ids] for layer in cache.layers] == twin.layers
    for layer in cache.layers:
        assert [twin.weight(lines[node]) for node in layer.ids] == pytest.approx(
            layer.weights.tolist(), abs=1e-9
        )
    assert cache.query(99)[1] == twin.query()


def test_below_an_eos_nothing_is_drafted():
    cache = DraftCache(2, 2, frozenset([1]))
    cache.grow(np.array([[1, 2]]), np.log([[0.9, 0.1]]))
    cache.grow(np.array([[5, 6], [3, 4]]), np.log([[0.5, 0.5], [0.5, 0.5]]))
    assert cache.layers[1].tokens.tolist() == [3, 4]
    assert cache.query(99)[1] == [1]
    cache = DraftCache(2, 1, frozenset([1]))
    cache.grow(np.array([[1]]), np.zeros((1, 1)))
    cache.grow(np.array([[5]]), np.zeros((1, 1)))
    assert len(cache.layers) == 1
    assert not cache.unread


PROMPT, LIMIT = [5, 6, 7], 61


class Checked(CardActor):
    """Compares every cached node's path probability with a fresh forward over its whole path."""

    compared = 0

    def tell(self, number, verb, *given):
        answer = super().tell(number, verb, *given)
        session = self.sessions[number]
        if verb == "expand":
            self.compare(session)
        return answer

    def compare(self, session):
        store, lines = session.store, paths_of(session.store)
        base = len(session._context) - store._head
        for depth, layer in enumerate(store.layers, 1):
            ids = torch.tensor(
                [[*session._context[:base], *lines[node]] for node in layer.ids.tolist()]
            )
            logits = self.lm.model(ids, use_cache=False).logits.log_softmax(-1)
            chances = logits[:, -depth - 1 : -1].gather(-1, ids[:, -depth:, None])[..., 0].sum(-1)
            assert torch.allclose(chances, torch.from_numpy(layer.weights), atol=1e-8)
            Checked.compared += len(layer)


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-mixed"])
@pytest.mark.parametrize("options", [{}, {"wait": True}, {"correct": False}, {"max_depth": 4}])
@torch.inference_mode()
def test_every_cached_nodes_probability_is_a_fresh_forwards(family, options):
    model = build(family, torch.float64)
    method = Card("unused", nodes_per_layer=5, ratio=3, **options)
    method.kind, Checked.compared = Checked, 0
    out = run(model, fitted(method, noisy(model, 0.02)), PROMPT, 31)
    assert out.ids == plain_greedy(model, PROMPT, 31)
    assert out.stats["hits"] > 3
    assert out.stats["misses"] + out.stats["refills"] > 0
    assert Checked.compared > 100


@pytest.mark.parametrize("ratio", [2, 3, 5])
def test_a_draft_that_is_always_sure_and_right_gives_ratio_tokens_a_round(ratio):
    """The steady state: ratio layers come, ratio tokens go (the paper's 5:1 and 7:1)."""
    sure = torch.eye(10, dtype=torch.float64).roll(1, 1) * 200  # after t comes t + 1
    drafter = begin(
        fitted(Card("unused", nodes_per_layer=3, ratio=ratio), MarkovLM(sure), vocab=10), [0, 1]
    )
    context, counts = [0, 1], []
    for _ in range(8):
        draft = drafter.propose(context, 64)
        drafter.launch()
        assert drafter.join() is None
        emitted = [(context[-1] + 1 + step) % 10 for step in range(len(draft) + 1)]
        assert list(draft.tokens) == emitted[:-1]
        drafter.observe(Step(context[-1], tuple(emitted), tuple(range(len(draft))), False))
        context += emitted
        counts.append(len(emitted))
    assert counts == [1] + [ratio] * 7
    assert drafter.stats()["hit_rate"] == 1
    assert drafter.stats()["draft_forwards"] == 8 * ratio


def test_forwards_stop_where_the_cache_is_full_and_the_first_round_drafts_only_if_the_target_waits(
    model,
):
    drafter = begin(fitted(Card("unused", nodes_per_layer=3, ratio=9, max_depth=4), model), PROMPT)
    assert len(drafter.propose(PROMPT, 64)) == 0
    drafter.launch()
    drafter.join()
    session = inline_actor(drafter.port).sessions[drafter.number]
    assert len(session.store.layers) == 4
    best = plain_greedy(model, PROMPT, 1)
    for wait in (False, True):
        drafter = begin(fitted(Card("unused", wait=wait), model), PROMPT)
        assert list(drafter.propose(PROMPT, 64).tokens) == (best if wait else [])


def test_ratio_is_measured_where_it_is_not_given(model, monkeypatch):
    method = Card("unused", nodes_per_layer=4, ratio=None)
    fitted(method, model)

    slow = SimpleNamespace(
        device=torch.device("cpu"), logits=lambda ids: [model(ids) for _ in range(5)]
    )
    assert method.measure_ratio(slow) >= 2
    for target_s, ratio in ((7.0, 7), (6.1, 7), (0.5, 1)):  # to a draft forward of 1 s
        monkeypatch.setattr(
            "methods.card.measure_forward_s", lambda forward, device, found=target_s: found
        )
        monkeypatch.setattr(method.partner, "ask", lambda verb: 1.0)
        assert method.measure_ratio(slow) == ratio
    with pytest.raises(InputError, match="ratio=null"):
        Card("unused", ratio=None).bind(Target(None, None, 64, None))
