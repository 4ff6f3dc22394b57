"""When requests are meant to arrive, in seconds from the start of a stretch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def draw_poisson(rate: float, seed: int) -> Iterator[float]:
    """[s] Arrivals at ``rate`` a second, independent of each other; without end."""
    generator, now = random.Random(seed), 0.0
    while True:
        now += generator.expovariate(rate)
        yield now


def repeat_recorded(times_s: Sequence[float]) -> Iterator[float]:
    """[s] Recorded times, the first at 0; without end: the record begins anew one mean gap after its last."""
    begin = times_s[0]
    length = (times_s[-1] - begin) * len(times_s) / max(1, len(times_s) - 1)
    lap = 0.0
    while True:
        yield from (lap + time - begin for time in times_s)
        lap += length
