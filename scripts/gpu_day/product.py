"""Run the commands of a user: a latency profile, and methods of each kind on the bundled model, widened to a 7B."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.gpu_day.call import Section
from scripts.gpu_day.day import Day, Goal, Row
from scripts.gpu_day.truth import MACHINE
from specbench.records.record import OVERALL

FED = "1,2,4,8,16,32,64,96,128"
ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("method", "mat", "tokens_per_s", "speedup", "speedup_low", "speedup_high", "time_only_speedup",
           "predicted_speedup", "efficiency", "time_only_step_ms", "draft_ms", "forward_ms", "errors")  # fmt: skip
METHODS = "pld,suffix_decoding,token_recycling,speculative_sampling,eagle,eagle3,p_eagle,pard,mtp,hf_generate"
REPORT_S = 40  # kept for the report of a run that is ended


def call(day: Day, *command: str, left_s: float | None = None) -> str:
    """Run a command of the package; returns its output.

    Raises RuntimeError with the end of stderr if it fails, and TimeoutExpired after ``left_s``, by default a little
    less than the section has.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *command], cwd=day.work, env=environment, capture_output=True, text=True,
        timeout=day.left_s - 5 if left_s is None else left_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"specbench {' '.join(command[:2])}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def target(day: Day) -> list[str]:
    """Return the settings of the bundled model with the shape of a 7B, or of a small one."""
    model = "tiny_25m" if day.rehearse else "tiny_7b"
    return [f"model={model}", "engine.max_nodes=128", f"model.device={day.device.type}"]


def profile_latency(day: Day) -> Iterator[Row]:
    """Measure the latency profile of the 7B shape; its table."""
    size = ["--fed", "1,4", "--contexts", "25", "--rounds", "2"] if day.rehearse else ["--fed", FED]
    yield call(day, "profile", *target(day), *size, "--out", str(day.work / "profiles"))


def compare_methods(day: Day) -> Iterator[Row]:
    """Compare methods at the cost of a 7B, with the acceptance of trained drafters, which are widened too.

    A run that is ended at its time is reported by the blocks that it has.
    """
    methods, folder = "pld,speculative_sampling,eagle3" if day.rehearse else METHODS, day.work / "compared"
    small = ["suite.first=2", "decode.max_new_tokens=12"] if day.rehearse else ["decode.max_new_tokens=128"]
    limits = ["suite.limit=1", "measure=quick", *small, f"hydra.run.dir={folder}", "report.plots=false"]
    try:
        call(day, *target(day), f"method=[{methods}]", *limits, left_s=day.left_s - REPORT_S)
    except subprocess.TimeoutExpired as error:
        yield f"ended after {error.timeout:.0f} s; the figures are of the blocks until then"
        call(day, "report", str(folder), "--no-plots")
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] == OVERALL]
    chosen = [name for name in COLUMNS if any(row[name] for row in rows)]
    for row in rows:
        figures = {name: float(row[name]) if re.fullmatch(r"[-+.\de]+", row[name]) else row[name] for name in chosen}
        yield figures
        speedup, predicted = figures.get("speedup"), figures.get("predicted_speedup")
        if isinstance(speedup, float) and isinstance(predicted, float) and row["method"] != "vanilla":
            name = f"{row['method']}: speedup over the predicted one"
            yield Goal(name, speedup / predicted, 0.95, 0.98, least=True)


SECTIONS = [
    MACHINE,
    Section("profile", profile_latency, 90, "profile"),
    Section("methods", compare_methods, 240, "methods"),
]
