"""The number of CPU threads to decode with: plain steps are timed at each count in turn, before a
run's first case.

What more threads bring depends on model and machine: a small model's steps are too short to share,
and a second thread on the core of the first brings nothing where memory is the limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from specbench.decode.walk import Walk
from specbench.models.engine import Engine, Silent
from specbench.types import Draft, Needs

PROMPT = (5, 3, 7, 4, 6, 5)
STEPS = 3  # timed in a row, after one that is not
LEAST_ROUNDS, MOST_ROUNDS = 2, 12
BUDGET_S = 0.5  # no round begins after it, but the least number
FAR = 2.0  # times the least time: such a count is not timed again
# of the time with fewer threads; a smaller gain is noise, and other processes need threads too
WORTH = 0.95


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """count: of threads to decode with. ratios: count -> time of a plain step over that with one
    thread, measured.
    """

    count: int
    ratios: dict[str, float]


def choose_threads(
    engine: Engine, asked: int | None, stored: int | None = None
) -> ThreadChoice | None:
    """Set torch's thread count for an engine on a CPU; None on another device, where it matters
    little.

    asked: the configuration's, which is taken. stored: that of the run which is resumed, likewise.
    Without both, the counts up to torch's own are timed.
    """
    if engine.device.type != "cpu":
        return None
    given = asked or stored
    counts = [given] if given else list_counts(torch.get_num_threads())
    times = time_steps(engine, counts) if len(counts) > 1 else {}
    count = pick_count(times) if times else counts[0]
    torch.set_num_threads(count)
    return ThreadChoice(
        count, {str(each): round(spent / times[1], 3) for each, spent in times.items()}
    )


def list_counts(most: int) -> list[int]:
    """1, 2, 4 ... and ``most``."""
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power <= most)})


def pick_count(times: dict[int, float]) -> int:
    """Return the smallest count that no larger one beats by more than ``WORTH`` allows."""
    best = min(times.values())
    return min(count for count, spent in times.items() if spent * WORTH <= best)


@torch.inference_mode()
def time_steps(engine: Engine, counts: list[int]) -> dict[int, float]:
    """Count -> the least time of a plain step [s]; the counts take turns, forth and back."""
    times = dict.fromkeys(counts, float("inf"))
    begun = time.perf_counter()
    for number in range(MOST_ROUNDS):
        counts = [count for count in counts if times[count] <= FAR * min(times.values())]
        late = number >= LEAST_ROUNDS and time.perf_counter() - begun > BUDGET_S
        if late or len(counts) == 1:
            break
        for count in reversed(counts) if number % 2 else counts:
            torch.set_num_threads(count)
            times[count] = min(times[count], _time_in_a_row(engine))
    return times


def _time_in_a_row(engine: Engine) -> float:
    engine.start(PROMPT, STEPS + 2, Walk(None, 0), Needs(), Silent())
    spent = []
    for _ in range(STEPS + 1):
        before = time.perf_counter()
        engine.forward(Draft())
        engine.settle(STEPS + 2)
        spent.append(time.perf_counter() - before)
    return min(spent[1:])
