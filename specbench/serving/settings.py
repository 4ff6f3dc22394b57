"""The settings of a load, requests that share a server, and when its requests arrive."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator

from specbench.input import InputError, must, one_of, when, within
from specbench.records.record import LoadKind
from specbench.serving.traces import read_arrivals

ONE, CLOSED, POISSON, CONSTANT, GAMMA, TRACE = (kind.value for kind in LoadKind)
AT_RATE = (POISSON, CONSTANT, GAMMA)
DAY_S = 86_400
MOST = 1_000_000  # requests of a ramp, and measured ones of a stretch
ABOVE_0 = must(lambda value: math.isfinite(value) and value > 0, "a finite number above 0")
SHARED = when(
    "load.kind", lambda run: run.load.kind != ONE, "load=closed, poisson, constant, gamma or trace"
)
HERE = when(
    "engine.kind",
    lambda run: run.engine.kind != "server",
    "an engine that runs here; a server has its own",
)
DIVIDED = when(
    "load.budget", lambda run: run.load.budget in ("equal", "score"), "load.budget=equal or score"
)
ARRIVING = when(
    "load.kind",
    lambda run: run.load.kind not in (ONE, CLOSED),
    "load=poisson, constant, gamma or trace",
)
COUNTED = when(
    "load.seconds",
    lambda run: run.load.seconds is None or run.load.find,
    "load.seconds=null, or with load.find=slo",
)
BURSTY = when("load.kind", lambda run: run.load.kind == GAMMA, "load=gamma")
RECORDED = when("load.kind", lambda run: run.load.kind == TRACE, "load=trace")
SLO = "slo"


def _whole(low: int, most: int = 1 << 31) -> AfterValidator:
    return must(lambda value: low <= value <= most, f"a whole number from {low} to {most}")


@dataclass
class SloConfig:
    """Limits [ms] within which a served request counts in the goodput.

    ttft_ms: to the first token. tpot_ms: mean of a later token. itl_ms: longest time between two
    bursts. share: of the requests, that must be within them at a load that ``load.find`` searches.
    """

    ttft_ms: Annotated[float | None, ABOVE_0] = None
    tpot_ms: Annotated[float | None, ABOVE_0] = None
    itl_ms: Annotated[float | None, ABOVE_0] = None
    share: Annotated[float, within(0.5, 1)] = 0.99


@dataclass
class LoadConfig:
    """kind: one request after the other | closed: a constant number in flight | the others: at
    arrival times.

    requests: the most concurrent ones. rate: [requests/s] of poisson, constant and gamma; of trace,
    null = as recorded. shape: of gamma's gaps: 1 = poisson's, below it bursts, above it more even.
    times: file of recorded arrivals. answers: recorded = an answer ends at its arrival's recorded
    tokens, if the file has them | free. block: measured cases of a stretch. seconds: [s] in which
    they arrive instead, null = block, which the closed loop of a search has in any case. ramp:
    cases before them, null = as many as requests. patience: [s] an arrival may wait for a place
    before its stretch is given up, null = with seconds or find, as long as the stretch's requests
    take to arrive, else without end. chunk: [tokens] of prompts read between two forwards, 0 = no
    limit. tokens: [tokens] that one request has room for, null = the model's context. budget: full
    | equal | score | controlled, see docs/batching.md. nodes: of a forward, shared by its requests
    (equal, score), null = engine.max_nodes. find: slo = the largest rate or number of requests at
    which slo holds, null = the load that is given.
    """

    kind: Annotated[str, one_of(*LoadKind)] = ONE
    requests: Annotated[int, _whole(1, 4096), SHARED] = 1
    rate: Annotated[float | None, ABOVE_0, ARRIVING] = None
    shape: Annotated[float, within(0.01, 1_000_000), BURSTY] = 1.0
    times: Annotated[str | None, RECORDED] = None
    answers: Annotated[str, one_of("recorded", "free"), RECORDED] = "recorded"
    block: Annotated[int, _whole(1, MOST), SHARED, COUNTED] = 16
    seconds: Annotated[float | None, ABOVE_0, ARRIVING] = None
    ramp: Annotated[int | None, _whole(0, MOST), SHARED] = None
    patience: Annotated[float | None, ABOVE_0, ARRIVING] = None
    chunk: Annotated[int, _whole(0), SHARED, HERE] = 256
    tokens: Annotated[int | None, _whole(2), SHARED] = None
    budget: Annotated[str, one_of("full", "equal", "score", "controlled"), SHARED, HERE] = "full"
    nodes: Annotated[int | None, _whole(1), SHARED, HERE, DIVIDED] = None
    slo: Annotated[SloConfig, SHARED] = field(default_factory=SloConfig)
    find: Annotated[str | None, one_of(SLO), SHARED] = None

    @property
    def before(self) -> int:
        """Requests of a stretch that arrive before the measured ones."""
        return self.requests if self.ramp is None else self.ramp


def check_load(load: LoadConfig) -> None:
    """Raise InputError for settings that do not go together, and for a stretch whose requests take
    days to arrive.
    """
    needed = [
        *((kind, "rate", "requests a second") for kind in AT_RATE),
        (TRACE, "times", "a file of arrival times"),
    ]
    for kind, key, what in needed:
        if load.kind == kind and getattr(load, key) is None and not (load.find and key == "rate"):
            raise InputError(f"load.{key}: not set; load={kind} needs it: load.{key}=..., {what}")
    if load.find and load.rate is not None:
        raise InputError(
            f"load.rate={load.rate}: load.find={load.find} finds the rate; expected one of the two"
        )
    if load.find and load.slo.ttft_ms is load.slo.tpot_ms is load.slo.itl_ms is None:
        raise InputError(
            f"load.find={load.find}: no limit is set; expected load.slo.ttft_ms=..., tpot_ms or"
            " itl_ms, as load.slo.ttft_ms=500"
        )
    if load.seconds and (rate := find_rate(load)) and load.seconds * rate > MOST:
        raise InputError(
            f"load.seconds={load.seconds:g}: {load.seconds * rate:.3g} requests arrive in them,"
            f" {rate:g} a second; expected at most {MOST}: fewer seconds, or a lower load.rate"
        )
    count, last_s = find_last_arrival(load)
    if not last_s <= DAY_S:
        key = "seconds" if load.seconds else "rate" if load.rate else "times"
        raise InputError(
            f"load.{key}={getattr(load, key)}: the {count} requests of a stretch (load.ramp,"
            f" load.{'seconds' if load.seconds else 'block'}) arrive within {last_s:.3g} s;"
            f" expected at most {DAY_S} s: more requests a second, or fewer of a stretch"
        )


def find_last_arrival(load: LoadConfig) -> tuple[int, float]:
    """(requests of a stretch, [s] within which they arrive); 0 s in a closed loop, and before the
    load is found.
    """
    count, arrivals = load.before + count_measured(load, 0), make_arrivals(load, 0)
    return count, next(itertools.islice(arrivals, count - 1, None)) if arrivals else 0.0


def count_measured(load: LoadConfig, seed: int, place: int = 0) -> int:
    """The measured requests of a stretch: ``block``, or those that arrive within ``seconds`` of the
    first of them.
    """
    rate, arrivals = find_rate(load), make_arrivals(load, seed)
    if load.seconds is None or rate is None or arrivals is None:
        return load.block
    if load.kind == TRACE and load.times is not None:
        return read_arrivals(load.times).count(
            find_first(load, place) + load.before, load.seconds, rate
        )
    own = itertools.islice(arrivals, load.before, None)
    end = next(own) + load.seconds
    return 1 + sum(1 for _ in itertools.takewhile(lambda time: time < end, own))


def find_patience(load: LoadConfig) -> float:
    """[s] An arrival may wait for a place before its stretch is given up.

    By default, if a stretch ends by time or the load is searched for: as long as the stretch's
    requests take to arrive in the mean. If an arrival waits for longer, requests arrive at least
    twice as fast as they leave the server.
    """
    if load.patience is not None:
        return load.patience
    rate = find_rate(load)
    if rate is None or not (load.seconds or load.find):
        return math.inf
    return load.before / rate + (load.seconds or load.block / rate)


def make_arrivals(load: LoadConfig, seed: int, place: int = 0) -> Iterator[float] | None:
    """[s] The intended arrivals of a stretch; None for a closed loop, or if the load is not known
    yet.

    place: of the stretch among those of the run; each begins where the one before ended in a trace.
    Raises InputError if a file has no arrivals.
    """
    if load.kind in AT_RATE and load.rate is not None:
        return draw_arrivals(load.kind, load.rate, seed, load.shape)
    rate = find_rate(load)
    if load.kind != TRACE or load.times is None or rate is None:
        return None
    return read_arrivals(load.times).repeat(find_first(load, place), rate)


def find_rate(load: LoadConfig) -> float | None:
    """[requests/s] In the mean; None for a closed loop, and before the load is found."""
    if load.kind == TRACE and load.rate is None and load.times is not None:
        return read_arrivals(load.times).rate
    return load.rate


def find_first(load: LoadConfig, place: int) -> int:
    """The number of the recorded arrival with which a stretch begins: the one after the last of the
    stretch before.
    """
    if load.seconds is None or load.times is None:
        return place * (load.before + load.block)
    first, recorded = 0, read_arrivals(load.times)
    for _ in range(place):
        first += load.before + recorded.count(
            first + load.before, load.seconds, load.rate or recorded.rate
        )
    return first


def find_limits(load: LoadConfig, place: int) -> Iterator[int] | None:
    """The most tokens of the answer to each arrival of a stretch; None if they are not recorded, or
    not to be kept.
    """
    if load.kind != TRACE or load.times is None or load.answers != "recorded":
        return None
    tokens = read_arrivals(load.times).tokens
    first = find_first(load, place)
    return (tokens[number % len(tokens)] for number in itertools.count(first)) if tokens else None


def draw_arrivals(kind: str, rate: float, seed: int, shape: float = 1.0) -> Iterator[float]:
    """[s] Arrivals without end, ``rate`` a second in the mean, the first one gap after 0.

    kind: of the gaps: constant, poisson (independent arrivals), or gamma, whose gaps have this
    shape.
    """
    if kind == CONSTANT:
        return (number / rate for number in itertools.count(1))
    generator = random.Random(seed)
    gap = functools.partial(generator.expovariate, rate)
    if kind == GAMMA:
        gap = functools.partial(generator.gammavariate, shape, 1 / rate / shape)
    return itertools.accumulate(gap() for _ in itertools.count())
