"""The largest load of a simulated server at which a latency objective holds.

An objective limits a request's times; a load keeps it if at least a share of the requests is within the limits.
Requests of one stretch slow each other, so the unit of the statistics is the stretch: stretches with other arrivals and
requests run until the interval of the mean share is on one side of the required one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specbench.input import InputError
from specbench.names import near
from specbench.profile import Profile
from specbench.serving.scheduler import NEVER, Served, Stretch, Visit
from specbench.serving.simulate import SimulatedAnswer, simulate

# Stretches of a load after which it is decided, if it can be: one-sided quantiles of Student's t at 1.25 %, so that all
# four looks together are wrong with at most 5 %.
LOOKS = {8: 2.841, 16: 2.49, 32: 2.356, 64: 2.296}
PATIENCE = 20  # times the limit of the first token that an arrival may wait before its stretch is given up
NARROW = 1.02  # neighbouring rates between which no other one is tried
MOST_REQUESTS = 4096
COUNT = 200  # measured requests of a stretch
MOST_SHARE = 1 - 3 / (COUNT * max(LOOKS))  # a larger one is not certain even if every request is within the limits
LIMITS = ("ttft", "tpot", "itl")


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits [s] of a request: to its first token, the mean of a later token, and the longest time between two bursts.

    share: of the requests, that are within the limits. NEVER = no limit. A request that does not end is not within.
    """

    ttft: float = NEVER
    tpot: float = NEVER
    itl: float = NEVER
    share: float = 0.99

    @classmethod
    def parse(cls, text: str, share: float) -> Objective:
        """'ttft=0.5,tpot=0.05', in seconds. Raises InputError."""
        fix = "such as ttft=0.5,tpot=0.05"
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in LIMITS or name in limits:
                raise InputError(f"--slo {text[:80]}: {name[:20] or 'nothing'}: once each, {near(name, LIMITS)}, {fix}")
            try:
                limits[name] = float(value)
            except ValueError:
                limits[name] = float("nan")
            if not 0 < limits[name] < NEVER:
                raise InputError(f"--slo {name}={value[:20]}: expected a number of seconds above 0, {fix}")
        if not 0.5 <= share <= MOST_SHARE:
            raise InputError(
                f"--share {share:.9g}: expected a share of requests from 0.5 to {MOST_SHARE:.9g}, such as 0.99; the"
                f" {COUNT * max(LOOKS)} requests of a load cannot show a larger one"
            )
        return cls(**limits, share=share)

    def kept(self, served: Served, count: int) -> float:
        """The share of the requests that are within the limits. count: measured ones, admitted or not."""
        return sum(self._keeps(served, visit) for visit in served.measured()) / count

    def _keeps(self, served: Served, visit: Visit) -> bool:
        first, end = visit.first_s, visit.end_s
        if end == NEVER or first - visit.arrival_s > self.ttft:
            return False
        times = [first, *(served.ends_s[place] for place in visit.forwards)]
        tokens = sum(visit.question.accept)
        gap = max((after - before for before, after in itertools.pairwise(times)), default=0.0)
        return gap <= self.itl and (not tokens or (end - first) / tokens <= self.tpot)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The loads around the one at which an objective ends to hold.

    holds: the largest at which it holds with 95 % confidence, 0 = none. fails: the smallest at which it does not, with
    95 % confidence; NEVER = none that was tried. saturated: the smallest at which the queue only grows: at least
    ``Search.capacity`` arrive, or an arrival waited for more than ``PATIENCE`` limits of the first token.
    """

    holds: float
    fails: float
    saturated: float


@dataclass
class Search:
    """A search for the boundary of one method. Every load is simulated once, whatever asks for it.

    arrivals: (rate, seed) -> [s] times; None = a closed loop, whose load is the number of requests in flight.
    places: concurrent requests of an open loop. count: measured requests of a stretch.
    """

    profile: Profile
    answers: Sequence[SimulatedAnswer]
    objective: Objective
    arrivals: Callable[[float, int], Iterator[float]] | None = None
    places: int = 32
    count: int = COUNT
    chunk: int = 256
    _verdicts: dict[float, int] = field(default_factory=dict)
    _saturated: set[float] = field(default_factory=set)

    @property
    def tried(self) -> list[float]:
        """The loads that were simulated, ascending."""
        return sorted(self._verdicts)

    def boundary(self) -> Boundary:
        """The boundary by doubling from the smallest load, then by bisection."""
        least = 1.0 if self.arrivals is None else self._slowest()
        holds = self._largest(least, lambda verdict: verdict > 0)
        fails = self._largest(max(least, holds), lambda verdict: verdict >= 0)
        above = [load for load in self.tried if load > fails and self._verdicts[load] < 0]
        return Boundary(holds, min(above, default=NEVER), min(self._saturated, default=NEVER))

    def _slowest(self) -> float:
        """[requests/s] at which hardly a request meets another: one in fifty services of a request alone."""
        served = simulate(self.profile, self.answers, Stretch(1, 0, 20, self.chunk))
        return 20 / (50 * max(served.window()[1], 1e-9))

    @cached_property
    def capacity(self) -> float:
        """[requests/s] of a closed loop with all places taken, by Little's law: places over the mean stay."""
        stretch = Stretch(self.places, 2 * self.places, min(LOOKS) * self.count, self.chunk)
        visits = simulate(self.profile, self.answers, stretch).measured()
        return self.places / max(float(np.mean([visit.end_s - visit.arrival_s for visit in visits])), 1e-9)

    def _largest(self, load: float, passes: Callable[[int], bool]) -> float:
        """The largest load that passes, from one that is small enough if any is; 0 if that one does not pass."""
        most = MOST_REQUESTS if self.arrivals is None else NEVER  # no rate from the capacity on passes
        if not passes(self.verdict(load)):
            return 0.0
        high = load
        while passes(self.verdict(high)):
            load, high = high, high * 2
            if high > most:
                return load
        while high - load > 1 if self.arrivals is None else high / load > NARROW:
            middle = float((load + high) // 2) if self.arrivals is None else math.sqrt(load * high)
            load, high = (middle, high) if passes(self.verdict(middle)) else (load, middle)
        return load

    def verdict(self, load: float) -> int:
        """1 if the objective holds at this load with 95 % confidence, -1 if it fails, 0 if neither is known."""
        if load not in self._verdicts:
            self._verdicts[load] = self._decide(load)
        return self._verdicts[load]

    def _decide(self, load: float) -> int:
        # A stretch begins without a queue, and its requests are too few for one to grow beyond a long limit.
        if self.arrivals is not None and load >= self.capacity:
            self._saturated.add(load)
            return -1
        shares: list[float] = []
        while len(shares) < max(LOOKS):
            served = self._serve(load, len(shares))
            if served.given_up:
                self._saturated.add(load)
            shares.append(self.objective.kept(served, self.count))
            if len(shares) not in LOOKS:
                continue
            mean, deviation = float(np.mean(shares)), float(np.std(shares, ddof=1))
            # A share of 1 in every stretch has no deviation: by the rule of three it may still be so much less.
            least = 3 / (self.count * len(shares))
            spread = max(LOOKS[len(shares)] * deviation / math.sqrt(len(shares)), least)
            if mean - spread >= self.objective.share:
                return 1
            if mean + spread < self.objective.share:
                return -1
        return 0

    def _serve(self, load: float, seed: int) -> Served:
        closed = self.arrivals is None
        places = int(load) if closed else self.places
        patience_s = NEVER if closed else PATIENCE * self.objective.ttft
        stretch = Stretch(places, 2 * places + self.count // 10, self.count, self.chunk, patience_s)
        arrivals = self.arrivals(load, seed) if self.arrivals else None
        return simulate(self.profile, self.answers, stretch, arrivals, seed)
