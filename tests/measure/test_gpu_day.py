"""A GPU day, rehearsed: every section runs anywhere, a fault costs one section, and verdicts follow their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from methods.pld import PromptLookup
from methods.vanilla import Vanilla
from scripts.gpu_day import call as calls
from scripts.gpu_day import engine, product, truth, wheels
from scripts.gpu_day.call import Call, Section, pack, select
from scripts.gpu_day.day import Day, Goal, describe
from scripts.gpu_day.truth import equality
from specbench.models.fast import compact

ROOT = Path(__file__).parents[2]
CHECKS = {"check-triton", "check-fused"}
CALLS = {"truth": truth.SECTIONS, "engine": engine.SECTIONS, "product": product.SECTIONS}


def test_verdicts():
    assert [Goal("x", value, 1.33, 1.18).verdict for value in (1.1, 1.2, 1.4)] == ["stretch", "met", "missed"]
    assert [Goal("x", value, 3, 5, least=True).verdict for value in (6, 4, 2)] == ["stretch", "met", "missed"]
    assert [Goal("x", value, 1).verdict for value in (None, "error", float("nan"))] == ["", "failed", "missed"]
    goals = [Goal("time", 2.0, 1.33, 1.18, unit="ms"), Goal("memory", None, 0, unit="bytes")]
    text = describe([*goals, {"rows": 8, "us": 1.5}, {"rows": 64, "us": "a | b"}])
    assert "| time | 2 ms | \N{LESS-THAN OR EQUAL TO} 1.33 |" in text
    assert "missed |" in text
    assert "| 64 | a / b |" in text


def test_an_engine_that_forgets_to_rotate_is_found(monkeypatch):
    """The wrong variant must fail the check: here by the check of the engine itself, before any request."""
    given = (["llama"], {"vanilla": Vanilla(), "pld": PromptLookup()}, torch.device("cpu"), 1, "sdpa", 7)
    assert [goal.verdict for goal in equality(*given)] == ["met"] * 3
    build = compact.CompactModel._rotary
    monkeypatch.setattr(compact.CompactModel, "_rotary", lambda *given: tuple(x * 0.9 for x in build(*given)))
    with pytest.raises(ValueError, match="does not see a draft tree"):
        list(equality(*given))


@pytest.mark.slow
def test_a_batch_that_does_not_move_what_it_accepted_is_found(monkeypatch):
    """In Triton's interpreter; requests of their own do not use this kernel."""
    packed_rows = pytest.importorskip("specbench.models.fast.kernels.packed_rows", exc_type=ImportError)

    class Nothing:
        def __getitem__(self, grid):
            return lambda *given, **named: None

    monkeypatch.setattr(packed_rows, "move_rows", Nothing())
    goals = list(equality(["llama"], {"vanilla": Vanilla()}, torch.device("cpu"), 1, "triton", 7))
    assert [goal.verdict for goal in goals] == ["met", "missed", "met"]


def read_results(out: Path, name: str) -> dict[str, dict]:
    """The section files of a call's archive."""
    with tarfile.open(out / f"{name}.tar.gz") as archive:
        found = [
            json.load(archive.extractfile(each))
            for each in archive
            if each.name.endswith(".json") and "/" not in each.name
        ]
    return {each["section"]: each for each in found}


def run(tmp_path: Path, *sections: Section, minutes: float = 9) -> tuple[bool, dict[str, dict]]:
    good = Call("call", sections, tmp_path / "out", tmp_path / "work", minutes, True).run()
    return good, read_results(tmp_path / "out", "call")


def measure(day: Day):
    yield Goal("x", 1.0, 2)


def measure_and(fault):
    def measured(day: Day):
        yield Goal("before", 1.0, 2)
        fault(day)
        yield Goal("after", 1.0, 2)

    return measured


def fail(day: Day) -> None:
    raise RuntimeError("an illegal memory access")


