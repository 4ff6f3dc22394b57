"""The description of a GPU in a manifest: its driver's settings if they can be read, else
nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specbench.measure import environment

SMI = """#!/bin/sh
[ "$1" = --id=GPU-ab ] || exit 6
[ "$2" = --query-gpu=driver_version,power.limit,clocks.sm,clocks.max.sm,clocks.mem ] || exit 2
[ "$3" = --format=csv,noheader,nounits ] || exit 3
echo "580.65.06, 700.00, 345, 1980, [N/A]"
"""
SIZE = {"name": "GPU 1", "memory_bytes": 1 << 30, "sms": 132}


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A machine with one GPU, and the file that answers for its driver."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = SimpleNamespace(
        name="GPU 1", total_memory=1 << 30, multi_processor_count=132, uuid="ab"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "nvidia-smi"
    file.write_text(SMI)
    file.chmod(0o755)
    return file


def test_the_drivers_settings(smi):
    assert environment.machine()["gpus"] == [
        SIZE
        | {"driver": "580.65.06", "power_limit_w": "700.00", "sm_clock_mhz": "345"}
        | {"sm_clock_most_mhz": "1980", "memory_clock_mhz": "[N/A]"}
    ]


@pytest.mark.parametrize("state", ["fails", "is not there", "hangs"])
def test_a_driver_that_cannot_be_asked_leaves_them_out(smi, state, monkeypatch):
    if state == "is not there":
        monkeypatch.setenv("PATH", "")
    elif state == "fails":
        smi.write_text("#!/bin/sh\nexit 9\n")
    else:
        smi.write_text("#!/bin/sh\nsleep 9\n")
        monkeypatch.setattr(environment, "PATIENCE_S", 0.05)
    assert environment.machine()["gpus"] == [SIZE]
