"""The clock of one request: phases that tile its wall time, with no synchronisation of its own between them.

On a CPU a lap is a clock reading. On a GPU work is enqueued and runs later, so a lap records an event; the events are
resolved after the request, when reading them costs nothing that is measured.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch


class Clock:
    """Laps of one request at a time. All returned times are seconds."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self.start()

    def start(self) -> None:
        """Zero everything; on a GPU wait until earlier work is done."""
        self._phases: dict[str, float] = {}
        self._events: list[tuple[str, Any]] = []
        self._marks: list[int] = []
        self.synchronize()
        self._last_ns = self._start_ns = time.perf_counter_ns()
        if self._cuda:
            self._events.append(("", self._record()))

    def synchronize(self) -> None:
        """Wait for the GPU; nothing on a CPU."""
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def _record(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to ``phase``."""
        if self._cuda:
            self._events.append((phase, self._record()))
            return
        now = time.perf_counter_ns()
        self._phases[phase] = self._phases.get(phase, 0.0) + (now - self._last_ns) * 1e-9
        self._last_ns = now

    def mark(self) -> None:
        """A step ends with the last lap; costs no reading of the clock and no event of its own."""
        self._marks.append(len(self._events) - 1 if self._cuda else self._last_ns)

    def steps(self) -> list[float]:
        """Time between marks, one entry fewer than there are; call after ``elapsed`` and before ``phases``."""
        if self._cuda:
            events = [self._events[place][1] for place in self._marks]
            return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)]
        return [(after - before) * 1e-9 for before, after in pairwise(self._marks)]

    def elapsed(self) -> float:
        """Wall time since ``start``, all enqueued work included."""
        self.synchronize()
        return (time.perf_counter_ns() - self._start_ns) * 1e-9

    def phases(self) -> dict[str, float]:
        """Time by phase; call after ``elapsed``."""
        for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
            self._phases[phase] = self._phases.get(phase, 0.0) + before.elapsed_time(after) * 1e-3
        self._events.clear()
        return dict(self._phases)


@contextlib.contextmanager
def without_collector(freeze: bool = False) -> Iterator[None]:
    """Collect garbage now, and not until the block ends.

    freeze: what is alive stays so until ``gc.unfreeze``. The tables of a method grow to millions of objects, and every
    later collection would visit them all.
    """
    gc.collect()
    if freeze:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
