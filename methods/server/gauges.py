"""The figures that a server, and an exporter of its GPUs, report of themselves: what runs, waits and fills memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from specbench.types import MOST

# Name of a figure -> its samples on a page of vLLM, SGLang, LMDeploy, TensorRT-LLM, llama.cpp or NVIDIA's DCGM
# exporter, and how those of several engines or GPUs are joined. docs/servers.md has the units.
GAUGES: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "running": (
        "(?:vllm|lmdeploy):num_requests_running|sglang:num_running_reqs|trtllm_num_requests_running"
        "|llamacpp:requests_processing",
        sum,
    ),
    "waiting": (
        "(?:vllm|lmdeploy):num_requests_waiting|sglang:num_queue_reqs|trtllm_num_requests_waiting"
        "|llamacpp:requests_deferred",
        sum,
    ),
    "kv_cache": (
        "vllm:kv_cache_usage_perc|lmdeploy:gpu_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization"
        "|llamacpp:kv_cache_usage_ratio",
        max,
    ),
    "gpu_busy": ("DCGM_FI_DEV_GPU_UTIL", lambda values: sum(values) / len(values) / 100),
    "gpu_power_w": ("DCGM_FI_DEV_POWER_USAGE", sum),
}
_VALUE = r"(?:\{[^}\n]*\})?[ \t]+([\d.]{1,30}(?:[eE][+-]?\d{1,3})?)(?=\s|$)"
_SAMPLES = {name: re.compile(f"^(?:{names}){_VALUE}", re.MULTILINE) for name, (names, _) in GAUGES.items()}


def read_gauges(page: str) -> dict[str, float]:
    """Read the figures of a page of metrics in Prometheus' format.

    Returns:
        Name -> value; a figure without a sample, or with one that is not a number from 0 to 2^31 - 1, is left out.
    """
    found: dict[str, float] = {}
    for name, (_, join) in GAUGES.items():
        try:
            values = [float(sample[1]) for sample in _SAMPLES[name].finditer(page)]
        except ValueError:  # several points
            continue
        if values and max(values) < MOST:
            found[name] = join(values)
    return found