FAULTS = {
    "raises": (fail, "RuntimeError: an illegal memory access"),
    "dies": (lambda day: os._exit(1), "its process ended with exit code 1"),
    "is killed": (lambda day: os.abort(), "its process ended with exit code -6"),
    "hangs": (lambda day: time.sleep(600), "did not end in time"),
    "exits": (lambda day: sys.exit(3), "its process ended with exit code 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_one_section_from_that_row_on(tmp_path, fault, monkeypatch, capfd):
    monkeypatch.setattr(Section, "limit_s", 5.0 if fault == "hangs" else 60.0)
    call, message = FAULTS[fault]
    good, found = run(
        tmp_path, Section("first", measure, 1), Section("bad", measure_and(call), 1), Section("last", measure, 1)
    )
    assert not good
    assert [found[name]["rows"][0]["verdict"] for name in ("first", "last")] == ["met", "met"]
    assert [row["name"] for row in found["bad"]["rows"]] == ["before"]
    assert found["bad"]["error"].startswith(message)
    assert ("test_gpu_day.py" in found["bad"]["error"]) == (fault in ("hangs", "is killed"))  # where it was
    text = (tmp_path / "out" / "call.md").read_text()
    assert f"failed: {message}" in text
    assert text.count("met |") == 6  # in the table of the goals, and of each section


def test_what_a_hanging_section_started_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Section, "limit_s", 5.0)

    def hang(day: Day):
        child = subprocess.Popen(["sleep", "600"])
        yield {"pid": child.pid}
        child.wait()

    _, found = run(tmp_path, Section("bad", hang, 1))
    state = Path(f"/proc/{found['bad']['rows'][0]['pid']}/stat")
    for _ in range(100):  # a killed process may still have to be run once
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail(state.read_text())


def test_an_error_that_ends_the_device_s_context_ends_the_process(tmp_path, monkeypatch):
    """The next section has a new process, where the device works again."""

    def lose(day: Day):
        monkeypatch.setattr(Day, "synchronize", fail)
        yield {"cell": day.attempt(lambda: fail(day))}

    def look(day: Day):
        yield {"works": Day.synchronize is not fail}

    good, found = run(tmp_path, Section("bad", lose, 1), Section("last", look, 1))
    assert not good
    assert found["bad"]["rows"] == []
    assert found["last"]["rows"] == [{"works": True}]


def test_a_cell_that_raises_is_one_cell(tmp_path):
    def table(day: Day):
        for call in (lambda: 1.0, lambda: fail(day), lambda: 2.0):
            yield {"us": day.attempt(call)}

    good, found = run(tmp_path, Section("table", table, 1))
    assert good
    assert [row["us"] for row in found["table"]["rows"]] == [1.0, "RuntimeError: an illegal memory access", 2.0]


@pytest.mark.parametrize("verdict", [0.5, 2.0, float("nan"), "raised"])
def test_what_a_check_found_wrong_is_not_timed(tmp_path, verdict):
    def check(day: Day):
        yield Goal("error", verdict, 1)

    _, found = run(tmp_path, Section("check", check, 1, "check"), Section("timed", measure, 1, needs=("check",)))
    assert bool(found["timed"]["rows"]) == (verdict == 0.5)
    assert found["timed"]["left_out"] == ("" if verdict == 0.5 else "check found a fault")


def test_a_call_ends_in_its_minutes(tmp_path):
    """What would not end is left out, and a section gets no more than what is left of the call."""

    def sleep(day: Day):
        yield {"left": day.left_s}
        time.sleep(600)

    start = time.monotonic()
    good, found = run(
        tmp_path, Section("long", measure, 60), Section("short", sleep, 0), Section("last", measure, 1), minutes=0.05
    )
    assert time.monotonic() - start < 30
    assert not good
    assert found["long"]["left_out"].startswith("takes 60 s")
    assert found["short"]["rows"][0]["left"] <= 3
    assert found["last"]["left_out"]


def test_the_plan_fits_and_checks_come_before_what_they_check():
    for name, sections in CALLS.items():
        names = [section.name for section in sections]
        assert sum(section.estimate_s for section in sections) <= 9 * 60, name
        assert all(names.index(need) < number for number, each in enumerate(sections) for need in each.needs)
    assert [each.name for each in select(engine.SECTIONS, ["fused"])] == ["check-triton", "check-fused", "fused"]
    assert engine.SECTIONS[-1].name == "compiled"
    for way in ("triton", "fused"):  # batches come last, so that a fault of theirs costs nothing else
        assert [each.name for each in engine.SECTIONS if each.process == way] == [way, f"batches-{way}"]
    assert [each.name for each in engine.SECTIONS if each.process == "compiled"] == ["compiled"]


def test_an_archive_is_bounded_and_without_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "ARCHIVE_BYTES", 3000)
    for name, size in (("a.json", 1000), ("runs/b.jsonl", 1500), ("large.csv", 2000), ("model.safetensors", 10)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(size))
    archive, left_out = pack(tmp_path)
    (tmp_path / "packed").write_bytes(archive)
    with tarfile.open(tmp_path / "packed") as opened:
        assert sorted(opened.getnames()) == ["a.json", "runs/b.jsonl"]
    assert left_out == ["large.csv"]


def day(
    *arguments: object, out: Path, hidden: Sequence[str] = (), planted: str = ""
) -> subprocess.CompletedProcess[str]:
    """``python scripts/gpu_day ARGUMENTS --out OUT``, from a checkout. hidden: packages that are not there.

    planted: source that runs first in every process, before anything is imported.
    """
    out.parent.mkdir(exist_ok=True)
    for name in hidden:
        (out.parent / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}')")
    (out.parent / "sitecustomize.py").write_text(planted)
    environment = os.environ | {"PYTHONPATH": str(out.parent), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "gpu_day"), *map(str, arguments), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=out.parent, env=environment)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_missing_wheel_is_named(tmp_path):
    done = day("check", out=tmp_path / "day", hidden=["hydra", "fastchat"])
    assert done.returncode == 1
    assert "missing: hydra: No module named hydra" in done.stdout
    assert "missing: fastchat.conversation: No module named fastchat" in done.stdout


