"""One run on several workers: each case once, only what is left, and the same records as of one
process.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builders.resumed import counted, cut_records, replay_of
from builders.runs import execute_job
from specbench.commands import run as run_command
from specbench.records.store import MANIFEST, RECORDS, read_run
from specbench.runs import launch
from specbench.runs.execution import AT, DEATHS
from specbench.screen import DONE, USAGE

METHODS = 2
CASES = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def settings(folder) -> tuple[str, ...]:
    given = replay_of(folder, CASES)
    return *given, "method=[pld]", "measure.keep_trees=3", "report.plots=false"


@pytest.fixture(scope="module")
def single(folder, settings) -> Path:
    execute_job(folder / "single", *settings)
    return folder / "single"


@pytest.fixture
def command(request, settings, tmp_path, monkeypatch):
    """``specbench SETTINGS OVERRIDES`` in ``run``, without a report unless it is tested; its exit
    code.
    """
    if request.function is not test_shards_make_the_single_run:
        monkeypatch.setattr(launch, "_report", lambda *_: DONE)

    def run(*overrides: str) -> int:
        place = [f"hydra.{'sweep' if '-m' in overrides else 'run'}.dir={tmp_path / 'run'}"]
        return run_command.main([*overrides, *settings, *place])

    return run


def test_shards_make_the_single_run(command, single, tmp_path, monkeypatch, capsys):
    """Also more shards than cases; the same command has nothing left to do, with and without the
    shards.
    """
    run = tmp_path / "run"
    assert command("run.shards=9") == 0
    assert sorted(path.name for path in (run / "shards").glob("*-of-*")) == [
        f"{part}-of-5" for part in range(1, 6)
    ]
    assert counted(run) == counted(single)
    merged, whole = (read_run(directory).manifest for directory in (run, single))
    assert merged["config_hash"] == whole["config_hash"]
    assert "Shards of merged runs" in capsys.readouterr().out
    before = (run / RECORDS).stat().st_mtime_ns
    monkeypatch.setattr(launch, "_report", lambda *_: DONE)
    assert command("run.shards=9") == command() == 0
    assert (run / RECORDS).stat().st_mtime_ns == before


def test_the_same_command_does_what_is_left(command, single, tmp_path):
    run = tmp_path / "run"
    assert command("run.shards=2") == 0
    (run / RECORDS).unlink()
    first, second = run / "shards" / "1-of-2", run / "shards" / "2-of-2"
    cut_records(first, 3)
    done = (second / MANIFEST).stat().st_mtime_ns
    assert command("run.shards=2") == 0
    assert counted(run) == counted(single)
    assert (second / MANIFEST).stat().st_mtime_ns == done
    assert len(json.loads((first / MANIFEST).read_text())["processes"]) == 2


@pytest.mark.exhaustive
def test_a_run_is_begun_anew_or_goes_on_as_it_was_begun(command, single, tmp_path, capsys):
    run = tmp_path / "run"
    assert command("run.shards=2") == 0
    (run / RECORDS).unlink()
    assert command("run.shards=3") == USAGE
    assert "has 1-of-2; expected the number of shards" in capsys.readouterr().err
    assert command("run.shards=3", "measure.fresh=true") == 0
    assert (tmp_path / "run.old1" / "shards").is_dir()
    assert counted(run) == counted(single)
    shutil.rmtree(run)
    shutil.copytree(single, run)
    assert command("run.shards=3") == 0
    assert not (run / "shards").exists()


def test_a_part_of_the_suite_in_shards(command, settings, tmp_path):
    execute_job(tmp_path / "half", *settings, "suite.part=2/2")
    assert command("run.shards=2", "suite.part=2/2") == 0
    assert counted(tmp_path / "run") == counted(tmp_path / "half")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["run.shards=0"], "run.shards=0: expected"),
        (["run.shards=2", "method.pld.reset=never"], "method.pld.reset=never learns across cases"),
        (["-m", "run.shards=2", "method.pld.num_draft=2,3"], "a job of a sweep is one worker"),
    ],
)
def test_what_cannot_be_shared_is_refused(given, message, command, tmp_path, capsys):
    assert command(*given) == USAGE
    assert message in capsys.readouterr().err


def test_a_case_that_kills_its_worker_three_times_is_an_error(settings, single, tmp_path):
    """Two deaths are not enough, and an end that is no death is none."""
    run = tmp_path / "run"
    shutil.copytree(single, run)
    for deaths, expected in ((1, "ok"), (2, "error")):
        cut_records(run, 2 * METHODS)
        (run / AT).write_text("2".ljust(12))
        (run / DEATHS).write_text(json.dumps({"2": deaths}))
        records = execute_job(run, *settings)
        assert len(records) == CASES * METHODS
        assert {record.status for record in records if record.case == "2"} == {expected}
        assert {record.status for record in records if record.case != "2"} == {"ok"}
        assert not (run / AT).exists()
        assert not (run / DEATHS).exists()
    assert {record.error["type"] for record in records if record.error} == {"Killed"}
