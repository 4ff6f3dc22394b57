"""A server whose time is a latency profile's and whose answers are recorded: minutes of load in seconds.

A forward over requests that feed ``f_i`` tokens behind ``c_i`` tokens of context takes what ``Profile.shared_ms`` says;
reading ``n`` tokens of a prompt takes the profile's forward of ``n`` tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.load.scheduler import NEVER, Served, Stretch, serve
from specbench.profile import Profile
from specbench.record import CaseRecord


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """A recorded turn. prompt: [tokens]. accept, fed: (steps,) tokens emitted and rows fed. own_s: drafting, a step."""

    prompt: int
    accept: Sequence[int]
    fed: Sequence[int]
    own_s: float = 0.0


def recorded_answers(records: Sequence[CaseRecord], drafting: bool = False) -> list[SimulatedAnswer]:
    """The turns of a method's records. drafting: with the mean time of its drafter a step, as it was recorded."""
    return [
        SimulatedAnswer(
            turn.prompt_tokens,
            turn.accept,
            turn.fed,
            sum(turn.phases_s.get(phase, 0.0) for phase in ("draft", "update")) / max(1, len(turn.accept))
            if drafting
            else 0.0,
        )
        for record in records
        for turn in record.turns
        if record.status == "ok"
    ]


@dataclass(slots=True)
class SimulatedGuest:
    """A request inside of the simulation. at: its next step. context: [tokens] in its cache."""

    answer: SimulatedAnswer
    unread: int
    context: int = 0
    at: int = 0
    emitted: int = 0
    done: bool = False


class SimulatedServer:
    """See ``specbench.load.scheduler.Server``; its questions are ``SimulatedAnswer``s.

    parallel: drafters run at once; else one after the other, as they do in one process.
    """

    def __init__(self, profile: Profile, parallel: bool = False) -> None:
        self._profile, self._parallel = profile, parallel
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def wait(self, until_s: float) -> None:
        if until_s == NEVER:
            raise RuntimeError("nothing is left to serve and nothing arrives any more")
        self._now_s = max(self._now_s, until_s)

    def admit(self, question: SimulatedAnswer) -> SimulatedGuest:
        return SimulatedGuest(question, question.prompt)

    def read(self, seat: SimulatedGuest, tokens: int) -> float | None:
        self._now_s += 1e-3 * float(self._profile.step_ms(tokens, seat.context))
        seat.unread -= tokens
        seat.context += tokens
        if seat.unread:
            return None
        seat.emitted, seat.done = 1, not len(seat.answer.accept)
        return self._now_s

    def step(self, seats: Sequence[SimulatedGuest]) -> int:
        rows = context = 0
        own: list[float] = []
        for seat in seats:
            answer, at = seat.answer, seat.at
            rows += answer.fed[at]
            context += seat.context
            own.append(answer.own_s)
            seat.emitted = answer.accept[at]
            seat.context += seat.emitted
            seat.at = at + 1
            seat.done = seat.at == len(answer.accept)
        self._now_s += 1e-3 * float(self._profile.shared_ms(rows, context / len(seats), len(seats)))
        self._now_s += max(own) if self._parallel else sum(own)
        return rows

    def leave(self, seat: SimulatedGuest) -> None:
        return None


def simulate(
    profile: Profile,
    answers: Sequence[SimulatedAnswer],
    stretch: Stretch,
    arrivals: Iterator[float] | None = None,
    seed: int = 0,
    parallel: bool = False,
) -> Served:
    """A stretch of requests drawn from ``answers`` with replacement, so that any number can be served."""
    order = np.random.default_rng(seed).integers(0, len(answers), stretch.ramp + stretch.measured)
    drawn = (answers[place] for place in itertools.cycle(order))
    return serve(SimulatedServer(profile, parallel), drawn, arrivals, stretch)
