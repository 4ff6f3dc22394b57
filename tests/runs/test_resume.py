"""Resume and kill: the same command continues, nothing is lost, doubled or different but the
times.
"""

from __future__ import annotations

import itertools
import multiprocessing
import re
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import specbench.runs.execution
import specbench.runs.session
import specbench.runs.sources
from builders.resumed import edit_manifest, replay_of, timeless
from builders.runs import execute_job, watch_job
from specbench.commands import run as run_command
from specbench.records.store import MANIFEST, RECORDS, point_latest, read_manifest, read_run
from specbench.types import InputError

LIVE = (
    "model=tiny",
    "method=[pld]",
    "suite.limit=1",
    "decode.max_new_tokens=12",
    "measure=quick",
    "measure.warmup=0",
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory) -> tuple[str, ...]:
    """Settings of a run of seven cases, which loads no model."""
    return *replay_of(tmp_path_factory.mktemp("trace"), 7), "method=[pld]"


@pytest.fixture
def run(replay):
    """Executes in a folder; returns the blocks that were observed."""

    def execute(folder: Path, *overrides: str, stop_after: int | None = None) -> list[int]:
        return [*itertools.chain(*watch_job(folder, *replay, *overrides, stop_after=stop_after))]

    return execute


def timeless_of(folder: Path) -> list:
    return [timeless(record) for record in read_run(folder).records]


def test_the_same_command_goes_on_and_a_finished_run_is_not_run_again(
    run, tmp_path, monkeypatch, capsys
):
    """A price may be set when it is over."""
    run(tmp_path / "whole")
    run(tmp_path / "cut", stop_after=2)
    assert {record.block for record in read_run(tmp_path / "cut").records} == {0, 1}
    assert "continues" not in capsys.readouterr().out
    run(tmp_path / "cut")
    assert re.search(r"continues \S+/cut: 2 of \d+ blocks were there", capsys.readouterr().out)
    cut = read_run(tmp_path / "cut")
    assert timeless_of(tmp_path / "cut") == timeless_of(tmp_path / "whole")
    before = (tmp_path / "cut" / RECORDS).read_bytes()
    monkeypatch.setattr(
        specbench.runs.execution, "set_stage", lambda *_: pytest.fail("loaded the model again")
    )
    run(tmp_path / "cut")
    run(tmp_path / "cut", "report.style=paper")
    assert (tmp_path / "cut" / RECORDS).read_bytes() == before
    after = read_run(tmp_path / "cut")
    assert after.manifest["config"]["report"].pop("style") == "paper"
    assert cut.manifest["config"]["report"].pop("style") == "screen"
    assert after.manifest == cut.manifest


def test_a_failed_case_keeps_its_error_unless_it_is_retried(run, tmp_path, monkeypatch):
    """Earlier records stay; all files are backed up; a second command finds nothing to do."""
    run(tmp_path / "whole")
    answer = specbench.runs.session.decode

    def fails(engine, method, request, clock):
        if type(method).__name__ == "PromptLookup" and request.names[0] == failing:
            raise RuntimeError("the server is gone")
        return answer(engine, method, request, clock)

    failing = next(
        record.case for record in read_run(tmp_path / "whole").records if record.block == 3
    )
    with monkeypatch.context() as broken:
        broken.setattr("specbench.runs.session.decode", fails)
        run(tmp_path / "r")
    before = (tmp_path / "r" / RECORDS).read_bytes()
    assert run(tmp_path / "r") == list(range(7))  # all are done
    assert (tmp_path / "r" / RECORDS).read_bytes() == before
    before_failure = [record for record in read_run(tmp_path / "r").records if record.block < 3]
    assert run(tmp_path / "r", "run.retry=true")[:3] == [0, 1, 2]
    found = read_run(tmp_path / "r").records
    assert timeless_of(tmp_path / "r") == timeless_of(tmp_path / "whole")
    assert found[: len(before_failure)] == before_failure
    assert (tmp_path / "r.old1" / RECORDS).read_bytes() == before
    again = (tmp_path / "r" / RECORDS).read_bytes()
    run(tmp_path / "r", "run.retry=true")
    assert (tmp_path / "r" / RECORDS).read_bytes() == again
    assert not (tmp_path / "r.old2").exists()


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda sheet: sheet["model"].update(fingerprint="other"), "another weights"),
        (lambda sheet: sheet["suite"].update(sha256="other"), "another suite file"),
        (lambda sheet: sheet.update(engine="fast"), "engine is 'fast', here it is "),
        (lambda sheet: sheet.update(forward="fused"), "forward is 'fused', here it is "),
    ],
)
def test_a_run_does_not_go_on_with_other_inputs_or_what_auto_chose_otherwise(
    run, tmp_path, edit, what
):
    run(tmp_path / "r", stop_after=1)
    edit_manifest(tmp_path / "r", edit)
    with pytest.raises(InputError, match=what):
        run(tmp_path / "r")


