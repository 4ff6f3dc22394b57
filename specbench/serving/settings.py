"""The settings of requests that share a server, and their check."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specbench.input import InputError, parse_json, read_file
from specbench.serving.arrivals import draw_poisson, repeat_recorded

ONE, CLOSED, POISSON, TRACE = "one", "closed", "poisson", "trace"
KINDS = (ONE, CLOSED, POISSON, TRACE)
MOST_REQUESTS = 4096
DAY_S = 86_400
BUDGETS = ("full", "equal", "score", "controlled")


@dataclass
class SloConfig:
    """What a served request must keep to count in the goodput, in ms: first token, mean time of each token after it."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass
class LoadConfig:
    """kind: one request after the other | closed: so many always in flight | poisson, trace: arrivals of their own.

    requests: at once, at most. rate: [requests/s] of poisson. times: file of a JSON list of arrival times [s].
    block: measured cases of a stretch. ramp: cases before them, null = as many as requests.
    chunk: [tokens] of prompts read between two forwards, 0 = whole prompts. tokens: [tokens] that one request has room
    for, null = the model's context. budget: full | equal | score | controlled, see docs/batching.md.
    nodes: of a forward, shared by its requests (equal, score), null = engine.max_nodes.
    """

    kind: str = ONE
    requests: int = 1
    rate: float | None = None
    times: str | None = None
    block: int = 16
    ramp: int | None = None
    chunk: int = 256
    tokens: int | None = None
    budget: str = "full"
    nodes: int | None = None
    slo: SloConfig = field(default_factory=SloConfig)


# As runs were before there was a load; of these settings, slo changes no record.
ALONE = {key: value for key, value in asdict(LoadConfig()).items() if key != "slo"}


def check_load(load: LoadConfig) -> None:
    """Raise InputError for a value that makes no sense."""
    for key, known in (("kind", KINDS), ("budget", BUDGETS)):
        if getattr(load, key) not in known:
            raise InputError(f"load.{key}={getattr(load, key)}: expected one of {', '.join(known)}")
    bounds = {"requests": 1, "block": 1, "ramp": 0, "chunk": 0, "tokens": 2, "nodes": 1}
    for key, low in bounds.items():
        value = getattr(load, key)
        most = MOST_REQUESTS if key == "requests" else 1 << 31
        if value is not None and not low <= value <= most:
            raise InputError(f"load.{key}={value}: expected a whole number from {low} to {most}")
    for key, limit in (("rate", load.rate), ("slo.ttft_ms", load.slo.ttft_ms), ("slo.tpot_ms", load.slo.tpot_ms)):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InputError(f"load.{key}={limit}: expected a finite number above 0")
    if (load.kind == POISSON) != (load.rate is not None):
        raise InputError(f"load.rate={load.rate}: expected a rate with load=poisson, and with no other")
    if (load.kind == TRACE) != (load.times is not None):
        raise InputError(f"load.times={load.times}: expected a file with load=trace, and with no other")
    _require_end(load)


def find_last_arrival(load: LoadConfig) -> tuple[int, float]:
    """(requests of a stretch, [s] within which they arrive); 0 s in a closed loop."""
    count, arrivals = load.block + (load.requests if load.ramp is None else load.ramp), make_arrivals(load, 0)
    return count, next(itertools.islice(arrivals, count - 1, None)) if arrivals else 0.0


def _require_end(load: LoadConfig) -> None:
    """Raise InputError where the requests of a stretch do not arrive within a day."""
    count, last_s = find_last_arrival(load)
    if last_s > DAY_S:
        key = "rate" if load.kind == POISSON else "times"
        raise InputError(
            f"load.{key}={getattr(load, key)}: the {count} requests of a stretch (load.ramp, load.block) arrive within"
            f" {last_s:.3g} s; expected at most {DAY_S} s: more requests a second, or fewer of a stretch"
        )


def make_arrivals(load: LoadConfig, seed: int) -> Iterator[float] | None:
    """[s] The intended arrivals of a stretch; None for a closed loop. Raises InputError where a file has no times."""
    if load.kind == POISSON and load.rate is not None:
        return draw_poisson(load.rate, seed)
    return repeat_recorded(read_times(load.times)) if load.times is not None else None


def read_times(path: str) -> list[float]:
    """[s] A JSON list of times in ascending order. Raises InputError."""
    fix = "expected a JSON list of arrival times in seconds, ascending"
    times = parse_json(read_file(Path(path), "load.times ", fix), path, fix)
    good = isinstance(times, list) and all(isinstance(time, (int, float)) and math.isfinite(time) for time in times)
    if not good or len(times) < 2 or times != sorted(times) or times[0] == times[-1]:
        raise InputError(f"load.times={path}: {fix}, at least two of them apart")
    return [float(time) for time in times]