def test_the_check_imports_what_functions_import():
    listed = [*wheels.list_imports()]
    assert ("triton.language.extra.cuda", "gdc_wait") in listed
    found = {module for module, _ in listed}
    assert {"hydra", "omegaconf", "fastchat.conversation", "datasets", "pydivsufsort", "triton"} <= found
    assert not {name.split(".")[0] for name in found} & {"specbench", "mlflow", "json"}


def test_wheels_are_pinned():
    names = dict(line.split("==") for line in wheels.LIST.read_text().split())
    assert tuple(map(int, names["omegaconf"].split(".")[:2])) < (2, 4)  # hydra's
    assert {
        "hydra-core",
        "antlr4-python3-runtime",
        "fschat",
        "datasets",
        "dill",
        "multiprocess",
        "pydantic-core",
    } <= set(names)


def test_a_name_that_an_old_version_lacks_is_named(monkeypatch):
    monkeypatch.setattr(
        wheels, "list_imports", lambda: iter([("json", "loads"), ("json", "decoder"), ("json", "gone")])
    )
    assert wheels.list_missing() == ["json: No module named 'json.gone'"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_importing_the_calls_asks_no_gpu():
    """A parent that has asked CUDA anything leaves forked children without it."""
    source = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import torch
def refuse(*_): raise SystemExit('asked')
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = refuse
import scripts.gpu_day.truth, scripts.gpu_day.engine, scripts.gpu_day.product
"""
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


PLANTED = """
import importlib.util, os, sys, time
from dataclasses import replace

def shorten(module):
    launch = module.launch
    def wrong(query, keys, values, mask, *rest):
        return launch(query, keys, values, replace(mask, cached=(mask.cached - 1).clamp(0)), *rest)
    module.launch = wrong

def break_sections(module):
    def die(day):
        os._exit(1)
        yield
    def sleep(day):
        time.sleep(600)
        yield
    faults = {"waiting": {"measure": die}, "steady": {"measure": sleep, "estimate_s": -14}}  # its limit is 2 s
    module.SECTIONS[:] = [replace(each, **faults.get(each.name, {})) for each in module.SECTIONS]

PLANTS = {"specbench.models.fast.kernels.tree_attention": shorten} if "truth" in sys.orig_argv else {
    "scripts.gpu_day.engine": break_sections}

class Finder:
    def find_spec(self, name, path=None, target=None):
        if plant := PLANTS.pop(name, None):
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), plant(module))
            return spec

sys.meta_path.insert(0, Finder())
"""
SHELL = ("hydra", "omegaconf", "fastchat", "datasets", "pandas", "matplotlib")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_planted_wrong_kernel_is_not_timed_and_all_else_is(tmp_path):
    """Without the shell of the harness: neither hydra nor fastchat nor datasets is there."""
    out = tmp_path / "day"
    done = day("truth", "--rehearse", out=out, hidden=SHELL, planted=PLANTED)
    assert sorted(path.name for path in out.iterdir()) == ["truth.md", "truth.tar.gz"]
    found = read_results(out, "truth")
    assert set(found) == {section.name for section in truth.SECTIONS}
    assert {each["section"] for each in found.values() if each["error"]} == CHECKS, done.stdout
    assert {each["section"] for each in found.values() if each["left_out"]} == {"kernels-triton"}
    assert "missed" in {row["verdict"] for row in found["check-triton"]["rows"]}
    assert "does not see a draft tree" in found["check-fused"]["error"]  # by the same attention
    goals = {row["name"]: row["value"] for row in found["ids"]["rows"]}
    assert goals["float32 ids by sdpa that differ from the eager engine's, of 2 requests"] == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_right_kernels_are_timed_next_to_a_planted_dead_and_an_endless_section(tmp_path):
    out = tmp_path / "day"
    done = day("engine", "--rehearse", out=out, hidden=SHELL, planted=PLANTED)
    found = read_results(out, "engine")
    assert set(found) == {section.name for section in engine.SECTIONS}
    errors = {each["section"]: each["error"] for each in found.values() if each["error"]}
    assert set(errors) == {"waiting", "steady"}, done.stdout
    assert errors["waiting"].startswith("its process ended with exit code 1")
    assert errors["steady"].startswith("did not end in time")
    assert not [each["section"] for each in found.values() if each["left_out"]]
    for way in ("triton", "fused"):
        rows = {row["name"]: row for name in (way, f"batches-{way}") for row in found[name]["rows"]}
        assert rows["T(8), context 64"]["value"] > 0
        assert rows[f"1 requests of 8 rows: a step by {way}"]["value"] > 0
    assert "| figure | measured |" in (out / "engine.md").read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_product_is_rehearsed(tmp_path):
    done = day("product", "--rehearse", out=tmp_path / "day")
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_results(tmp_path / "day", "product")
    rows = {row["method"]: row for row in found["methods"]["rows"] if "method" in row}
    assert set(rows) == {"vanilla", "pld", "speculative_sampling", "eagle3"}
    assert min(rows[name]["mat"] for name in ("speculative_sampling", "eagle3")) > 1.5  # of trained drafters
    goals = {row["name"]: row["value"] for row in found["methods"]["rows"] if "method" not in row}
    assert 0.2 < goals["pld: speedup over the predicted one"] < 5  # by the profile of the section before
