"""How long a model's forward took, on its own device: a mark before it, a mark behind it, the time between them.

On a GPU a forward is only enqueued where it is called, so a mark is an event of the device's stream; on a CPU it is the
clock. Times of events are known once the device has passed the second one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

REPEATS = 5

Mark = Any  # a time [s], or an event


def mark(device: torch.device) -> Mark:
    """This moment on ``device``."""
    if device.type != "cuda":
        return time.perf_counter()
    return torch.cuda.current_stream(device).record_event(torch.cuda.Event(enable_timing=True))


def seconds_between(first: Mark, second: Mark) -> float:
    """[s] from one mark to the other."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3


def measure_forward_s(forward: Callable[[], object], device: torch.device) -> float:
    """[s] of a forward: the median of a few, after one that is not counted."""
    forward()
    spans = [(mark(device), forward(), mark(device)) for _ in range(REPEATS)]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return statistics.median(seconds_between(first, last) for first, _, last in spans)


@dataclass(slots=True)
class RoundTimes:
    """Forward times of one request's rounds: the target's, and the draft model's beside it and before it.

    target: pairs of marks. beside: [s] of the draft forwards of each round. before: [s] of those that the target
    waited for. wall_s: of all rounds, from launch to outcome.
    """

    device: torch.device
    target: list[tuple[Mark, Mark]] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    _launched: tuple[Mark, float] = (0.0, 0.0)

    def note_launch(self) -> None:
        """The target's forward comes next."""
        self._launched = mark(self.device), time.perf_counter()

    def note_join(self) -> None:
        """The target's forward is enqueued, or done."""
        self.target.append((self._launched[0], mark(self.device)))

    def end_round(self, drafts: list[float]) -> None:
        """The round is over; ``drafts``: [s] of the draft forwards beside it."""
        self.beside.append(drafts)
        self.wall_s += time.perf_counter() - self._launched[1]

    def stats(self) -> dict[str, float]:
        """measured_s: of the rounds as they ran, with the draft forwards before them.

        modelled_s: of the same forwards with each model on a device of its own and messages that cost nothing, the sum
        of max(target forward, its draft forwards).
        """
        if not self.beside:
            return {}
        target = [seconds_between(*pair) for pair in self.target]
        drafts = [time_s for times in (*self.beside, self.before) for time_s in times]
        pairs = zip(target, self.beside, strict=False)  # a forward whose step failed has no outcome
        found = {
            "measured_s": self.wall_s + sum(self.before),
            "modelled_s": sum(max(forward, sum(times)) for forward, times in pairs) + sum(self.before),
            "target_forward_ms": 1e3 * statistics.mean(target),
            "draft_forwards": float(len(drafts)),
        }
        if drafts:
            found["draft_forward_ms"] = 1e3 * statistics.mean(drafts)
        return found


def forwards_per_target(target_s: float, draft_s: float) -> int:
    """ceil(target forward / draft forward): the draft forwards that one target forward leaves time for, at least 1."""
    return max(1, math.ceil(target_s / draft_s))
