"""Run the commands of a user: a latency profile, a timed run with its prediction, a draft model, heads."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from scripts.gpu_day.day import SHAPE_SMALL, Day, Section
from scripts.gpu_day.truth import missing_packages
from scripts.lab.materials import random_model
from specbench.models.load import ASSETS
from specbench.records.record import OVERALL

FED = "1,2,4,8,16,32,64,96,128"
ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("method", "mat", "tokens_per_s", "speedup", "speedup_low", "speedup_high", "time_only_speedup",
           "predicted_speedup", "efficiency", "time_only_step_ms", "draft_ms", "forward_ms", "errors")  # fmt: skip
DRAFT_1B = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048, "pad_token_id": 0,
}  # fmt: skip


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
    """Return the settings that limit cases and tokens. A timed run has those of its trace."""
    small = ["suite.first=2", "decode.max_new_tokens=12"] if day.rehearse else ["decode.max_new_tokens=128"]
    return ["suite.limit=1", "measure=quick", *small]


def target(day: Day) -> list[str]:
    """Return the settings of the 7B shape, or of a small one."""
    return ["model=random" if day.rehearse else "model=random_7b", "engine.max_nodes=128"]


def profile_latency(day: Day) -> str:
    """Measure the latency profile of the 7B shape; returns its table."""
    size = ["--fed", "1,4", "--contexts", "25", "--rounds", "2"] if day.rehearse else ["--fed", FED]
    device = f"model.device={day.device.type}"
    return call(day, "-m", "specbench", "profile", *target(day), device, *size, "--out", str(day.out / "profiles"))


def time_a_trace(day: Day) -> list[dict[str, Any]]:
    """Time the 7B shape along the bundled model's answers (``engine=timed``), with predictions by its profile."""
    specbench(day, "trace", "model=tiny", "method=[]", *few(day))
    methods = "method=[pld,sam,token_recycling,cacheback_no_frozen]"
    trace = f"model.trace={day.out / 'trace' / 'records.jsonl'}"
    return specbench(day, "timed", *target(day), "engine=timed", trace, methods)


def draft_with_a_model(day: Day) -> list[dict[str, Any]]:
    """Run speculative sampling with a draft model of 1.1 billion random weights on the target's device."""
    folder = day.out / "draft_1b"
    if not folder.is_dir():
        sizes = {**SHAPE_SMALL, "vocab_size": 4096} if day.rehearse else DRAFT_1B
        random_model("llama", sizes, day.dtype, day.device).save_pretrained(folder)
        AutoTokenizer.from_pretrained(ASSETS / "tiny").save_pretrained(folder)
        if day.device.type == "cuda":
            torch.cuda.empty_cache()
    draft = f"method.speculative_sampling.draft={folder}"
    return specbench(day, "drafted", *target(day), "method=[speculative_sampling]", draft, *few(day))


def draft_with_heads(day: Day) -> list[dict[str, Any]]:
    """Run heads of EAGLE's and Medusa's shapes with random weights, to measure their time, not their acceptance."""
    names = ("eagle", "medusa") if day.rehearse else ("eagle", "eagle3", "medusa")
    heads = [f"model.heads.{name}=random" for name in names]
    methods = "method=[eagle,medusa]" if day.rehearse else "method=[eagle,eagle2,eagle3,medusa]"
    return specbench(day, "heads", *target(day), methods, *heads, *few(day))


SECTIONS: list[tuple[str, Section]] = [
    ("profile", profile_latency),
    ("timed", time_a_trace),
    ("draft_model", draft_with_a_model),
    ("heads", draft_with_heads),
]
