"""Energy that GPUs have used, by the counters of NVIDIA's driver (NVML); nothing on any other device.

A counter is read before and after a request, outside the clock. It counts everything that its GPU does, and
is updated every few tens of milliseconds: a sum over many requests means something, the figure of one short request
does not.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

NVML = "pynvml"  # of the package nvidia-ml-py, which is optional
_JOULES = 1e-3  # counters are in millijoules


class Meter:
    """The counters of some GPUs together."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        """nvml: the module. handles: of the GPUs."""
        self._nvml, self._handles = nvml, handles

    def joules(self) -> float | None:
        """[J] since a fixed point in time; None where a counter cannot be read."""
        try:
            return _JOULES * sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)
        except self._nvml.NVMLError:
            return None

    def since(self, before: float | None) -> float | None:
        """[J] used since ``joules`` returned ``before``."""
        now = self.joules()
        return None if before is None or now is None else round(now - before, 3)


def open_meter(gpus: Sequence[int]) -> Meter | None:
    """gpus: as torch numbers them. None without any, without the package, or where a GPU has no counter."""
    if not gpus:
        return None
    try:
        nvml = importlib.import_module(NVML)
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        names = (f"GPU-{torch.cuda.get_device_properties(gpu).uuid}" for gpu in gpus)  # the driver counts otherwise
        meter = Meter(nvml, [nvml.nvmlDeviceGetHandleByUUID(name) for name in names])
    except nvml.NVMLError:
        return None
    return None if meter.joules() is None else meter


def gpus_in_use(device: torch.device, count: int | None) -> list[int]:
    """Those that hold the target, ``count`` from ``device`` on, and any other with tensors of this process.

    So the GPU of a draft model counts, for vanilla too: the run occupies it. Empty where the target is on a CPU, which
    has no counter.
    """
    if device.type != "cuda":
        return []
    first = device.index or 0
    others = (gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(gpu))
    return sorted({*range(first, first + (count or 1)), *others})
