"""CARD: the draft model's tree against fresh forwards, hits and misses, and what its parameters do."""

from __future__ import annotations

import pytest
import torch

from actors import inline_actor
from builders.models import build, plain_greedy
from draft_models import MarkovLM, begin, fitted, noisy, run
from methods.card import Card, CardActor, DraftCache
from specbench.models.facade import Target
from specbench.types import InputError, Step

PROMPT, LIMIT = [5, 6, 7], 61


def paths_of(cache: DraftCache) -> dict[int, tuple[int, ...]]:
    """Id -> tokens from the base."""
    lines = {cache._base.ids[0]: ()}
    for layer in cache.layers:
        for node, token, parent in zip(layer.ids, layer.tokens, layer.parents, strict=True):
            lines[node] = (*lines[parent], int(token))
    return lines


class Checked(CardActor):
    """Compares every cached node's path probability with a fresh forward over its whole path."""

    compared = 0

    def expand(self, number, rounds):
        seconds = super().expand(number, rounds)
        session = self.sessions[number]
        store, lines = session.store, paths_of(session.store)
        base = len(session._context) - store._head
        for depth, layer in enumerate(store.layers, 1):
            ids = torch.tensor([[*session._context[:base], *lines[node]] for node in layer.ids.tolist()])
            logits = self.lm.model(ids, use_cache=False).logits.log_softmax(-1)
            chances = logits[:, -depth - 1 : -1].gather(-1, ids[:, -depth:, None])[..., 0].sum(-1)
            assert torch.allclose(chances, torch.from_numpy(layer.weights), atol=1e-8)
            Checked.compared += len(layer)
        return seconds


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


def figures(model, draft, **options):
    """(tokens a round, hit rate) over a few prompts."""
    method = fitted(Card("unused", **options), draft)
    outs = [run(model, method, prompt, 41) for prompt in (PROMPT, [9])]
    hits, misses = (sum(out.stats[name] for out in outs) for name in ("hits", "misses"))
    return sum(sum(out.accept) for out in outs) / sum(len(out.accept) for out in outs), hits / (hits + misses)


def test_more_nodes_a_layer_hit_more_and_give_more_tokens():
    model = build("llama", torch.float64)
    found = [figures(model, noisy(model, 0.02), nodes_per_layer=nodes, ratio=4) for nodes in (1, 5, 40)]
    assert found[0][0] < found[1][0] < found[2][0]
    assert found[0][1] < found[1][1] < found[2][1]


def test_correcting_and_waiting_pay():
    model = build("llama", torch.float64)
    plain, queries, waits = (
        figures(model, noisy(model, 0.02), nodes_per_layer=8, ratio=4, **options)
        for options in ({}, {"correct": False}, {"wait": True})
    )
    assert queries[1] < plain[1]
    assert queries[0] < plain[0] < waits[0]


@pytest.mark.parametrize("ratio", [2, 3, 5])
def test_a_draft_that_is_always_sure_and_right_gives_ratio_tokens_a_round(ratio):
    """The steady state: ratio layers come, ratio tokens go (the paper's 5:1 and 7:1)."""
    sure = torch.eye(10, dtype=torch.float64).roll(1, 1) * 200  # after t comes t + 1
    drafter = begin(fitted(Card("unused", nodes_per_layer=3, ratio=ratio), MarkovLM(sure), vocab=10), [0, 1])
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


def test_forwards_stop_where_the_cache_is_full():
    model = build("llama", torch.float64)
    drafter = begin(fitted(Card("unused", nodes_per_layer=3, ratio=9, max_depth=4), model), PROMPT)
    assert len(drafter.propose(PROMPT, 64)) == 0
    drafter.launch()
    drafter.join()
    session = inline_actor(drafter.port).sessions[drafter.number]
    assert len(session.store.layers) == 4


def test_the_first_round_has_a_draft_only_if_the_target_waits():
    model = build("llama", torch.float64)
    best = plain_greedy(model, PROMPT, 1)
    for wait in (False, True):
        drafter = begin(fitted(Card("unused", wait=wait), model), PROMPT)
        assert list(drafter.propose(PROMPT, 64).tokens) == (best if wait else [])


def test_ratio_is_measured_where_it_is_not_given():
    model = build("llama", torch.float64)
    method = Card("unused", nodes_per_layer=4, ratio=None)
    fitted(method, model)

    class Slow:
        device = torch.device("cpu")

        def logits(self, ids):
            for _ in range(5):
                model(ids)

    assert method._measured(Slow()) >= 2
    with pytest.raises(InputError, match="ratio=null"):
        Card("unused", ratio=None).bind(Target(None, None, 64, None))
