"""A server whose time is a latency profile's and whose answers are recorded: minutes of load in seconds.

A forward over requests that feed ``f_i`` tokens after ``c_i`` tokens of context takes ``Profile.shared_ms``;
reading ``n`` tokens of a prompt takes the profile's forward of ``n`` tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from specbench.profile import Profile
from specbench.records.record import DRAFTER_PHASES, CaseRecord
from specbench.serving.scheduler import NEVER, Served, Stretch, serve


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """A recorded turn. accept, fed: (steps,) tokens emitted and rows fed."""

    prompt: int  # [tokens]
    accept: Sequence[int]
    fed: Sequence[int]
    own_s: float = 0.0  # drafting, a step


def recorded_answers(records: Sequence[CaseRecord], drafting: bool = False) -> list[SimulatedAnswer]:
    """The turns of a method's records. drafting: with the recorded mean time of its drafter per step."""
    return [
        SimulatedAnswer(
            turn.prompt_tokens,
            turn.accept,
            turn.fed,
            sum(turn.phases_s.get(phase, 0.0) for phase in DRAFTER_PHASES) / max(1, len(turn.accept))
            if drafting
            else 0.0,
        )
        for record in records
        for turn in record.turns
        if record.status == "ok"
    ]


@dataclass(slots=True)
class SimulatedRequest:
    """A request inside the simulation."""

    answer: SimulatedAnswer
    unread: int
    context: int = 0  # [tokens] in its cache
    at: int = 0  # its next step
    done: bool = False


class SimulatedServer:
    """A ``specbench.serving.scheduler.Server`` on a simulated clock; its questions are ``SimulatedAnswer``s.

    halves: the requests are fed as two forwards in turn, and while the rows of one half are verified the other half
    drafts; else all draft, one after the other, and one forward verifies them.
    """

    def __init__(self, profile: Profile, halves: bool = False) -> None:
        self._profile, self._halves = profile, halves
        self._step_ms = cache(profile.step_ms)  # chunks of prompts repeat
        self._now_s = 0.0

    def now(self) -> float:
        """[s] since the start."""
        return self._now_s

    def wait(self, until_s: float) -> None:
        """Let time pass until then."""
        if until_s == NEVER:
            raise RuntimeError("nothing is left to serve and nothing arrives any more")
        self._now_s = max(self._now_s, until_s)

    def admit(self, question: SimulatedAnswer) -> SimulatedRequest:
        """Take a request in."""
        return SimulatedRequest(question, question.prompt)

    def read(self, admitted: SimulatedRequest, tokens: int) -> float | None:
        """Read this many tokens of a prompt."""
        self._now_s += 1e-3 * float(self._step_ms(tokens, admitted.context))
        admitted.unread -= tokens
        admitted.context += tokens
        if admitted.unread:
            return None
        admitted.done = not len(admitted.answer.accept)
        return self._now_s

    def step(self, requests: Sequence[SimulatedRequest]) -> tuple[int, int, bool]:
        """Run one forward for all, or one per half."""
        count = len(requests) // 2 if self._halves else 0
        emitted = sum(admitted.answer.accept[admitted.at] for admitted in requests)
        forward_s, drafting_s, rows = zip(*map(self._advance, (requests[:count], requests[count:])), strict=True)
        self._now_s += max(forward_s[0], drafting_s[1]) + max(forward_s[1], drafting_s[0])
        return sum(rows), emitted, any(admitted.done for admitted in requests)

    def _advance(self, requests: Sequence[SimulatedRequest]) -> tuple[float, float, int]:
        """A step of each: [s] of their forward and of their drafting, and the rows fed."""
        if not requests:
            return 0.0, 0.0, 0
        rows = context = 0
        drafting_s = 0.0
        for admitted in requests:
            answer, at = admitted.answer, admitted.at
            rows += answer.fed[at]
            context += admitted.context
            drafting_s += answer.own_s
            admitted.context += answer.accept[at]
            admitted.at = at + 1
            admitted.done = admitted.at == len(answer.accept)
        return 1e-3 * float(self._profile.shared_ms(rows, context / len(requests), len(requests))), drafting_s, rows

    def leave(self, admitted: SimulatedRequest) -> None:
        """End a request; its user asks nothing more."""


def simulate(
    profile: Profile,
    answers: Sequence[SimulatedAnswer],
    stretch: Stretch,
    arrivals: Iterator[float] | None = None,
    seed: int = 0,
    halves: bool = False,
) -> Served:
    """A stretch of requests drawn from ``answers`` with replacement, so that any number can be served.

    halves: see ``SimulatedServer``.
    """
    order = np.random.default_rng(seed).integers(0, len(answers), stretch.ramp + stretch.measured)
    drawn = (answers[place] for place in itertools.cycle(order))
    return serve(SimulatedServer(profile, halves), drawn, arrivals, stretch)


def read_figures(served: Served) -> dict[str, float]:
    """Read figures of the measured part: tokens/s of server and user, waits for first tokens, requests per forward."""
    about, visits = served.summary(), served.measured()
    first = 1e3 * np.array([visit.first_s - visit.arrival_s for visit in visits])
    decoding = sum(visit.end_s - visit.first_s for visit in visits)
    tokens = sum(sum(visit.question.accept) for visit in visits)
    return {
        "tokens_per_s": about["tokens"] / about["seconds"],
        "user_tokens_per_s": tokens / decoding,
        "ttft_p50_ms": float(np.percentile(first, 50)),
        "ttft_p99_ms": float(np.percentile(first, 99)),
        "mean_requests": about["requests"] / max(1, about["forwards"]),
    }
