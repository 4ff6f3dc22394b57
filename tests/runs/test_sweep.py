"""A sweep on a launcher that pickles its jobs: how each ends is known, and the same command takes
them up again.
"""

from __future__ import annotations

import importlib.util
import re
import signal
from dataclasses import replace

import pytest
from hydra._internal.hydra import Hydra

from builders.resumed import replay_of
from builders.runs import composed, execute_job, job_for
from specbench.commands import run as run_command
from specbench.input import InputError
from specbench.records.store import RECORDS
from specbench.runs import sweep
from specbench.runs.execution import execute
from specbench.screen import INTERRUPTED, USAGE

DEADLY = """
import os
from methods.pld import PromptLookup

class Deadly(PromptLookup):
    def __init__(self, num_draft):
        super().__init__(num_draft=num_draft, max_ngram=3)

    def begin(self, prompt, prefill, seed):
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def replay(tmp_path) -> tuple[str, ...]:
    return *replay_of(tmp_path, 6), "method=[pld]", "report.plots=false"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_killed_job_and_a_refused_one_are_a_line_each(replay, tmp_path, monkeypatch, capsys):
    """Each in a process of its own; the first to end does not hide the other."""
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="pip install 'specbench[slurm]'"
    )
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jobs = ["+method.deadly._target_=deadly.Deadly", "+method.deadly.num_draft=3,-5"]
    place = [f"hydra.sweep.dir={tmp_path / 'jobs'}", "hydra/launcher=submitit_local"]
    assert run_command.main(["-m", *replay, *jobs, *place]) == USAGE
    message = capsys.readouterr().out
    assert "failed: +method.deadly.num_draft=3: ended without a result" in message
    assert "failed: +method.deadly.num_draft=-5: method.deadly.num_draft=-5: expected" in message
    assert "2 of 2 jobs failed; the same command takes them up again" in message


@pytest.mark.parametrize("name", ["submitit_slurm", "submitit_local", "joblib", "ray"])
def test_a_launcher_that_is_not_installed_says_how_to_install_it(name, monkeypatch):
    """Ours are files of the configuration, so they can be chosen, and refused, without their
    packages.
    """
    cfg = composed(f"hydra/launcher={name}")
    package = next(
        package for package in sweep.INSTALLED_BY if cfg.hydra.launcher._target_.startswith(package)
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=re.escape(f"{package} is not installed; pip install")):
        sweep.check_launcher(cfg)


@pytest.mark.exhaustive
def test_a_job_says_which_it_is_and_one_that_is_done_is_skipped(replay, tmp_path, capsys):
    place = f"hydra.sweep.dir={tmp_path / 'out'}"
    assert run_command.main(["-m", *replay, "method.pld.num_draft=3", place]) == 0
    assert "skipped" not in capsys.readouterr().out
    assert run_command.main(["-m", *replay, "method.pld.num_draft=3,5", place]) == 0
    first, second = re.split(
        r"^2 of 2: method.pld.num_draft=5$", capsys.readouterr().out, flags=re.MULTILINE
    )
    assert first.startswith("\n1 of 2: method.pld.num_draft=3\n")
    assert "\ncomplete, skipped: " in first
    assert "skipped" not in second
    job, whole = second.split("writing the report of 2 runs")
    assert "tokens/s" not in job  # a sentence; the tables are the sweep's
    assert "tokens fed" in whole
    page = (tmp_path / "out/report/report.html").read_bytes()
    for _ in range(2):  # another sweep in the same folder has its own report, which it finds again
        assert run_command.main(["-m", *replay, "method.pld.max_ngram=1,2", place]) == 0
    assert (tmp_path / "out/report/report.html").read_bytes() == page
    assert len([*(tmp_path / "out").glob("report-*/report.html")]) == 1


def give_up(*given, **named):
    raise RuntimeError("a worker was killed")


def end(*given, **named):
    signal.raise_signal(signal.SIGTERM)
    raise AssertionError("it went on")


@pytest.mark.parametrize(
    ("launch", "code", "message"),
    [
        (give_up, sweep.KILLED, "failed: all jobs: the launcher gave up (RuntimeError)"),
        (end, INTERRUPTED, "interrupted; the same command continues from what is done"),
    ],
)
def test_a_launcher_that_gives_up_and_a_command_that_is_ended(
    launch, code, message, replay, tmp_path, monkeypatch, capsys
):
    """joblib's gives up with its first killed worker."""
    monkeypatch.setattr(Hydra, "multirun", launch)
    place = ["method.pld.num_draft=3,5", f"hydra.sweep.dir={tmp_path / 'jobs'}"]
    assert run_command.main(["-m", *replay, *place]) == code
    printed = capsys.readouterr()
    assert message in printed.out + printed.err


def test_slurm_without_accounts_is_asked_by_its_queue(monkeypatch):
    pytest.importorskip("submitit", reason="pip install 'specbench[slurm]'")
    watcher = sweep._queue_watcher()
    for job in ("7_0", "7_1", "7_2"):
        watcher.register_job(job)
    assert watcher._make_command()[0] == "squeue"
    watcher._info_dict = watcher.read_info(b"7_0|RUNNING|n1\n7_1|FAILED|n2\n")
    assert [watcher.is_done(job, mode="cache") for job in ("7_0", "7_1", "7_2")] == [
        False,
        True,
        True,
    ]


def test_a_job_that_starts_again_keeps_what_it_has_done(replay, tmp_path):
    job = job_for(*replay, "measure.fresh=true")
    for launch in ("a", "a", "b", None, None):
        execute(replace(job, launch=launch), tmp_path / "r", lambda *_: None)
    assert sorted(path.name for path in tmp_path.glob("r.old*")) == ["r.old1", "r.old2", "r.old3"]


def test_kept_trees_are_those_of_the_first_cases_of_the_whole(replay, tmp_path):
    def kept(directory, *overrides: str) -> set[str]:
        records = execute_job(directory, *replay, "measure.keep_trees=3", *overrides)
        assert (directory / RECORDS).is_file()
        return {record.case for record in records if record.turns[0].trees is not None}

    parts = [kept(tmp_path / f"{part}", f"suite.part={part}/2") for part in (1, 2)]
    assert kept(tmp_path / "whole") == {"0", "1", "2"} == parts[0] | parts[1]
    assert parts[0].isdisjoint(parts[1])
