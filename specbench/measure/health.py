"""What would make a run's numbers unsafe: said, never fixed behind the user's back, and no outlier is dropped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

BUSY = 0.5  # load average a core above which another process competes for the processor
DEBUG = ("CUDA_LAUNCH_BLOCKING", "TORCH_SHOW_CPP_STACKTRACES", "TORCHDYNAMO_VERBOSE")


def warnings_before(git: Mapping[str, Any]) -> list[str]:
    """Doubts known before the first case."""
    found: list[str] = []
    cores = psutil.cpu_count(logical=True) or 1
    load = os.getloadavg()[0] / cores
    if load > BUSY:
        found.append(f"load average is {load:.2f} a core: other processes compete, times are unsafe")
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.is_file() and (mode := governor.read_text().strip()) != "performance":
        found.append(f"CPU governor is {mode}, not performance: host times vary")
    if git.get("dirty"):
        found.append("the checkout has uncommitted changes: the commit does not name this code")
    found += [f"{name} is set: it slows the GPU path" for name in DEBUG if os.environ.get(name)]
    return found


def warnings_between(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Doubts about a run that went on in another process: other code or another machine."""
    found: list[str] = []
    for what, key, field in (("commits", "git", "commit"), ("processors", "machine", "cpu")):
        seen = {str(process.get(key, {}).get(field)) for process in processes}
        if len(seen) > 1:
            found.append(f"the run was resumed on other {what}: {', '.join(sorted(seen))}")
    return found
