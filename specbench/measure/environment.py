"""The machine and the software of a run, as the manifest stores them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

# Kernels of torch's attention -> whether they are allowed.
ATTENTION = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}
PACKAGES = (
    *("specbench", "torch", "transformers", "tokenizers", "accelerate"),
    *("hydra-core", "numpy", "fschat", "triton"),
)


BUSY = 0.5  # load average a core above which another process competes for the processor


def spell_busy() -> str:
    """A warning that other processes keep this machine busy, '' if there are none; call it before
    anything is timed.
    """
    load = os.getloadavg()[0] / (psutil.cpu_count(logical=True) or 1)
    return (
        f"load average is {load:.2f} a core: other processes compete, times are unsafe"
        if load > BUSY
        else ""
    )


def versions() -> dict[str, str]:
    """Package -> version, for all packages that can change a number."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if cudnn := torch.backends.cudnn.version():
        found["cudnn"] = str(cudnn)
    return found


def machine() -> dict[str, Any]:
    """Processor, memory, load, GPUs, the attention kernels that torch may choose from, and how it
    sums bfloat16.
    """
    count, matmul = torch.cuda.device_count(), torch.backends.cuda.matmul
    sums = (
        {"bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction}
        if count
        else {}
    )
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": round(os.getloadavg()[0], 2),
        "attention": [name for name, allowed in ATTENTION.items() if allowed()],
        "gpus": [_gpu(index) for index in range(count)],
        **sums,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    size = {"memory_bytes": properties.total_memory, "sms": properties.multi_processor_count}
    return {"name": properties.name, **size, **_ask_driver(f"GPU-{properties.uuid}")}


DRIVER = {  # entry of the manifest -> query of nvidia-smi, which answers in W and MHz
    "driver": "driver_version",
    "power_limit_w": "power.limit",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_most_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
}
PATIENCE_S = 10.0


def _ask_driver(uuid: str) -> dict[str, str]:
    """The settings of a GPU as its driver prints them; empty if the driver gives none."""
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(DRIVER.values())}"]
    command.append("--format=csv,noheader,nounits")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(DRIVER, done.stdout.strip().split(", "), strict=False))


def git_state(folder: Path) -> dict[str, Any]:
    """Commit of the checkout around ``folder``, and whether it has changes; empty outside a
    checkout.
    """
    commands = ["rev-parse", "HEAD"], ["status", "--porcelain"]
    try:
        commit, changed = (
            subprocess.run(
                ["git", "-C", str(folder), *each], capture_output=True, text=True, check=True
            ).stdout.strip()
            for each in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": commit, "dirty": bool(changed)}


EDGE_BYTES = 1 << 20


def weights_fingerprint(path: str) -> str | None:
    """Fingerprint of a local model's weights, or of one file: sha256 over each file's name, size
    and both ends.

    Complete files would take minutes to read. None for a hub id or random weights, which the
    configuration names.
    """
    place = Path(path)
    if not place.exists():
        return None
    digest = hashlib.sha256()
    for file in (
        [place] if place.is_file() else sorted([*place.glob("*.safetensors"), *place.glob("*.bin")])
    ):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(EDGE_BYTES))
            stream.seek(max(0, size - EDGE_BYTES))
            digest.update(stream.read(EDGE_BYTES))
    return digest.hexdigest()
