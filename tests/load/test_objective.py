"""The most requests under an objective: against queueing theory, and what is refused."""

from __future__ import annotations

import math
from functools import partial

import pytest

from builders.profiles import FIT
from specbench.input import InputError
from specbench.profile import Fit, Profile
from specbench.serving.objective import MOST_REQUESTS, Objective, Search
from specbench.serving.scheduler import NEVER, Served, Stretch, Visit
from specbench.serving.settings import draw_arrivals
from specbench.serving.simulate import SimulatedAnswer, simulate

SERVICE_S = 0.01
ONE = Profile("H", "big", "served", "bfloat16", "published", Fit(1e3 * SERVICE_S, 0.0, 0.0, 0.0), "2026")
POISSON, CONSTANT = partial(draw_arrivals, "poisson"), partial(draw_arrivals, "constant")
SHORT = [SimulatedAnswer(1, (), ())]  # a prompt, one token: one service


def waits_at_most(limit_s: float, rate: float) -> float:
    """M/D/1: P(W <= t) = (1 - rho) sum over k <= t / D of e^u (-u)^k / k!, u = rate (t - k D). Erlang (1909)."""
    steps = (rate * (limit_s - k * SERVICE_S) for k in range(int(limit_s / SERVICE_S + 1e-9) + 1))
    terms = (math.exp(u) * (-u) ** k / math.factorial(k) for k, u in enumerate(steps))
    return (1 - rate * SERVICE_S) * sum(terms)


def largest_rate(ttft_s: float, share: float, served_s: float = SERVICE_S) -> float:
    """The rate at which this share of the requests has its first token within the limit: the wait and one service."""
    low, high = 1e-3, 1 / SERVICE_S
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if waits_at_most(ttft_s - served_s, middle) >= share else (low, middle)
    return low


@pytest.mark.parametrize(("ttft_s", "share"), [pytest.param(0.035, 0.9, marks=pytest.mark.exhaustive), (0.055, 0.95)])
def test_the_boundary_is_that_of_a_queue_with_one_server_and_fixed_service(ttft_s, share):
    """M/D/1 lies between the largest rate that holds and the smallest that fails; without the service it does not."""
    search = Search(ONE, SHORT, Objective(ttft=ttft_s, share=share), POISSON, places=1, count=400)
    found, expected = search.boundary(), largest_rate(ttft_s, share)
    assert found.holds <= expected <= found.fails
    assert found.fails / found.holds < 1.25
    assert not found.holds <= largest_rate(ttft_s, share, served_s=0.0) <= found.fails
    assert len(search.tried) < 25  # the second search takes the verdicts of the first


@pytest.mark.parametrize(
    ("limits", "constant"),
    [({"ttft": 1.0}, False), ({"ttft": 3.0}, False), ({"tpot": 1.0}, False), ({"ttft": 3.0}, True)],
)
def test_no_rate_from_the_capacity_on_holds(limits, constant):
    """The limits are longer than any wait of 220 requests: without the capacity 173 a second and 524,288 hold."""
    arrivals = CONSTANT if constant else POISSON
    search = Search(ONE, SHORT, Objective(**limits), arrivals, places=1)
    found = search.boundary()
    assert search.capacity == pytest.approx(1 / SERVICE_S)
    assert 0.95 * search.capacity < found.holds < search.capacity <= found.fails == found.saturated
    assert found.fails < 1.05 * search.capacity
    search._verdicts.clear()
    search.capacity = NEVER
    assert search.verdict(1.5 / SERVICE_S) > 0  # what a stretch alone shows


def test_the_capacity_of_many_places_is_that_of_the_closed_loop():
    """FIT's answers of several lengths: the mean of the ends a second, from which the ramp and the tail are cut."""
    answers = [SimulatedAnswer(4, (1,) * steps, (1,) * steps) for steps in (5, 20, 60)]
    search = Search(FIT, answers, Objective(ttft=100.0), POISSON, places=8)
    visits = simulate(FIT, answers, Stretch(8, 16, 4000, 256), seed=1).visits
    ends = sorted(visit.end_s for visit in visits if visit.end_s < NEVER)[16:]
    assert search.capacity == pytest.approx((len(ends) - 1) / (ends[-1] - ends[0]), rel=0.05)
    assert search.verdict(search.capacity) == search.verdict(2 * search.capacity) == -1


@pytest.mark.exhaustive
def test_constant_arrivals_wait_only_from_the_service_rate_on():
    """D/D/1: no wait below 100 a second. Gamma arrivals of shape 100 are nearly constant, of shape 1 Poisson's."""
    limit, capacity = Objective(ttft=0.0125, share=0.9), 1 / SERVICE_S

    def holds(arrivals) -> float:
        return Search(ONE, SHORT, limit, arrivals, places=1).boundary().holds

    constant = holds(CONSTANT)
    assert 0.96 * capacity < constant <= capacity * 1.001
    bursts = [holds(partial(draw_arrivals, "gamma", shape=shape)) for shape in (0.25, 1, 100)]
    assert bursts == sorted(bursts)
    assert bursts[2] < constant
    assert bursts[1] == pytest.approx(holds(POISSON), rel=0.15)


