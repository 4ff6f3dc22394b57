"""The lossless check finds each planted fault in a small model, and nothing in a sound engine."""

from __future__ import annotations

import pytest

from builders.engines import decode_script, scripts
from builders.models import VOCAB, build, plain_greedy
from scripts.lab.judge import (
    FAULTS,
    AnyToken,
    Fault,
    LateToken,
    SecondBest,
    ShiftedSlot,
    StaleMask,
)
from specbench.decode.walk import Walk
from specbench.measure.lossless import TOLERANCE
from specbench.models.engine import Silent
from specbench.models.fast.engine import FastEngine
from specbench.types import Draft, Needs

PROMPT, COUNT = list(range(20, 50)), 60


@pytest.fixture(scope="module")
def target():
    """A model in float32, and what it emits."""
    model = build("llama")
    return model, plain_greedy(model, PROMPT, COUNT + 8)


def engine_of(model, plant: type[Fault]) -> tuple[FastEngine, Fault]:
    engine = FastEngine(model, 512, frozenset(), 64)
    return engine, plant(engine)


def worst_gap(target, plant: type[Fault], script) -> tuple[float, int]:
    """The judge's largest gap for one answer, and the strikes of the fault."""
    engine, fault = engine_of(target[0], plant)
    ids = decode_script(engine, script, PROMPT, COUNT).ids
    return max(engine.gaps(PROMPT, ids)), fault.strikes


def shuffled(truth: list[int]):
    """Trees of one size: the right path and a wrong one, their nodes in another order each time."""

    def script(context, done, rng):
        good, wrong = truth[done : done + 5], [rng.randrange(VOCAB) for _ in range(5)]
        lines, tokens, parents, last = [list(good), wrong], [], [], [-1, -1]
        while any(lines):
            line = rng.choice([number for number in (0, 1) if lines[number]])
            tokens.append(lines[line].pop(0))
            parents.append(last[line])
            last[line] = len(tokens) - 1
        return Draft(tokens, parents)

    return script


@pytest.mark.parametrize("plant", [Fault, SecondBest, AnyToken, ShiftedSlot, StaleMask])
def test_a_fault_is_found_and_a_sound_engine_is_not_blamed(target, plant):
    worst, strikes = worst_gap(target, plant, shuffled(target[1]))
    assert (strikes > 0) == (worst > TOLERANCE["float32"]) == (plant is not Fault)


def test_vanilla_next_to_a_fault_stays_sound(target):
    for _, plant in FAULTS.values():
        worst, strikes = worst_gap(target, plant, scripts(target[1])["empty"])
        assert strikes == 0, plant
        assert worst <= TOLERANCE["float32"], plant


def test_a_late_token_that_is_not_verified(target):
    model, truth = target
    for plant, expected in ((Fault, truth[2]), (LateToken, (truth[2] + 1) % VOCAB)):
        engine, fault = engine_of(model, plant)
        engine.reserve(100)
        engine.start(PROMPT, 20, Walk(None, 0), Needs(), Silent())
        engine.forward(Draft.chain([truth[1]]))
        step = engine.settle(8, Draft.chain([(truth[2] + 1) % VOCAB, 5]))
        assert step.emitted == (truth[1], expected)
        assert (fault.strikes, step.late) == ((0, 0) if plant is Fault else (1, 1))
