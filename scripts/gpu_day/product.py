"""Run the commands of a user: a latency profile, and methods of each kind on the bundled model, widened to a 7B."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.gpu_day.day import Day, Section
from scripts.gpu_day.truth import missing_packages
from specbench.records.record import OVERALL

FED = "1,2,4,8,16,32,64,96,128"
ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("method", "mat", "tokens_per_s", "speedup", "speedup_low", "speedup_high", "time_only_speedup",
           "predicted_speedup", "efficiency", "time_only_step_ms", "draft_ms", "forward_ms", "errors")  # fmt: skip
METHODS = "pld,suffix_decoding,token_recycling,speculative_sampling,eagle,eagle3,p_eagle,pard,mtp,hf_generate"


def call(day: Day, *command: str) -> str:
    """Run a command of the package; returns its output. Raises RuntimeError with the end of stderr if it fails."""
    if missing := missing_packages():
        raise RuntimeError(f"packages missing: {', '.join(missing)}; carry their wheels, or pip install -e .")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=day.out, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def specbench(day: Day, folder: str, *overrides: str) -> list[dict[str, Any]]:
    """Run ``specbench`` into a folder of the day, or resume it; returns the summary's rows over all categories.

    The rows have the columns that are not blank.
    """
    device = f"model.device={day.device.type}"
    call(day, "-m", "specbench", device, *overrides, f"hydra.run.dir={day.out / folder}", "report.plots=false")
    with (day.out / folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] == OVERALL]
    chosen = [name for name in COLUMNS if any(row[name] for row in rows)]
    return [{name: float(row[name]) if re.fullmatch(r"[-+.\de]+", row[name]) else row[name] for name in chosen}
            for row in rows]  # fmt: skip


def few(day: Day) -> list[str]:
    """Return the settings that limit cases and tokens."""
    small = ["suite.first=2", "decode.max_new_tokens=12"] if day.rehearse else ["decode.max_new_tokens=128"]
    return ["suite.limit=1", "measure=quick", *small]


def target(day: Day) -> list[str]:
    """Return the settings of the bundled model with the shape of a 7B, or of a small one."""
    return ["model=tiny_25m" if day.rehearse else "model=tiny_7b", "engine.max_nodes=128"]


def profile_latency(day: Day) -> str:
    """Measure the latency profile of the 7B shape; returns its table."""
    size = ["--fed", "1,4", "--contexts", "25", "--rounds", "2"] if day.rehearse else ["--fed", FED]
    device = f"model.device={day.device.type}"
    return call(day, "-m", "specbench", "profile", *target(day), device, *size, "--out", str(day.out / "profiles"))


def compare_methods(day: Day) -> list[dict[str, Any]]:
    """Compare methods at the cost of a 7B, with the acceptance of trained drafters, which are widened too."""
    methods = "pld,speculative_sampling,eagle3" if day.rehearse else METHODS
    return specbench(day, "compared", *target(day), f"method=[{methods}]", *few(day))


SECTIONS: list[tuple[str, Section]] = [
    ("profile", profile_latency),
    ("methods", compare_methods),
]