def test_a_queue_that_only_grows_is_given_up():
    """At twice the capacity the wait grows by half of each gap: 20 limits are reached long before the last arrival."""
    stretch = Stretch(1, 0, 100_000, patience_s=20 * 0.05)
    served = simulate(ONE, SHORT, stretch, POISSON(200, 0))
    assert served.given_up
    assert len(served.visits) < 1000
    assert not simulate(ONE, SHORT, Stretch(1, 0, 2000, patience_s=1.0), POISSON(50, 0)).given_up
    found = Search(ONE, SHORT, Objective(ttft=0.05, share=0.9), POISSON, places=1, count=50).boundary()
    assert found.saturated > found.holds


def test_the_most_requests_of_a_closed_loop():
    """A step of B takes 6 + 0.02 B ms, and in 20 steps the B prompts are read, 6 ms each: 10 ms a token at 12.5."""
    linear = Profile("H", "b", "e", "d", "published", Fit(5.0, 20.0, 0.0, 1.0), "2026")
    answers = [SimulatedAnswer(1, (1,) * 20, (1,) * 20)]
    search = Search(linear, answers, Objective(tpot=0.010), count=60, chunk=0)
    found = search.boundary()
    assert 11 <= found.holds <= 14
    assert found.fails == found.holds + 1
    assert found.saturated == NEVER
    assert Search(linear, answers, Objective(tpot=0.005), count=50).boundary().holds == 0
    never = Search(linear, answers, Objective(tpot=100.0), count=8)
    never._decide = lambda load: 1
    assert (never.boundary().holds, never.boundary().fails) == (MOST_REQUESTS, NEVER)


@pytest.mark.exhaustive
def test_speculation_moves_the_boundary():
    """Two tokens a step at the cost of one: about twice the requests, and never at a burst longer than the limit."""
    plain, fast = [SimulatedAnswer(4, (1,) * 20, (1,) * 20)], [SimulatedAnswer(4, (2,) * 10, (2,) * 10)]
    rates = [
        Search(FIT, answers, Objective(ttft=0.5, tpot=0.03), POISSON, places=4, count=40).boundary().holds
        for answers in (plain, fast)
    ]
    assert 1.4 < rates[1] / rates[0] < 2.5
    assert Search(FIT, fast, Objective(itl=0.001), POISSON, places=4, count=60).boundary().holds == 0


def test_a_request_is_within_all_limits_or_not():
    served = Served(ends_s=[1.0, 1.1, 1.5])
    visit = Visit(SimulatedAnswer(1, (2, 2, 1), (1, 1, 1)), True, 0.0, None, 0.1, 0.9, 1.5, range(3))
    served.visits = [visit]
    for limits, kept in (
        ({"ttft": 0.9}, 1), ({"ttft": 0.89}, 0), ({"tpot": 0.13}, 1), ({"tpot": 0.11}, 0),
        ({"itl": 0.41}, 1), ({"itl": 0.39}, 0), ({"ttft": 1.0, "itl": 0.1}, 0),
    ):  # fmt: skip
        assert Objective(**limits).kept(served, 1) == kept
    visit.end_s = NEVER
    assert Objective(ttft=1.0).kept(served, 1) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing: once each"),
        ("ttft", "ttft=: expected a number of seconds above 0"),
        ("ttft=x", "ttft=x: expected a number of seconds"),
        ("ttft=nan", "ttft=nan: expected a number of seconds"),
        ("ttft=inf", "ttft=inf: expected a number of seconds"),
        ("ttft=-1", "ttft=-1: expected a number of seconds"),
        ("ttft=0", "ttft=0: expected a number of seconds"),
        ("ttft=1,ttft=2", "ttft: once each"),
        ("ttft_ms=500", "ttft_ms: once each, did you mean ttft"),
        ("x" * 10_000, "once each"),
    ],
)
def test_objectives_that_are_none(text, message):
    with pytest.raises(InputError, match=message) as caught:
        Objective.parse(text, 0.99)
    assert len(str(caught.value)) < 400


def test_the_largest_share_is_what_a_load_can_show():
    """A load whose requests are all within the limits holds at the largest share."""
    search = Search(ONE, SHORT, Objective.parse("ttft=1", 1 - 3 / (200 * 64)), POISSON, places=1)
    assert search.verdict(10.0) == 1
    assert Search(ONE, SHORT, Objective(ttft=1.0, share=0.9998), POISSON, places=1).verdict(10.0) == 0
    with pytest.raises(InputError, match=r"--share 0\.9998: .* from 0\.5 to 0\.999765625"):
        Objective.parse("ttft=1", 0.9998)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan"), 99.0])
def test_shares_that_are_none(share):
    with pytest.raises(InputError, match="expected a share of requests"):
        Objective.parse("ttft=1", share)
