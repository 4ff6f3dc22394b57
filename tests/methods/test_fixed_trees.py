"""Trees of fixed shape, SpecInfer and Sequoia: the shapes, what is drafted, the distribution, the
draft's cache.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.models import build, plain_greedy
from draft_models import (
    MarkovLM,
    begin,
    draft_behind,
    fitted,
    keeps_the_distribution,
    markov_tables,
    noisy,
    plain_logits,
    run,
)
from methods.parts import tree_shape
from methods.parts.tree_shape import RANK_CHANCES, ShapePlan, TreeShape, race, without_earlier
from methods.sequoia import Sequoia, find_best_shape
from methods.specinfer import SpecInfer
from specbench.decode.sampling import Sampling
from specbench.models.tree import compute_depths
from specbench.types import Step


def test_shapes_by_hand():
    wanted = {
        (1, 1, 1): (-1, 0, 1),
        (3,): (-1, -1, -1),
        (2, 1): (-1, -1, 0, 1),
        (1, 2, 2): (-1, 0, 0, 1, 1, 2, 2),
    }
    assert {widths: SpecInfer("x", [*widths]).shape.parents for widths in wanted} == wanted
    # Root -> 0, 1; 0 -> 2; 1 has no child; 2 -> 3, 4.
    shape = TreeShape.of([-1, -1, 0, 2, 2])
    levels = [
        (level.start, level.rows, level.ranks, level.inner, level.above) for level in shape.levels
    ]
    assert levels == [
        (0, (0, 0), (0, 1), (0,), (-1,)), (2, (0,), (0,), (0,), (0,)), (3, (0, 0), (0, 1), (), ()),
    ]  # fmt: skip
    assert shape.inner == {0: 0, 2: 1}


def worth(parents, acceptance) -> float:
    """Expected tokens of a step: one, and for each node the chance that all on its path are
    accepted.
    """
    ranks: dict[int, int] = {}
    chances = []
    for parent in parents:
        rank = ranks.get(parent, 0)
        ranks[parent] = rank + 1
        above = chances[parent] if parent >= 0 else 1.0
        chances.append(above * (acceptance[rank] if rank < len(acceptance) else 0.0))
    return 1 + sum(chances)


@pytest.mark.parametrize("chances", [RANK_CHANCES, [0.77, 0.05, 0.03, 0.01], [0.4, 0.4, 0.2]])
def test_a_smaller_budget_keeps_the_likeliest_nodes(chances):
    """Against every part of a tree that is a tree; the first nodes are worth less."""
    shape = TreeShape.from_counts([[3], [2, 1, 0], [2, 0, 1], [1, 0, 1]], 8)
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))

    def expected(nodes) -> float:
        return sum(math.prod(chances[rank] for rank in paths[node]) for node in nodes)

    for count in range(1, len(shape) + 1):
        kept = shape.likeliest(count, chances)
        parts = (
            nodes for nodes in itertools.combinations(range(len(shape)), count)
            if all(shape.parents[node] in (-1, *nodes) for node in nodes)
        )  # fmt: skip
        assert expected(kept) == pytest.approx(max(map(expected, parts)))
        part = shape.part(kept)
        assert [(part.ranks[place]) for place in range(count)] == [
            shape.ranks[node] for node in kept
        ]
    first, best = range(3), shape.likeliest(3, chances)
    assert expected(first) < 0.9 * expected(best) or chances[0] == chances[1]
    plan = ShapePlan(shape, torch.device("cpu"), chances).cut(3)
    assert plan.shape.parents == shape.part(best).parents


def every_tree(nodes, depth, branches):
    """All trees of that many nodes at most, as parents, level by level."""
    for count in range(1, nodes + 1):
        for parents in itertools.product(*(range(-1, node) for node in range(count))):
            if list(parents) != sorted(parents) or max(compute_depths(parents)) > depth:
                continue
            if max(parents.count(parent) for parent in set(parents)) <= branches:
                yield parents


@given(st.data())
def test_best_shape_is_the_best_of_all_trees(data):
    nodes, depth = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    weights = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any))
    acceptance = [weight / (sum(weights) + data.draw(st.integers(0, 20))) for weight in weights]
    parents, expected = find_best_shape(nodes, depth, acceptance)
    assert len(parents) <= nodes
    # a single node that is never right is left out
    assert max(compute_depths(parents), default=0) <= depth
    assert worth(parents, acceptance) == pytest.approx(expected)
    assert expected == pytest.approx(
        max(worth(tree, acceptance) for tree in every_tree(nodes, depth, len(acceptance)))
    )


RATES = [0.6, 0.2, 0.1]
MAKE = {
    "specinfer": lambda: SpecInfer("unused", [2, 2, 1]),
    "sequoia": lambda: Sequoia("unused", RATES, nodes=9, depth=3),
}


@pytest.fixture(params=MAKE)
def method(request):
    return MAKE[request.param]()


def test_the_tree_holds_the_drafts_best_tokens_by_depth(model):
    draft = draft_behind(fitted(SpecInfer("unused", [2, 1]), model), [5, 6, 7])
    first = plain_logits(model, [5, 6, 7]).topk(2).indices.tolist()
    second = [int(plain_logits(model, [5, 6, 7, token]).argmax()) for token in first]
    assert draft.tokens.tolist() == [*first, *second]
    assert list(draft.parents) == [-1, -1, 0, 1]


@pytest.mark.exhaustive
def test_siblings_without_replacement_that_state_the_first_distribution_fail(monkeypatch):
    target, draft = markov_tables()
    monkeypatch.setattr(tree_shape, "without_earlier", lambda probs, siblings, ranks: probs)
    assert (
        keeps_the_distribution(MAKE["sequoia"](), Sampling(1.0), target, draft, draws=1200) < 1e-4
    )


def test_the_target_as_its_own_draft_is_always_accepted_when_sampling(method):
    model, sampling = build("llama", torch.float64), Sampling(1.0)
    out = run(model, fitted(method, model, sampling), sampling=sampling)
    assert set(out.accept[:-1]) == {4}


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_every_node_goes_with_the_distribution_it_was_drawn_from(method, temperature):
    """At the request's temperature, or at the draft's own."""
    model, sampling = build("llama", torch.float64), Sampling(1.5)
    method.draft_temperature = temperature
    draft = draft_behind(fitted(method, model, sampling), [5, 6, 7], seed=4)
    tokens, paths, earlier = draft.tokens.tolist(), [], {}
    for node, parent in enumerate(draft.parents):
        paths.append([*(paths[parent] if parent >= 0 else []), tokens[node]])
        logits = plain_logits(model, [5, 6, 7, *paths[-1][:-1]])[None]
        whole = Sampling(temperature or sampling.temperature)(logits)[0]
        if isinstance(method, Sequoia):
            siblings = earlier.setdefault(parent, [])
            whole[siblings] = 0.0
            siblings.append(tokens[node])
        assert torch.allclose(draft.probs[node], whole / whole.sum(), atol=1e-6)
        assert draft.probs[node, tokens[node]] > 0


def test_a_race_draws_as_one_draw_after_the_other_and_leaves_out_what_has_no_probability():
    """After 0 only 1 and 2 can follow, after 1 and 2 only 0: of 3 x 3 x 3 children 2 x 1 x 2
    live.
    """
    table = torch.tensor(
        [[-9.0, 5, 5, -9], [9, -9, -9, -9], [9, -9, -9, -9], [9, 9, 9, 9]], dtype=torch.float64
    )
    method = Sequoia("unused", [0.4, 0.3, 0.3], nodes=39, depth=3)
    assert len(method.shape) == 39
    draft = draft_behind(
        fitted(method, MarkovLM(table), Sampling(1.0, top_p=0.95), vocab=4), [0, 0]
    )
    assert list(draft.parents) == [-1, -1, 0, 1, 2, 2, 3, 3]
    assert set(draft.tokens[:2].tolist()) == {1, 2}
    assert torch.allclose(draft.probs.sum(-1), torch.ones(8))
    probs = torch.tensor([0.5, 0.3, 0.2, 0.0])
    pairs = race(probs.expand(20000, -1), 4, torch.Generator().manual_seed(0))
    assert pairs[1].tolist() == [[True, True, True, False]] * 20000
    for first, second in ((0, 1), (1, 0), (2, 0)):
        share = ((pairs[0][:, 0] == first) & (pairs[0][:, 1] == second)).double().mean()
        assert abs(share - probs[first] * probs[second] / (1 - probs[first])) < 0.012
    left = without_earlier(probs[None], torch.tensor([[1, 0]]), torch.tensor([1]))
    assert torch.allclose(left, torch.tensor([[0.5, 0.0, 0.2, 0.0]]) / 0.7)


def test_stats_measure_what_the_shape_is_made_from(model):
    own = run(model, fitted(Sequoia("unused", RATES, nodes=9, depth=3), model))
    assert own.stats == {"accepted_child_1": 1.0, "accepted_child_2": 0.0, "accepted_child_3": 0.0}
    rates = run(model, fitted(Sequoia("unused", RATES, nodes=9, depth=3), noisy(model, 0.1))).stats
    assert 0 < rates["accepted_child_1"] < 1
    assert rates["accepted_child_2"] > 0


def test_the_cache_holds_the_accepted_path(model):
    """Drafted and accepted tokens are not read again: the next step feeds only new tokens."""
    method = fitted(SpecInfer("unused", [2, 2]), model)
    drafter = begin(method, [5, 6, 7])
    fed = []
    make_call = drafter._request._forward
    drafter._request._forward = lambda ids, *rest: (fed.append(len(ids)), make_call(ids, *rest))[1]
    context = [5, 6, 7]
    for _ in range(3):
        draft = drafter.propose(context, 64)
        best = plain_greedy(model, context, 3)
        assert [draft.tokens[0], draft.tokens[2]] == best[:2]
        drafter.observe(Step(context[-1], tuple(best), (0, 2), False))
        context += best
    # the leaf that was accepted and the bonus token, then the inner nodes
    assert fed == [3, 2, 2, 2, 2, 2]
