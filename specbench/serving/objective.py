"""The largest load at which a latency objective holds, by the records of a server.

An objective limits a request's times; a load keeps it if at least a share of the requests is within
the limits. Requests of one stretch slow each other, so the unit of the statistics is the stretch:
stretches with other arrivals and requests run until the interval of the mean share is on one side
of the required one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.input import InputError
from specbench.records.record import CaseRecord, LoadKind, TurnRecord
from specbench.serving.scheduler import NEVER, QueueGrew

# Stretches of a load after which it is decided, if it can be: one-sided quantiles of Student's t at
# 1.25 %, so that all four looks together are wrong with at most 5 %.
LOOKS = {8: 2.841, 16: 2.49, 32: 2.356, 64: 2.296}
LIMITS = ("ttft", "tpot", "itl")
UNTRIED = -2  # the sign of a load that cannot be tried, nor can a larger one


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits [s] of a request: to its first token, the mean of a later token, and the longest time
    between two bursts.

    share: of the requests, that are within them. NEVER = no limit. A request that does not end is
    not within.
    """

    ttft: float = NEVER
    tpot: float = NEVER
    itl: float = NEVER
    share: float = 0.99

    @classmethod
    def of(cls, slo: Mapping[str, float | None]) -> Objective:
        """The objective of the settings ``load.slo``, whose limits are in milliseconds."""
        limits = {name: 1e-3 * ms for name in LIMITS if (ms := slo.get(f"{name}_ms")) is not None}
        return cls(**limits, share=slo.get("share") or cls().share)

    def require_share(self, requests: int) -> None:
        """Raise InputError for a share that the requests of a load cannot show."""
        most = 1 - 3 / requests  # all of them are within the limits, by the rule of three
        if not 0.5 <= self.share <= most:
            raise InputError(
                f"load.slo.share={self.share:.9g}: expected a share of requests from 0.5 to"
                f" {most:.9g}, as the {requests} requests of a load cannot show a larger one; a"
                " lower share, or a larger load.block or suite"
            )

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return min(self.ttft, self.tpot, self.itl) < NEVER

    def spell(self) -> str:
        """'ttft <= 0.5 s, itl <= 0.05 s for 0.99 of them'."""
        limits = ", ".join(
            f"{name} <= {limit:g} s" for name in LIMITS if (limit := getattr(self, name)) < NEVER
        )
        return f"{limits} for {self.share:.4g} of them"

    def describe(self, kind: str, places: int) -> str:
        """What is searched under a kind of load. places: concurrent requests of an open loop."""
        rate = f"requests a second, {kind}, at most {places} concurrently"
        return (
            f"the most {'concurrent requests' if kind == LoadKind.CLOSED else rate}, with"
            f" {self.spell()}"
        )

    def allows(self, first_s: float, token_s: float, gap_s: float) -> bool:
        """Whether a request with these times is within the limits."""
        return first_s <= self.ttft and token_s <= self.tpot and gap_s <= self.itl

    def keeps(self, turn: TurnRecord) -> bool:
        """Whether a recorded request is within the limits."""
        load, tokens = turn.load, sum(turn.accept)
        first_s = turn.prefill_s + (load["queue_s"] if load else 0.0)
        gap_s = max(turn.step_s, default=load.get("burst_s", 0.0) if load else 0.0)
        return self.allows(first_s, turn.decode_s / tokens if tokens else 0.0, gap_s)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the stretches of a load show of an objective.

    sign: 1 = it holds with 95 % confidence, -1 = it fails, 0 = neither is known. share: of the
    requests, that are within the limits, the mean of ``stretches``; low, high: its interval.
    """

    sign: int
    share: float
    low: float
    high: float
    stretches: int


def judge(shares: Sequence[float], requests: float, least: float) -> Verdict | None:
    """The verdict of the first of ``LOOKS`` that decides, or of the last one; None before the
    first.

    Args:
        shares: (S,) of the requests of each stretch, those within the limits.
        requests: of a stretch, in the mean.
        least: the share that is required.
    """
    found = None
    for look, quantile in LOOKS.items():
        if look > len(shares) or (found is not None and found.sign):
            break
        own = shares[:look]
        mean, deviation = float(np.mean(own)), float(np.std(own, ddof=1))
        # A share of 1 in every stretch has no deviation: by the rule of three it may still be so
        # much less.
        spread = max(quantile * deviation / math.sqrt(look), 3 / (requests * look))
        sign = 1 if mean - spread >= least else -1 if mean + spread < least else 0
        found = Verdict(sign, mean, max(0.0, mean - spread), min(1.0, mean + spread), look)
    return found


@dataclass(frozen=True, slots=True)
class Kept:
    """The requests of one method's records under one load. shares: (S,) within the limits, of each
    stretch.

    requests: of a stretch, in the mean. given_up: whether the queue of a stretch only grew.
    """

    shares: tuple[float, ...]
    requests: float
    given_up: bool

    @classmethod
    def of(cls, records: Iterable[CaseRecord], objective: Objective) -> Kept:
        """A failed case counts as one request that is not within the limits.

        Of stretches with the same requests the first one counts: vanilla runs again with a method
        that joins a load.
        """
        blocks: defaultdict[tuple[int, int], list[CaseRecord]] = defaultdict(list)
        for record in records:
            blocks[record.round, record.block].append(record)
        distinct: dict[tuple[int, frozenset[str]], list[CaseRecord]] = {}
        for (turn, _), own in blocks.items():
            distinct.setdefault((turn, frozenset(record.case for record in own)), own)
        stretches = [
            [
                kept
                for each in own
                for kept in ([False] if each.error else map(objective.keeps, each.turns))
            ]
            for own in distinct.values()
        ]
        given_up = any(QueueGrew.ended(each) for own in distinct.values() for each in own)
        shares = tuple(sum(own) / len(own) for own in stretches)
        return cls(shares, sum(map(len, stretches)) / max(1, len(stretches)), given_up)


def measure_capacity(records: Iterable[CaseRecord], places: int) -> float:
    """[users/s] of a closed loop with all places taken, by Little's law: places over the mean stay;
    0 if all failed.

    It has four digits, as the rates of a search.
    """
    stays = []
    for record in records:
        if (
            record.error is None
            and (load := record.turns[-1].load)
            and (begin := record.turns[0].load)
        ):
            last = record.turns[-1]
            stays.append(load["arrival_s"] + load["queue_s"] + last.wall_s - begin["arrival_s"])
    return float(f"{places / max(float(np.mean(stays)), 1e-9):.4g}") if stays else 0.0


@dataclass(frozen=True, slots=True)
class Boundary:
    """The two loads between which an objective stops holding.

    holds: the largest at which it holds with 95 % confidence, 0 = none. fails: the smallest at
    which it does not, with 95 % confidence; NEVER = none that was tried. saturated: the smallest
    above ``holds`` at which the queue only grows: at least the capacity of a closed loop arrives,
    or a stretch was given up.
    """

    holds: float
    fails: float
    saturated: float

    @classmethod
    def of(cls, signs: Mapping[float, int], grows: Collection[float], capacity: float) -> Boundary:
        """The boundary below a capacity, at which an objective fails.

        signs: load -> the sign of its verdict. grows: loads with a stretch that was given up.
        """
        holds = max(
            (load for load, sign in signs.items() if sign > 0 and load < capacity), default=0.0
        )
        failed = (load for load, sign in signs.items() if sign == -1)
        fails, saturated = (
            min(load for load in (*own, capacity) if load > holds) for own in (failed, grows)
        )
        return cls(holds, fails, saturated)

    def spell(self) -> str:
        """'holds at 8, fails at 9; overloaded from 12'."""
        holds = f"holds at {self.holds:.4g}" if self.holds else "holds at no load"
        fails = f", fails at {self.fails:.4g}" if self.fails < NEVER else ", no tried load fails"
        grows = f"; overloaded from {self.saturated:.4g}" if self.saturated < NEVER else ""
        return f"{holds}{fails}{grows}"


def find_boundary(
    start: float, least: float, most: float, narrow: float | None
) -> Generator[float, int, None]:
    """Searches the two loads of a ``Boundary``: yields the load to try, and is sent the sign of its
    verdict.

    It doubles or halves ``start`` until the objective changes, then bisects. Each load is yielded
    once. ``UNTRIED`` is the sign of a load that cannot be tried.

    Args:
        start: the first load.
        least: the smallest load that is tried.
        most: the largest one.
        narrow: neighbouring loads with a smaller ratio have none between them; None = loads are
            whole numbers.
    """
    signs: dict[float, int] = {}

    def largest(load: float, least_sign: int) -> Generator[float, int, float]:
        """The largest load with at least this sign; 0 if none has."""

        def passes(load: float) -> Generator[float, int, bool]:
            if load not in signs:
                signs[load] = yield load
            return signs[load] >= least_sign

        while not (yield from passes(load)):
            load = load / 2 if narrow else float(load // 2)
            if load < least:
                return 0.0
        high = load
        while (yield from passes(high)):
            if high >= most:
                return high
            load, high = high, min(2 * high, most)
        while high / load > narrow if narrow else high - load > 1:
            middle = math.sqrt(load * high) if narrow else float((load + high) // 2)
            load, high = (middle, high) if (yield from passes(middle)) else (load, middle)
        return load

    holds = yield from largest(start, 1)
    yield from largest(holds or start, 0)
