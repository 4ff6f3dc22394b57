"""The cost of one request: its time, in phases that fill the wall time, and the energy that GPUs
used meanwhile.

On a CPU a lap is a clock reading. On a GPU work is enqueued and runs later, so a lap records an
event; the events are resolved after the request, when reading them costs nothing that is measured.
Nothing waits for the GPU in between.

Energy is read from the counters of NVIDIA's driver (NVML) before and after a request, outside the
clock. A counter counts everything that its GPU does, and is updated every few tens of milliseconds:
a sum over many requests means something, the figure of one short request does not.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

NVML = "pynvml"  # the module of the package nvidia-ml-py, which is optional
_JOULES = 1e-3  # counters are in millijoules


class Clock:
    """Times one request at a time, in laps. All returned times are in seconds."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self.start()

    def start(self) -> None:
        """Begin a request; on a GPU, wait until earlier work is done."""
        self._phases: dict[str, float] = {}
        self._events: list[tuple[str, Any]] = []
        self._marks: list[int] = []
        self.synchronize()
        self._used_s = time.thread_time()
        self._last_ns = self._start_ns = time.perf_counter_ns()
        if self._cuda:
            self._events.append(("", self._record()))

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one."""
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def _record(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to ``phase``."""
        if self._cuda:
            self._events.append((phase, self._record()))
        else:
            self._enter(phase, time.perf_counter_ns())

    def _enter(self, phase: str, now_ns: int) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + (now_ns - self._last_ns) * 1e-9
        self._last_ns = now_ns

    def processor_s(self) -> float | None:
        """Processor time of this thread since ``start``, which counts no other process; None on a
        GPU.
        """
        return None if self._cuda else time.thread_time() - self._used_s

    def mark(self) -> None:
        """End a step with the last lap, without another clock reading or event."""
        self._marks.append(len(self._events) - 1 if self._cuda else self._last_ns)

    def steps(self) -> list[float]:
        """The times between marks, one fewer than marks; call after ``elapsed`` and before
        ``phases``.
        """
        if self._cuda:
            events = [self._events[place][1] for place in self._marks]
            return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)]
        return [(after - before) * 1e-9 for before, after in pairwise(self._marks)]

    def elapsed(self, phase: str = "") -> float:
        """Wall time since ``start``, including all enqueued work.

        phase: of a lap that ends at the same reading, so that a process that is interrupted between
        two readings does not spend time that no phase has.
        """
        if self._cuda and phase:
            self.lap(phase)
            self.synchronize()
            return float(self._events[0][1].elapsed_time(self._events[-1][1])) * 1e-3
        self.synchronize()
        now_ns = time.perf_counter_ns()
        if phase:
            self._enter(phase, now_ns)
        return (now_ns - self._start_ns) * 1e-9

    def phases(self) -> dict[str, float]:
        """Phase -> its time; call after ``elapsed``."""
        for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
            self._phases[phase] = self._phases.get(phase, 0.0) + before.elapsed_time(after) * 1e-3
        self._events.clear()
        return dict(self._phases)


@contextlib.contextmanager
def without_collector(freeze: bool = False) -> Iterator[None]:
    """Collect garbage now, and not until the block ends.

    freeze: exempt all living objects from later collections until ``gc.unfreeze``. The tables of a
    method grow to millions of objects, and every later collection would visit them all.
    """
    gc.collect()
    if freeze:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Meter:
    """The energy counters of some GPUs, added up."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        """nvml: the module. handles: one for each GPU."""
        self._nvml, self._handles = nvml, handles

    def joules(self) -> float | None:
        """[J] since a fixed point in time; None if a counter cannot be read."""
        try:
            return _JOULES * sum(
                self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles
            )
        except self._nvml.NVMLError:
            return None

    def since(self, before: float | None) -> float | None:
        """[J] used since ``joules`` returned ``before``."""
        now = self.joules()
        return None if before is None or now is None else round(now - before, 3)


def open_meter(gpus: Sequence[int]) -> Meter | None:
    """A meter for GPUs as torch numbers them; None without a GPU, without the package, or without a
    counter.
    """
    if not gpus:
        return None
    try:
        nvml = importlib.import_module(NVML)
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        # the driver counts otherwise
        names = (f"GPU-{torch.cuda.get_device_properties(gpu).uuid}" for gpu in gpus)
        meter = Meter(nvml, [nvml.nvmlDeviceGetHandleByUUID(name) for name in names])
    except nvml.NVMLError:
        return None
    return None if meter.joules() is None else meter


def gpus_in_use(device: torch.device, count: int | None) -> list[int]:
    """The GPUs of the target, ``count`` from ``device`` on, and any other with tensors of this
    process.

    So the GPU of a draft model counts for vanilla too, as the run occupies it. Empty if the target
    is on a CPU.
    """
    if device.type != "cuda":
        return []
    first = device.index or 0
    others = (gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(gpu))
    return sorted({*range(first, first + (count or 1)), *others})
