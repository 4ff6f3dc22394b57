"""A server on a simulated clock, run by the schedule of an engine: answers are known, forwards have
a known time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.serving.scheduler import Served, Stretch, serve

SERVICE_S = 0.01


@dataclass(frozen=True)
class Answer:
    """The prompt's tokens, and of each step the tokens that it emits."""

    prompt: int
    accept: tuple[int, ...] = ()


SHORT = [Answer(1)]  # a prompt, one token: one forward


@dataclass
class Asked:
    """A request that is served."""

    answer: Answer
    unread: int
    steps: int = 0
    done: bool = False


class SimulatedServer:
    """A ``specbench.serving.scheduler.Server`` of ``Answer``s. forward_s: [s] of a forward of so
    many rows.
    """

    def __init__(self, forward_s: Callable[[int], float]) -> None:
        self._forward_s, self._now_s = forward_s, 0.0

    def now(self) -> float:
        return self._now_s

    def wait(self, until_s: float) -> None:
        self._now_s = max(self._now_s, until_s)

    def admit(self, question: Answer) -> Asked:
        return Asked(question, question.prompt)

    def read(self, admitted: Asked, tokens: int) -> float | None:
        self._now_s += self._forward_s(tokens)
        admitted.unread -= tokens
        admitted.done = not (admitted.unread or admitted.answer.accept)
        return None if admitted.unread else self._now_s

    def step(self, requests: Sequence[Asked]) -> tuple[int, int, bool]:
        self._now_s += self._forward_s(len(requests))
        emitted = 0
        for admitted in requests:
            emitted += admitted.answer.accept[admitted.steps]
            admitted.steps += 1
            admitted.done = admitted.steps == len(admitted.answer.accept)
        return len(requests), emitted, any(admitted.done for admitted in requests)

    def leave(self, admitted: Asked) -> None:
        """Its user asks nothing more."""


def simulate(
    answers: Sequence[Answer],
    stretch: Stretch,
    arrivals: Iterator[float] | None = None,
    forward_s: Callable[[int], float] = lambda rows: SERVICE_S,
) -> Served:
    """A stretch whose requests have these answers in turn."""
    return serve(SimulatedServer(forward_s), itertools.cycle(answers), arrivals, stretch)


def waits_of(served: Served) -> np.ndarray:
    """[s] of the measured requests, from the arrival until the prompt begins to be read."""
    return np.array([visit.begin_s - visit.arrival_s for visit in served.measured()])


def _waits_at_most(limit_s: float, rate: float) -> float:
    """M/D/1: P(W <= t) = (1 - rho) sum over k <= t / D of e^u (-u)^k / k!, u = rate (t - k D).
    Erlang (1909).
    """
    steps = (rate * (limit_s - k * SERVICE_S) for k in range(int(limit_s / SERVICE_S + 1e-9) + 1))
    terms = (math.exp(u) * (-u) ** k / math.factorial(k) for k, u in enumerate(steps))
    return (1 - rate * SERVICE_S) * sum(terms)


def largest_rate(ttft_s: float, share: float) -> float:
    """The rate at which this share has its first token within the limit, the wait and one service,
    in M/D/1.
    """
    low, high = 1e-3, 1 / SERVICE_S
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _waits_at_most(ttft_s - SERVICE_S, middle) >= share else (low, middle)
        )
    return low