def test_a_run_does_not_go_on_under_another_template(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    given = (*LIVE, f"model.template={template}", "suite.first=1", "method=[]")
    watch_job(tmp_path / "r", *given)
    template.write_text("{% for m in messages %}{{ m.content }}! {% endfor %}")
    with pytest.raises(InputError, match="another chat template"):
        watch_job(tmp_path / "r", *given)


def test_latest_points_to_no_run_that_was_refused(run, tmp_path, monkeypatch):
    (tmp_path / "refused").mkdir()
    (tmp_path / "latest").symlink_to("refused")  # as an earlier version left it

    def refuse(*_):
        raise InputError("method.pld: cannot be bound")

    with monkeypatch.context() as patch:
        patch.setattr(specbench.runs.execution, "set_stage", refuse)
        with pytest.raises(InputError, match="cannot be bound"):
            run(tmp_path / "r")
    assert (tmp_path / "latest").readlink() == Path("refused")
    run(tmp_path / "r")
    assert (tmp_path / "latest").readlink() == Path("r")


@pytest.mark.parametrize("kind", ["folder", "link to another place"])
def test_latest_of_somebody_else_stays(tmp_path, kind):
    (tmp_path / "other" / "place").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    latest = tmp_path / "runs" / "latest"
    latest.mkdir() if kind == "folder" else latest.symlink_to(tmp_path / "other" / "place")
    point_latest(tmp_path / "runs" / "r")
    assert latest.resolve() == (latest if kind == "folder" else tmp_path / "other" / "place")


def test_fresh_keeps_the_old_run_aside_also_if_only_a_manifest_of_another_run_is_left(
    run, tmp_path
):
    for name in ("r", "other"):
        (tmp_path / name).mkdir()
    run(tmp_path / "r")
    (tmp_path / "other" / MANIFEST).write_text('{"config_hash": "other"}')
    for name in ("r", "other"):
        run(tmp_path / name, "measure.fresh=true")
    assert len(read_run(tmp_path / "r.old1").records) == len(read_run(tmp_path / "r").records)
    assert (tmp_path / "other.old1" / MANIFEST).exists()


def test_two_processes_do_not_share_a_directory(run, tmp_path):
    (tmp_path / "r").mkdir()
    with FileLock(tmp_path / "r" / ".lock"), pytest.raises(InputError, match="another process"):
        run(tmp_path / "r")
    run(tmp_path / "r")


def test_threads_are_this_runs_only(tmp_path, monkeypatch):
    """One inside of the run, whose decoding several would slow down here, and as many as before
    behind it.
    """
    before, seen = torch.get_num_threads(), []
    load = specbench.runs.sources.load_model

    def watched(*given, **options):
        seen.append(torch.get_num_threads())
        return load(*given, **options)

    monkeypatch.setattr(specbench.runs.sources, "load_model", watched)
    torch.set_num_threads(before + 1)
    try:
        watch_job(tmp_path / "r", *LIVE, f"model.threads={before}", "suite.first=1")
        assert (seen, torch.get_num_threads()) == ([before], before + 1)
    finally:
        torch.set_num_threads(before)


def test_manifest_keeps_every_process_of_a_resumed_run(run, tmp_path):
    run(tmp_path / "r", stop_after=1)
    created = read_manifest(tmp_path / "r").created

    def edit(manifest):
        manifest["processes"][0]["git"]["commit"] = "0" * 40
        manifest["warnings"].append("an earlier warning")

    edit_manifest(tmp_path / "r", edit)
    run(tmp_path / "r")
    manifest = read_manifest(tmp_path / "r")
    assert (manifest.created, len(manifest.processes)) == (created, 2)
    assert "an earlier warning" in manifest.warnings
    assert any("resumed on other commits" in warning for warning in manifest.warnings)


def test_state_that_outlives_cases_starts_its_span_again(run, tmp_path, caplog):
    run(tmp_path / "r", "method.pld.reset=never", stop_after=3)
    seen = run(tmp_path / "r", "method.pld.reset=never")
    assert seen[0] == 0
    assert "run again" in caplog.text
    records = read_run(tmp_path / "r").records
    assert len({(record.case, record.method) for record in records}) == len(records)


def work(command: list[str]) -> None:
    """The process of a command."""
    sys.exit(run_command.main(command[1:]))


def begin(command: list[str]) -> BaseProcess:
    """A command in a process of its own, which a server forks: no import takes its time."""
    process = multiprocessing.get_context("forkserver").Process(target=work, args=(command,))
    process.start()
    return process


@pytest.mark.slow
def test_kill_at_two_moments(tmp_path):
    """SIGKILL of the real command: while loading, and after some blocks."""
    folder, settings = tmp_path / "killed", (*LIVE, "suite.first=4", "engine=eager")
    whole = execute_job(tmp_path / "whole", *settings)
    for wanted in (0, len(whole) // 2):
        process = begin(["specbench", *settings, f"hydra.run.dir={folder}"])
        deadline = time.monotonic() + 120
        seen = folder / (RECORDS if wanted else ".lock")
        while time.monotonic() < deadline and process.is_alive():
            if seen.exists() and seen.read_bytes().count(b"\n") >= wanted:
                break
            time.sleep(0.005)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    killed = execute_job(folder, *settings)
    assert len(read_manifest(folder).processes) >= 2
    assert [timeless(record) for record in killed] == [timeless(record) for record in whole]
