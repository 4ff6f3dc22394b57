"""The command: what it writes, what it takes, which runs and profile it finds, and its messages."""

import errno
import os
import re
from pathlib import Path

import pandas as pd
import pytest

from specbench.commands.report import main
from specbench.profile import file as profile_file
from specbench.records.store import RunError
from specbench.report.locate import PROFILE, RUN, chosen_profile, chosen_runs


def test_command_takes_a_sweep(make_run):
    """In the order of its numbers; what another run moved away is no part of it."""
    for name in ("2", "10", "2.old1"):
        make_run(f"sweep/{name}", {}, per_category=1)
    sweep = make_run("sweep/0", {}, per_category=1).parent
    assert main([str(sweep), "--no-plots"]) == 0
    variants = pd.read_csv(sweep / "report/summary.csv")["variant"]
    assert list(dict.fromkeys(variants)) == ["run=0", "run=2", "run=10"]
    assert not (sweep / "report/plots").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["report"], "results/latest"),
        (["report", "NOTHING"], "NOTHING"),
        (["report", "--import", "NOTHING"], "NOTHING"),
        (["report", "."], "manifest.json"),
        (["compare", "a", "b"], "results/latest"),
        (["list"], "results"),
    ],
)
def test_what_is_not_there_is_named(refused, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    assert named in refused(*words)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--published", "--profile", "p.json"], "--profile"),
        (["--compat", "spec_bench", "--concurrency", "8"], "--concurrency"),
        (["--dataset", "you/bench"], "--dataset"),
        (["--heatmap", "mat", "a", "b", "--no-plots"], "--no-plots"),
    ],
)
def test_what_would_be_ignored_is_refused(make_run, refused, arguments, named):
    run = make_run(per_category=1)
    before = sorted(run.iterdir())
    assert named in refused("report", run, *arguments)
    assert sorted(run.iterdir()) == before


@pytest.mark.parametrize(
    ("taken", "arguments", "named"),
    [
        ("tables", [], "{run}/tables: .* folder; .* --output DIR"),
        ("file", ["--output", "{run}/file"], "{run}/file: .* folder; .* --output DIR"),
        ("file", ["--export-answers", "{run}/file/x"], "{run}/file/x: .* --export-answers DIR"),
        ("full", [], "{run}/summary.csv: .*No space left on device.* --output DIR"),
    ],
)
def test_what_cannot_be_written_is_named(make_run, capsys, monkeypatch, taken, arguments, named):
    """And not the partial file."""
    run = make_run(per_category=1)

    def sync(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    if taken == "full":
        monkeypatch.setattr(Path, "replace", sync)
    else:
        (run / taken).write_text("")
    code = main([str(run), "--no-plots", *(each.format(run=run) for each in arguments)])
    assert code == (1 if taken == "full" else 2)
    error = capsys.readouterr().err
    assert re.fullmatch(f"specbench report: error: {named.format(run=run)}\n", error), error
    assert not list(run.rglob(".*.partial"))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder two levels below ``tmp_path``, with nothing named in the environment."""
    for name in (RUN, PROFILE):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "one/two"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path


def test_named_runs_come_before_the_newest_and_a_sweep_stands_for_its_runs(
    make_run, elsewhere, monkeypatch
):
    newest, single = make_run("results/latest", per_category=1), make_run("single", per_category=1)
    swept = [make_run(f"sweep/{number}", per_category=1) for number in (2, 10)]
    assert chosen_runs() == [newest]
    monkeypatch.setenv(RUN, os.pathsep.join(map(str, (single, swept[0].parent))))
    assert chosen_runs() == [single, *swept]


def test_without_any_run_the_variable_is_named(elsewhere):
    with pytest.raises(RunError, match="SPECBENCH_RUN is not set and there is no results/latest"):
        chosen_runs()


def test_a_profile_is_named_or_the_first_published_one(elsewhere, monkeypatch):
    assert chosen_profile() is None
    installed = elsewhere / "package"
    installed.mkdir()
    (installed / "c.json").write_text("{}")
    monkeypatch.setattr(profile_file, "_INSTALLED", installed)
    assert chosen_profile() == installed / "c.json"
    published = elsewhere / "results/profiles/published"
    published.mkdir(parents=True)
    for name in ("b.json", "a.json"):
        (published / name).write_text("{}")
    assert chosen_profile() == published / "a.json"
    monkeypatch.setenv(PROFILE, "mine.json")
    assert str(chosen_profile()) == "mine.json"
