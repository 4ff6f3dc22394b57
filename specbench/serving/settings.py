"""The settings of a load, requests that share a server, and when its requests arrive."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from specbench.input import InputError, must, one_of, parse_json, read_file, when
from specbench.records.record import LoadKind

ONE, CLOSED, POISSON, CONSTANT, GAMMA, TRACE = (kind.value for kind in LoadKind)
AT_RATE = (POISSON, CONSTANT, GAMMA)
DAY_S = 86_400
ABOVE_0 = must(lambda value: math.isfinite(value) and value > 0, "a finite number above 0")
SHARED = when("load.kind", lambda run: run.load.kind != ONE, "load=closed, poisson, constant, gamma or trace")
HERE = when("engine.kind", lambda run: run.engine.kind != "server", "an engine that runs here; a server has its own")
DIVIDED = when("load.budget", lambda run: run.load.budget in ("equal", "score"), "load.budget=equal or score")
DRAWN = when("load.kind", lambda run: run.load.kind in AT_RATE, "load=poisson, load=constant or load=gamma")
BURSTY = when("load.kind", lambda run: run.load.kind == GAMMA, "load=gamma")
RECORDED = when("load.kind", lambda run: run.load.kind == TRACE, "load=trace")


def _whole(low: int, most: int = 1 << 31) -> AfterValidator:
    return must(lambda value: low <= value <= most, f"a whole number from {low} to {most}")


@dataclass
class SloConfig:
    """Limits [ms] within which a served request counts in the goodput: first token, mean time per later token."""

    ttft_ms: Annotated[float | None, ABOVE_0] = None
    tpot_ms: Annotated[float | None, ABOVE_0] = None


@dataclass
class LoadConfig:
    """kind: one request after the other | closed: a constant number in flight | the others: at arrival times.

    requests: the most concurrent ones. rate: [requests/s] of poisson, constant and gamma. shape: of gamma's gaps: 1 =
    poisson's, below it bursts, above it more even. times: file of a JSON list of arrival times [s].
    block: measured cases of a stretch. ramp: cases before them, null = as many as requests.
    chunk: [tokens] of prompts read between two forwards, 0 = no limit. tokens: [tokens] that one request has room
    for, null = the model's context. budget: full | equal | score | controlled, see docs/batching.md.
    nodes: of a forward, shared by its requests (equal, score), null = engine.max_nodes.
    """

    kind: Annotated[str, one_of(*LoadKind)] = ONE
    requests: Annotated[int, _whole(1, 4096), SHARED] = 1
    rate: Annotated[float | None, ABOVE_0, DRAWN] = None
    shape: Annotated[float, ABOVE_0, BURSTY] = 1.0
    times: Annotated[str | None, RECORDED] = None
    block: Annotated[int, _whole(1), SHARED] = 16
    ramp: Annotated[int | None, _whole(0), SHARED] = None
    chunk: Annotated[int, _whole(0), SHARED, HERE] = 256
    tokens: Annotated[int | None, _whole(2), SHARED] = None
    budget: Annotated[str, one_of("full", "equal", "score", "controlled"), SHARED, HERE] = "full"
    nodes: Annotated[int | None, _whole(1), SHARED, HERE, DIVIDED] = None
    slo: Annotated[SloConfig, SHARED] = field(default_factory=SloConfig)


# The settings of a run without load, which a configuration's hash leaves out; slo changes no record.
ALONE = {key: value for key, value in asdict(LoadConfig()).items() if key != "slo"}


def check_load(load: LoadConfig) -> None:
    """Raise InputError for settings that do not go together, and for a stretch whose requests take days to arrive."""
    needed = [*((kind, "rate", "requests a second") for kind in AT_RATE), (TRACE, "times", "a file of arrival times")]
    for kind, key, what in needed:
        if load.kind == kind and getattr(load, key) is None:
            raise InputError(f"load.{key}: not set; load={kind} needs it: load.{key}=..., {what}")
    count, last_s = find_last_arrival(load)
    if last_s > DAY_S:
        key = "times" if load.kind == TRACE else "rate"
        raise InputError(
            f"load.{key}={getattr(load, key)}: the {count} requests of a stretch (load.ramp, load.block) arrive within"
            f" {last_s:.3g} s; expected at most {DAY_S} s: more requests a second, or fewer of a stretch"
        )


def find_last_arrival(load: LoadConfig) -> tuple[int, float]:
    """(requests of a stretch, [s] within which they arrive); 0 s in a closed loop."""
    count, arrivals = load.block + (load.requests if load.ramp is None else load.ramp), make_arrivals(load, 0)
    return count, next(itertools.islice(arrivals, count - 1, None)) if arrivals else 0.0


def make_arrivals(load: LoadConfig, seed: int) -> Iterator[float] | None:
    """[s] The intended arrivals of a stretch; None for a closed loop. Raises InputError if a file has no times."""
    if load.kind in AT_RATE and load.rate is not None:
        return draw_arrivals(load.kind, load.rate, seed, load.shape)
    return repeat_recorded(read_times(load.times)) if load.kind == TRACE and load.times is not None else None


def read_times(path: str) -> list[float]:
    """[s] A JSON list of times in ascending order. Raises InputError."""
    fix = "expected a JSON list of arrival times in seconds, ascending"
    times = parse_json(read_file(Path(path), "load.times ", fix), path, fix)
    good = isinstance(times, list) and all(isinstance(time, (int, float)) and math.isfinite(time) for time in times)
    if not good or len(times) < 2 or times != sorted(times) or times[0] == times[-1]:
        raise InputError(f"load.times={path}: {fix}, at least two of them apart")
    return [float(time) for time in times]


def draw_arrivals(kind: str, rate: float, seed: int, shape: float = 1.0) -> Iterator[float]:
    """[s] Arrivals of poisson, constant or gamma at ``rate`` a second; without end."""
    if kind == CONSTANT:
        return draw_constant(rate)
    return draw_poisson(rate, seed) if kind == POISSON else draw_gamma(rate, shape, seed)


def draw_constant(rate: float) -> Iterator[float]:
    """[s] Arrivals with equal gaps, the first after one of them; without end."""
    return (number / rate for number in itertools.count(1))


def draw_gamma(rate: float, shape: float, seed: int) -> Iterator[float]:
    """[s] Arrivals whose gaps have a gamma distribution of this shape and a mean of 1 / rate; without end."""
    generator, now = random.Random(seed), 0.0
    while True:
        now += generator.gammavariate(shape, 1 / (rate * shape))
        yield now


def draw_poisson(rate: float, seed: int) -> Iterator[float]:
    """[s] Arrivals at ``rate`` a second, independent of each other; without end."""
    generator, now = random.Random(seed), 0.0
    while True:
        now += generator.expovariate(rate)
        yield now


def repeat_recorded(times_s: Sequence[float]) -> Iterator[float]:
    """Repeat recorded times [s], the first at 0, without end: the record begins again one mean gap after its last."""
    begin = times_s[0]
    length = (times_s[-1] - begin) * len(times_s) / max(1, len(times_s) - 1)
    lap = 0.0
    while True:
        yield from (lap + time - begin for time in times_s)
        lap += length
