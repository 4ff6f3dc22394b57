"""Budgets of requests that share a forward: what is kept of drafts, and what the controller
chooses.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specbench.decode.budgets import (
    LEVELS,
    Controller,
    EqualBudget,
    chances_of,
    cut_draft,
    keep_likeliest,
)
from specbench.decode.together import SharedRequest, find_drafter
from specbench.types import Draft, Step


def test_the_likeliest_nodes_of_all_drafts_are_kept_and_stay_trees():
    tree = Draft([7, 8, 9, 10], [-1, -1, 0, 1], score=[0.9, 0.2, 0.5, 0.9], source=[0, 1, 0, 1])
    chain = Draft([1, 2, 3], range(-1, 2), score=[0.8, 0.5, 0.1])
    chances = [chances_of(tree), chances_of(chain)]
    assert chances == [[0.9, 0.2, 0.45, pytest.approx(0.18)], [0.8, 0.4, pytest.approx(0.04)]]
    assert keep_likeliest(chances, 4) == [[0, 2], [0, 1]]
    assert keep_likeliest(chances, 0) == [[], []]
    cut, nodes = cut_draft(tree, [1, 3])
    assert (cut.tokens, cut.parents, cut.source, nodes) == ([8, 10], [-1, 0], [1, 1], [1, 3])


def test_without_scores_siblings_share_the_chance_of_their_depth():
    tree = Draft([1, 2, 3], [-1, -1, 0])
    assert chances_of(tree, lambda depth: 0.8 / depth) == [0.4, 0.4, pytest.approx(0.16)]


def test_equal_shares_add_up_to_the_nodes_of_a_forward():
    requests = [SimpleNamespace()] * 5
    assert EqualBudget(12).share(requests, 256) == [3, 3, 2, 2, 2]
    assert EqualBudget(3000).share(requests, 256) == [256] * 5


def choose_nodes(control, load: int, steps: int, cost, tokens) -> list[int]:
    """What the controller chooses; cost [s] and tokens: of a step with so many nodes."""
    chosen = []
    for step in range(steps):
        nodes = control.share([SimpleNamespace()] * load, 256)[0]
        control.observe([], [Step(0, (0,) * tokens(nodes), (), False)], 0, cost(step, nodes))
        chosen.append(nodes)
    return chosen


@pytest.mark.parametrize(
    ("cost", "gain", "best"),
    [
        # a machine with room: more nodes pay, to a point
        ((1.0, 1.1, 1.3, 2.0, 4.0), (1.0, 1.5, 2.0, 2.1, 2.1), 8),
        ((1.0, 2.0, 4.0, 9.0, 20.0), (1.0, 1.5, 2.0, 2.1, 2.1), 0),  # a full one: none does
        ((1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 1.01, 1.01, 1.01, 1.01), 0),  # no gain beyond the margin
    ],
)
def test_the_controller_finds_the_budget_that_pays_and_trying_costs_little(cost, gain, best):
    def level(nodes):
        return LEVELS.index(nodes if nodes != 256 else None)

    chosen = choose_nodes(
        Controller(),
        8,
        2000,
        lambda _, nodes: 100 * cost[level(nodes)],
        lambda nodes: round(800 * gain[level(nodes)]),
    )
    assert chosen[-500:].count(best) > 470
    emitted, seconds = (sum(each[level(nodes)] for nodes in chosen) for each in (gain, cost))
    assert emitted / seconds > 0.97  # not to draft at all gives 1


@pytest.mark.parametrize("slow", [1, 5])
def test_plain_steps_that_were_slow_for_a_while_do_not_keep_drafting_on(slow):
    """Drafting is 10 % slower than not to; another process took the machine when plain steps were
    first tried.
    """

    def cost(step, nodes):
        return 2.2 if nodes else 1.0 * (slow if step < 8 else 1)

    chosen = choose_nodes(Controller(), 8, 1000, cost, lambda nodes: 16 if nodes else 8)
    assert chosen[500:].count(0) > 400


def test_the_controller_learns_each_load_for_itself():
    control = Controller()
    for load, cost in ((1, 0.0), (64, 1.0)):
        chosen = choose_nodes(
            control,
            load,
            300,
            lambda _, nodes, cost=cost: 1.0 + cost * nodes,
            lambda nodes: 1 + min(nodes, 2),
        )
        assert [nodes > 0 for nodes in chosen[-100:]].count(cost == 0.0) > 90


def test_steps_left_out_are_observed_as_one_with_all_hidden_states():
    """A head continues the hidden state of every token, so their rows are those of an accepted
    chain.
    """
    seen = []
    drafter = SimpleNamespace(
        propose=lambda context, budget: seen.append((context, budget)), observe=seen.append
    )
    rows = torch.arange(6.0).view(3, 1, 2)
    missed = [(Step(7 + at, (8 + at,), (), done=False), {4: rows[at]}) for at in range(3)]
    shared = SharedRequest(None, drafter=drafter, context=[1, 7, 8, 9, 10], missed=missed)
    assert find_drafter(shared) is drafter
    assert seen[0] == ([1, 7], 0)
    assert (seen[1].root, seen[1].emitted, seen[1].path) == (7, (8, 9, 10), (0, 1))
    assert torch.equal(seen[1].hidden[4], rows[:, 0])
    assert find_drafter(shared) is drafter
    assert len(seen) == 2


def test_what_is_tried_costs_a_hundredth_whatever_it_costs_at_once():
    """A tree that takes as long as forty plain steps; the first trial may cost what it does."""
    chosen = choose_nodes(
        Controller(), 8, 20_000, lambda _, nodes: 40.0 if nodes else 1.0, lambda nodes: 8
    )
    lost = [39 * bool(nodes) for nodes in chosen]
    assert sum(lost[:200]) <= 4 * 39
    assert sum(lost) < 0.02 * 20_000
    assert sum(lost[1000:])  # it is tried again
