"""The memory that something takes, as the system and as Python count it."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """What ``call`` gives, and the most memory [bytes] that this process had meanwhile: VmHWM, which Linux counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of memory that was freed would count (malloc_trim(3))
    _CLEAR.write_text("5")  # sets it to what is held now (proc(5))
    given = call()
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return given, 1024 * int(line.split()[1])


def measure_held(call: Callable[[], Any]) -> int:
    """[bytes] of Python's objects and arrays that what ``call`` gives keeps alive; torch's tensors are not counted."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = call()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        del kept
        return held
    finally:
        tracemalloc.stop()
