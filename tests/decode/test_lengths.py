"""Policies of draft lengths: the law stays the target's whatever they stop at, and each stops where
it says.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from drawn_laws import CHAIN, VOCAB, drafts, laws, outcomes, wanted_law

from draft_models import MarkovLM, begin, fitted
from methods.speculative_sampling import SpeculativeSampling
from specbench.decode.budgets import EqualBudget, cut_draft
from specbench.decode.lengths import (
    AdaEdl,
    Bandit,
    Confidence,
    LengthBudget,
    Policy,
    Price,
    describe_idle,
    make_limit,
)
from specbench.decode.sampling import Sampling
from specbench.decode.walk import BlockTest
from specbench.method import DraftLevel
from specbench.types import Draft, InputError, Needs

METHOD = SimpleNamespace(needs=Needs(), by_node=False)


class Flat:
    """A profile: a forward of one row takes 10 ms, every further one 1 ms."""

    def step_ms(self, fed, context):
        return [9.0 + fed[0]]


class Dropping(LengthBudget):
    """Wrong: the level that is too unlikely is dropped, though it was looked at."""

    def _cut(self, method, draft):
        kept, _ = super()._cut(method, draft)
        likely = [
            node for node in range(len(kept)) if float(kept.probs[node, kept.tokens[node]]) >= 0.4
        ]
        length = next((node for node in range(len(kept)) if node not in likely), len(kept))
        return cut_draft(draft, range(length))


class Knowing(LengthBudget):
    """Of a head that states a token's chance by the token before it, as DSpark's; wrong: by the
    token itself.
    """

    def __init__(self, wrong=False):
        super().__init__(Confidence(0.4))
        self.wrong = wrong

    def _cut(self, method, draft):
        length = 1
        while length < len(draft):
            token = draft.tokens[length if self.wrong else length - 1]
            if not self.goes_on(
                DraftLevel(length, 1.0, drafted=True, following=0.9 if token % 2 else 0.1)
            ):
                break
            length += 1
        return cut_draft(draft, range(length))


def token_by_token(rows, tokens, stated):
    """(probability, accepted tokens, distribution behind them) of the ratio test of a chain."""
    reached = 1.0
    for place, (token, drawn) in enumerate(zip(tokens, stated, strict=True)):
        taken = min(1.0, float(rows[place, token] / drawn[token]))
        left = (rows[place] - drawn).clamp(min=0)
        if taken < 1:
            yield reached * (1 - taken), tokens[:place], left / left.sum()
        reached *= taken
    yield reached, tokens, rows[len(tokens)]


def by_blocks(rows, tokens, stated):
    test = BlockTest(range(-1, len(tokens) - 1), None, len(rows))
    weights, left = test.weigh(rows, torch.tensor(tokens, dtype=torch.long), stated)
    for chance, path in outcomes(test, weights, range(-1, len(tokens) - 1)):
        yield chance, tokens[: len(path)], left[len(path)]


def found_law(pair, budget, verified):
    """(V, V, V, V) the law of the next tokens, drafts of three drawn ones cut by ``budget``."""
    target, drawn = pair
    law = torch.zeros((VOCAB,) * 4, dtype=torch.float64)
    for probability, tokens, stated in drafts(drawn, CHAIN, True):
        draft = Draft.chain(tokens, probs=stated)
        budget.share([METHOD], 8)
        kept, _ = budget.trim([METHOD], [draft], [8])[0]
        own = list(kept.tokens)
        rows = torch.stack([target[VOCAB], *(target[token] for token in own)])
        for chance, accepted, tail in verified(rows, own, stated[: len(own)]):
            for _ in range(3 - len(accepted)):
                tail = tail[..., None] * target[:VOCAB]
            law[tuple(accepted)] += probability * chance * tail
    return law


def adaedl():
    policy = AdaEdl()
    policy._threshold = 0.6
    return policy


def priced():
    policy = Price(Flat())
    for _ in range(3):  # a step asked for a whole draft, and two that were not
        policy.start()
        policy.observe([(3, 1)], 2, 4, 0.003, 0.02)
    return policy


POLICIES = [lambda: Confidence(0.4), adaedl, priced]


@pytest.mark.parametrize("verified", [token_by_token, by_blocks])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_law_stays_the_targets(policy, verified):
    lengths = set()
    for seed in range(2):
        pair = laws(seed)
        budget = LengthBudget(policy())
        assert torch.allclose(
            found_law(pair, budget, verified), wanted_law(pair[0]), rtol=0, atol=1e-12
        )
        shapes = [
            Draft.chain(tokens, probs=stated) for _, tokens, stated in drafts(pair[1], CHAIN, True)
        ]
        lengths |= {len(budget.trim([METHOD], [draft], [8])[0][0]) for draft in shapes}
    assert len(lengths) > 1  # it does stop, and not always in one place


@pytest.mark.parametrize("verified", [token_by_token, by_blocks])
def test_a_rule_that_drops_what_it_has_looked_at_loses_the_law(verified):
    pairs = [laws(seed) for seed in range(2)]
    for wrong in (Dropping(Policy()), Knowing(wrong=True)):
        assert (
            max(
                (found_law(pair, wrong, verified) - wanted_law(pair[0])).abs().max()
                for pair in pairs
            )
            > 1e-3
        )
    for pair in pairs:
        assert torch.allclose(
            found_law(pair, Knowing(), verified), wanted_law(pair[0]), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    ("policy", "greedy"),
    [(lambda: Confidence(0.4), True), (lambda: Confidence(0.4), False), (adaedl, False)],
)
def test_a_drafter_that_is_asked_stops_where_its_whole_draft_is_cut(policy, greedy):
    """A greedy draft states no distribution: behind it there is no entropy to cut it by."""
    table = torch.randn(6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3
    lengths = set()
    for root, seed in itertools.product(range(6), range(2)):
        found = []
        for asks in (False, True):
            lm = MarkovLM(table)
            method = SpeculativeSampling(
                "unused", length=6, schedule="fixed" if asks else "confidence", threshold=1e-9
            )
            drafter = begin(
                fitted(method, lm, None if greedy else Sampling(1.0), vocab=6), [0, root], seed
            )
            budget = LengthBudget(policy())
            drafter.goes_on = budget.goes_on if asks else None
            draft, _ = budget.trim([method], [drafter.propose([0, root], 64)], [64])[0]
            found.append(list(draft.tokens))
        assert found[0] == found[1]
        lengths.add(len(found[0]))
    assert len(lengths) > 2


def test_entropy_bound():
    policy, law = AdaEdl(), torch.tensor([0.5, 0.5])
    assert policy.goes_on(DraftLevel(1, distribution=law)) is (
        1 - math.sqrt(0.2 * math.log(2)) >= 0.4
    )
    # 1 - sqrt(0.2 * 4.16) = 0.088
    assert not policy.goes_on(DraftLevel(1, distribution=torch.full((64,), 1 / 64)))
    for _ in range(3):
        policy.observe([(5, 5)], 6, 6, 0.0, 1.0)
    assert policy._threshold == pytest.approx(0.4 - 3 * 0.001)  # more than wanted was accepted
    policy.reset()
    policy.observe([(5, 0)], 1, 6, 0.0, 1.0)
    assert (policy._rate, policy._threshold) == (pytest.approx(0.45), pytest.approx(0.401))


def take_lengths(cost, slow=lambda step: 1, steps=1500) -> tuple[set[int], int]:
    """The lengths that a bandit takes, and the most frequent one at the end.

    Each token is accepted with probability 0.8; a step takes 1 and ``cost`` a drafted token.
    """
    policy, taken = Bandit(), []
    for step in range(steps):
        policy.start()
        length = next((depth for depth in range(17) if not policy.goes_on(DraftLevel(depth))), 16)
        taken.append(length)
        emitted = sum(0.8**place for place in range(length + 1))
        policy.observe([(length, 0)], emitted, 1 + length, 0.0, slow(step) * (1 + cost * length))
    last = taken[-500:]
    return set(taken), max(set(last), key=last.count)


@pytest.mark.parametrize(("cost", "best"), [(0.02, 8), (0.5, 2), (3.0, 0)])
def test_a_bandit_finds_the_length_that_pays(cost, best):
    assert take_lengths(cost) == (set(Bandit.ARMS), best)


def test_a_bandit_forgets_a_step_that_read_a_prompt():
    """Of the first 30 steps half take fifty times as long: whichever lengths they hit are tried
    again.
    """
    for seed in range(4):
        hits = torch.rand(30, generator=torch.Generator().manual_seed(seed)) < 0.5
        assert (
            take_lengths(
                0.02, lambda step, hits=hits: 50 if hits[step : step + 1].any() else 1, 3000
            )[1]
            == 8
        )


def test_a_policy_that_has_nothing_to_judge_by_is_reported():
    """Drafts without probabilities, and a method that keeps its lengths; not one that never
    drafts.
    """
    chain, concurrent = (
        Draft([1, 2, 3], range(-1, 2)),
        SimpleNamespace(needs=Needs(concurrent=True), by_node=False),
    )
    policies = {
        "blind": (AdaEdl(), METHOD, chain),
        "sure": (Confidence(0.5), METHOD, Draft(chain.tokens, chain.parents, score=[0.9] * 3)),
        "counts": (Bandit(), METHOD, chain),
        "concurrent": (Bandit(), concurrent, chain),
        "vanilla": (AdaEdl(), METHOD, Draft()),
    }
    budgets = {name: LengthBudget(policy) for name, (policy, _, _) in policies.items()}
    for name, (_, method, draft) in policies.items():
        budgets[name].trim([method], [draft], [9])
    found = describe_idle({**budgets, "peer": LengthBudget(AdaEdl()), "fixed": None}, ["peer"])
    assert [line.split(":")[0] for line in found] == ["blind", "concurrent", "peer"]


@pytest.mark.parametrize(
    ("rate", "drafting_s", "longest"), [(0.9, 0.0, True), (0.9, 0.02, False), (0.01, 0.0, False)]
)
def test_a_price_stops_where_a_node_costs_more_than_it_brings(rate, drafting_s, longest):
    """Rows cost a tenth of a forward; with drafting at two forwards a level, or 1 % accepted,
    nothing pays.
    """
    policy, random, depths = Price(Flat()), torch.Generator().manual_seed(0), []
    for _ in range(400):
        drafts = policy.start()
        depth = 0
        while (
            depth < 8 and drafts and (not depth or policy.goes_on(DraftLevel(depth, rate**depth)))
        ):
            depth += 1
        depths.append(depth)
        accepted = int((torch.rand(depth, generator=random) < rate).int().cumprod(0).sum())
        policy.observe([(depth, accepted)], 1 + accepted, 1 + depth, drafting_s * depth, 0.0)
    own = [depth for place, depth in enumerate(depths) if place % Price.AGAIN][-200:]
    assert (min(own) >= 3) if longest else (max(own) == 0)


def test_a_policy_acts_within_other_budgets_and_only_where_lengths_are_its_own():
    budget = LengthBudget(Confidence(0.5), EqualBudget(4))
    methods = [METHOD, METHOD]
    assert budget.share(methods, 64) == [2, 2]
    chain = Draft([1, 2, 3], range(-1, 2), score=[0.9, 0.4, 0.9])
    tree = Draft([1, 2, 3, 4], [-1, 0, -1, 2], score=[0.3, 0.9, 0.4, 0.9])
    kept = budget.trim(methods, [chain, tree], [2, 1])
    assert [(list(draft.tokens), nodes) for draft, nodes in kept] == [([1, 2], [0, 1]), ([3], [2])]
    reads = SimpleNamespace(needs=Needs(hidden=(1,)), by_node=False)
    # rows would change their numbers
    assert len(LengthBudget(Confidence(0.5)).trim([reads], [tree], [9])[0][0]) == 4
    concurrent = SimpleNamespace(needs=Needs(concurrent=True), by_node=False)
    bandit = LengthBudget(Bandit())
    bandit._policy._taken.update(dict.fromkeys(Bandit.ARMS[1:], 1))
    bandit._policy._first = False
    assert bandit.share([METHOD, concurrent], 9) == [0, 9]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("long", 0.3), r"decode.length=long: .*fixed, adaedl"),
        (("confidence", 1.0), r"decode.length_threshold=1.0: .*below 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        make_limit(*given)
    inner = EqualBudget(3)
    assert make_limit("fixed", 0.3)(inner, None) is inner  # a fixed length is no policy
