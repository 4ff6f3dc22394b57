"""The command: what it writes, what it takes, and what it says when it cannot."""

import errno
import re
from pathlib import Path

import pandas as pd
import pytest

from specbench.commands.report import main


def test_command_writes_a_report(make_run, tmp_path, capsys):
    directory = make_run(per_category=2)
    assert main([str(directory), "--output", str(tmp_path / "out"), "--no-plots"]) == 0
    assert (tmp_path / "out/report.html").is_file()
    assert not (tmp_path / "out/plots").exists()
    assert "29 files in" in capsys.readouterr().out


def test_command_takes_a_sweep(make_run):
    for name in ("2", "10", "2.old1"):
        make_run(f"sweep/{name}", per_category=2)
    sweep = make_run("sweep/0", per_category=2).parent
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--published", "--profile", "p.json"], "--profile, .* without --published"),
        (["--published", "--heatmap", "mat", "a", "b"], "--heatmap .* without --published"),
        (["--compat", "spec_bench", "--concurrency", "8"], "--concurrency .* without --compat"),
        (["--export-answers", "out", "--heatmap", "mat", "a", "b"], "without --export-answers"),
        (["--tokenizer", "folder"], "--tokenizer: .* --answers, --compat or --export samples"),
        (["--heatmap", "mat", "a", "b", "--no-plots"], "--no-plots"),
    ],
)
def test_what_would_be_ignored_is_refused(make_run, capsys, arguments, said):
    run = make_run(per_category=1)
    before = sorted(run.iterdir())
    assert main([str(run), *arguments]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert sorted(run.iterdir()) == before


@pytest.mark.parametrize(
    ("taken", "arguments", "code", "said"),
    [
        ("tables", [], 2, "{run}/tables: is a file; expected a folder; .* --output DIR"),
        ("report.html/", [], 2, "{run}/report.html: is a folder; expected a file; .* --output DIR"),
        ("file", ["--output", "{run}/file"], 2, "{run}/file: is a file; expected a folder; .* --output DIR"),
        ("file", ["--export-answers", "{run}/file/x"], 2, "{run}/file/x: .*Not a directory.* --export-answers DIR"),
        ("full", [], 1, "{run}/summary.csv: cannot be used .No space left on device.; .* --output DIR"),
    ],
)
def test_what_cannot_be_written_is_named(make_run, capsys, monkeypatch, taken, arguments, code, said):
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
    assert re.fullmatch(f"specbench report: {said.format(run=run)}\n", error), error
    assert not list(run.rglob(".*.partial"))
