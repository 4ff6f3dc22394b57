"""The check of the fast engine on a device: runs anywhere, imports little, and its verdicts follow its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from methods.pld import PromptLookup
from methods.vanilla import Vanilla
from specbench.bench.engine_check import equality
from specbench.bench.goals import Goal, goals_text
from specbench.target.fast import compact

ROOT = Path(__file__).parents[2]


def test_verdicts():
    assert [Goal("x", value, 1.33, 1.18).verdict for value in (1.1, 1.2, 1.4)] == ["stretch", "met", "missed"]
    assert [Goal("x", value, 3, 5, least=True).verdict for value in (6, 4, 2)] == ["stretch", "met", "missed"]
    assert Goal("x", None, 1).verdict == Goal("x", 1.0).verdict == ""
    text = goals_text([Goal("time", 2.0, 1.33, 1.18, unit="ms"), Goal("memory", None, 0, unit="bytes")])
    assert "| time | 2 ms | \N{LESS-THAN OR EQUAL TO} 1.33 |" in text
    assert "missed |" in text


def test_an_engine_that_forgets_to_rotate_is_found(monkeypatch):
    """The wrong variant must fail the check: here by the check of the engine itself, before any request."""
    methods = {"vanilla": Vanilla(), "pld": PromptLookup()}
    cpu = torch.device("cpu")
    assert [goal.verdict for goal in equality(methods, cpu)] == ["met", "met"]
    build = compact.CompactModel._rotary
    monkeypatch.setattr(compact.CompactModel, "_rotary", lambda *given: tuple(x * 0.9 for x in build(*given)))
    with pytest.raises(ValueError, match="does not see a draft tree"):
        equality(methods, cpu)


@pytest.mark.exhaustive
def test_script_runs_without_the_harness_shell(tmp_path):
    """Neither hydra nor fastchat nor datasets is there: a machine with torch, transformers and pydantic will do."""
    for name in ("hydra", "omegaconf", "fastchat", "datasets", "pandas", "matplotlib"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on this machine')")
    out = tmp_path / "check.json"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "scripts/gpu_check.py", "--shape", "small", "--tokens", "16", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    goals = {goal["name"]: goal for goal in json.loads(out.read_text())["goals"]}
    assert goals["float32 ids that part, of 80 requests"]["value"] == 0
    assert goals["T(64) over its bound, context 512"]["value"] > 0.5
    assert "| figure | measured |" in done.stdout
