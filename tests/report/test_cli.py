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


def test_command_writes_a_report(make_run, tmp_path, capsys):
    directory = make_run(per_category=2)
    assert main([str(directory), "--output", str(tmp_path / "out"), "--no-plots"]) == 0
    assert (tmp_path / "out/report.html").is_file()
    assert not (tmp_path / "out/plots").exists()
    assert "30 files in" in capsys.readouterr().out


def test_command_takes_a_sweep(make_run):
    for name in ("2", "10", "2.old1"):
        make_run(f"sweep/{name}", {}, per_category=1)
    sweep = make_run("sweep/0", {}, per_category=1).parent
    assert main([str(sweep), "--no-plots"]) == 0
    variants = pd.read_csv(sweep / "report/summary.csv")["variant"]
    assert list(dict.fromkeys(variants)) == ["run=0", "run=2", "run=10"]


def test_command_names_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    error = capsys.readouterr().err
    assert "results/latest" in error
    assert "expected" in error
    assert main([str(tmp_path)]) == 2
    assert "manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["NOTHING"], [], ["NOTHING", "--published"], ["--import", "NOTHING"]])
def test_an_error_is_the_first_line_and_begins_with_the_word(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("specbench report: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--published", "--profile", "p.json"], "--profile, .* without --published"),
        (["--published", "--heatmap", "mat", "a", "b"], "--heatmap .* without --published"),
        (["--compat", "spec_bench", "--concurrency", "8"], "--concurrency .* without --compat"),
        (["--export-answers", "out", "--heatmap", "mat", "a", "b"], "without --export-answers"),
        (["--published", "--to", "hub"], "--to, .* without --published"),
        (["--dataset", "you/bench"], "--dataset: .* --to hub"),
        (["--tokenizer", "folder"], "--tokenizer: .* --answers, --compat or --export samples"),
        (["--heatmap", "mat", "a", "b", "--no-plots"], "--no-plots"),
    ],
)
def test_what_would_be_ignored_is_refused(make_run, capsys, arguments, message):
    run = make_run(per_category=1)
    before = sorted(run.iterdir())
    assert main([str(run), *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert sorted(run.iterdir()) == before


@pytest.mark.parametrize(
    ("taken", "arguments", "code", "message"),
    [
        ("tables", [], 2, "{run}/tables: is a file; expected a folder; .* --output DIR"),
        ("report.html/", [], 2, "{run}/report.html: is a directory; move it, .* --output DIR"),
        ("file", ["--output", "{run}/file"], 2, "{run}/file: is a file; expected a folder; .* --output DIR"),
        ("file", ["--export-answers", "{run}/file/x"], 2, "{run}/file/x: .*Not a directory.* --export-answers DIR"),
        ("full", [], 1, "{run}/summary.csv: cannot be used .No space left on device.; .* --output DIR"),
    ],
)
def test_what_cannot_be_written_is_named(make_run, capsys, monkeypatch, taken, arguments, code, message):
    """And not the partial file."""
    run = make_run(per_category=1)

    def sync(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    if taken == "full":
        monkeypatch.setattr(Path, "replace", sync)
    elif taken.endswith("/"):
        (run / taken).mkdir()
    else:
        (run / taken).write_text("")
    assert main([str(run), "--no-plots", *(each.format(run=run) for each in arguments)]) == code
    error = capsys.readouterr().err
    assert re.fullmatch(f"specbench report: error: {message.format(run=run)}\n", error), error
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


def test_named_runs_come_before_the_newest_and_a_sweep_stands_for_its_runs(make_run, elsewhere, monkeypatch):
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
