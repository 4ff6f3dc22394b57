"""A GPU day, rehearsed: every section runs anywhere, imports little, and verdicts follow their figures."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from builders.runs import run_main
from methods.pld import PromptLookup
from methods.vanilla import Vanilla
from scripts.gpu_day import product, truth
from scripts.gpu_day.day import Day, Goal, describe
from scripts.gpu_day.truth import equality
from specbench import commands
from specbench.advise import latency
from specbench.models.fast import compact

ROOT = Path(__file__).parents[2]


def test_verdicts():
    assert [Goal("x", value, 1.33, 1.18).verdict for value in (1.1, 1.2, 1.4)] == ["stretch", "met", "missed"]
    assert [Goal("x", value, 3, 5, least=True).verdict for value in (6, 4, 2)] == ["stretch", "met", "missed"]
    assert Goal("x", None, 1).verdict == Goal("x", 1.0).verdict == ""
    goals = [Goal("time", 2.0, 1.33, 1.18, unit="ms"), Goal("memory", None, 0, unit="bytes")]
    text = describe({"result": goals})
    assert "| time | 2 ms | \N{LESS-THAN OR EQUAL TO} 1.33 |" in text
    assert "missed |" in text


def test_an_engine_that_forgets_to_rotate_is_found(monkeypatch):
    """The wrong variant must fail the check: here by the check of the engine itself, before any request."""
    methods = {"vanilla": Vanilla(), "pld": PromptLookup()}
    cpu = torch.device("cpu")
    monkeypatch.setattr(truth, "FAMILIES", {"llama": ("llama", {})})  # the rehearsal below has them all
    assert [goal.verdict for goal in equality(methods, cpu, cases=1)] == ["met", "met"]
    build = compact.CompactModel._rotary
    monkeypatch.setattr(compact.CompactModel, "_rotary", lambda *given: tuple(x * 0.9 for x in build(*given)))
    with pytest.raises(ValueError, match="does not see a draft tree"):
        equality(methods, cpu, cases=1)


def day(*arguments: object, out: Path, hidden: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """``python scripts/gpu_day ARGUMENTS --rehearse``, from a checkout. hidden: packages that are not there."""
    for name in hidden:
        (out.parent / f"{name}.py").write_text("raise ImportError('not on this machine')")
    environment = os.environ | {"PYTHONPATH": str(out.parent), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "gpu_day"), *map(str, arguments), "--out", str(out), "--rehearse"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=out.parent, env=environment)


def results(out: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*-*.json")}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_section_is_rehearsed_without_the_shell_of_the_harness(tmp_path):
    """Neither hydra nor fastchat nor datasets is there: a machine with torch and transformers will do for two calls."""
    shell = ("hydra", "omegaconf", "fastchat", "datasets", "pandas", "matplotlib")
    done = day("truth", "engine", out=tmp_path / "day", hidden=shell)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(tmp_path / "day")
    assert len(found) == 17
    goals = {goal["name"]: goal["value"] for goal in found["truth-ids"]["result"] + found["truth-memory"]["result"]}
    assert goals["float32 ids that differ, of 10 requests"] == 0
    assert goals["ids that differ after a request without memory"] == 0
    assert found["engine-forwards"]["result"][4]["value"] > 0.5
    assert "| figure | measured |" in (tmp_path / "day" / "engine.md").read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_product_is_rehearsed(tmp_path, monkeypatch):
    """The commands of the last section are processes of their own; the others run in this one, without its imports."""
    today = Day(tmp_path / "day", True, 9)

    def call(day, *command: str) -> str:
        with contextlib.chdir(day.out):
            done = run_main(commands.main, *command[2:])
        assert done.returncode == 0, done.stderr
        return done.stdout

    with monkeypatch.context() as patch:
        patch.setattr(product, "call", call)
        patch.setitem(latency.BYTES, "cpu", today.buffer_bytes)
        assert today.run("product", product.SECTIONS[:-1], [])
    assert today.run("product", product.SECTIONS[-1:], [])
    found = results(tmp_path / "day")
    assert not [section["error"] for section in found.values() if "error" in section]
    rows = {row["method"]: row for row in found["product-methods"]["result"]}
    assert set(rows) == {"vanilla", "pld", "speculative_sampling", "eagle3"}
    assert min(rows[name]["mat"] for name in ("speculative_sampling", "eagle3")) > 1.5  # of trained drafters
    assert 0.2 < rows["pld"]["predicted_speedup"] < 5  # by the profile of the section before


def test_a_section_that_fails_does_not_stop_the_others(tmp_path, capsys):
    def fail(day):
        raise RuntimeError("an illegal memory access")

    today = Day(tmp_path, True, 9)
    assert not today.run("call", [("first", fail), ("second", lambda day: [Goal("x", 1.0, 2)])], [])
    found = results(tmp_path)
    assert found["call-first"]["error"] == "RuntimeError: an illegal memory access"
    assert found["call-second"]["result"][0]["verdict"] == "met"
    assert "failed: RuntimeError: an illegal memory access" in capsys.readouterr().out
    late = Day(tmp_path / "late", True, -1)
    assert late.run("call", [("first", fail)], [])
    assert results(tmp_path / "late")["call-first"]["left_out"] == "-1 minutes were over"
    assert today.run("call", [("first", fail), ("second", lambda day: "x")], ["second"])
