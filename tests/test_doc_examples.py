"""The README's own commands, run; and the methods that README and docs/adding_a_method.md write
down, as they say.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import methods
from builders.runs import Done, run_main
from specbench import commands

ROOT = Path(__file__).resolve().parent.parent
README, ADDING = ROOT / "README.md", ROOT / "docs/adding_a_method.md"
FILE = re.compile(
    r"^`((?:methods|conf)/[\w/]+\.(?:py|yaml))`[^`]*:\n\n```\w+\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
# The page leaves this yaml to its reader.
SUCCESSOR = """# @package method.successor
# What the target would say after each token: an example.
_target_: methods.successor.Successor
reset: case
depth: 4
"""
NAMES = ("echo", "repeat_last", "successor")
SMALL = (
    "suite.limit=1",
    "suite.first=3",
    "decode.max_new_tokens=24",
    "measure.warmup=0",
    "report.plots=false",
)

pytestmark = pytest.mark.skipif(not ADDING.is_file(), reason="an installed package has no docs/")


def files_of(page: Path) -> dict[str, str]:
    """Path -> text of every file that a page shows whole."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def line_of(start: str) -> list[str]:
    """The arguments of the README's one command that begins so."""
    [line] = re.findall(
        rf"^specbench ({re.escape(start)}.*)$", README.read_text(encoding="utf-8"), re.MULTILINE
    )
    return shlex.split(line)


def write_files(folder: Path, *shown: dict[str, str]) -> None:
    for path, text in {path: text for files in shown for path, text in files.items()}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A command in an empty folder, with the README's method as if it were in ``methods/`` and
    ``conf/method/``.
    """
    write_files(tmp_path, files_of(README))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path / "methods")])

    def main(*arguments: str) -> Done:
        done = run_main(commands.main, *arguments)
        assert done.returncode == 0, done.stderr
        return done

    yield main
    sys.modules.pop("methods.echo", None)


def row_of(name: str, text: str) -> list[str]:
    """The words of a method's row in the first table of a terminal."""
    return next(
        words for line in text.splitlines() if (words := line.split())[:1] == [name] and "%" in line
    )


def test_the_pages_show_the_files_that_they_speak_of():
    assert set(files_of(README)) == {"methods/echo.py", "conf/method/echo.yaml"}
    assert {
        "methods/repeat_last.py",
        "conf/method/repeat_last.yaml",
        "methods/successor.py",
    } == set(files_of(ADDING))
    assert len(files_of(README)["methods/echo.py"].splitlines()) <= 25


@pytest.mark.exhaustive
def test_the_readmes_commands_run_in_their_order(run):
    """Their output has the words that the README shows."""
    shown = README.read_text(encoding="utf-8")
    own = ("--config-dir", "conf")
    author = run(*own, *line_of("'method=[pld,echo]'"), *SMALL, "hydra.run.dir=results/two").stdout
    echo = row_of("echo", author)
    assert float(echo[1]) > 1.05  # MAT
    assert echo.count("100") == 1  # lossless
    assert echo[-1] == "0"  # errors
    student = run(*line_of("'method=[pld,sam]'"), *SMALL, "hydra.run.dir=results/one").stdout
    _, header = re.findall(r"^ method +MAT .*$", shown, re.MULTILINE)
    assert header.split() in [line.split() for line in student.splitlines()]
    compared = run(*line_of("compare")).stdout
    for message in ("speed: pld over sam ", "MAT: pld over sam "):
        assert message in shown
        assert message in compared
    assert ["mat", "forward", "overhead", "remainder", "decode", "speedup"] in [
        line.split() for line in compared.splitlines()
    ]
    differing = run(*line_of("diff")).stdout
    assert re.search(
        r"\d+ records are in both \(\d+ and \d+ are in one only\); \d+ have the same tokens",
        differing,
    )
    assert "method.pld.num_draft" in differing
    swept = run(*own, *line_of("-m 'method=[echo]'"), *SMALL, "suite.first=1").stdout
    assert "3 of 3: method.echo.span=8" in swept


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_laptops_table_is_what_its_commands_print(run, data):
    """On the recorded answers, where they are: MAT and tokens fed, the speedup at each load, and
    where load ends it.
    """
    text = README.read_text(encoding="utf-8")
    replay, modelled = (
        shlex.split(re.search(rf"^\| `specbench ({start}.*?)` \|", text, re.MULTILINE)[1])
        for start in ("model=replay", "report results/latest --profile")
    )
    places = {
        "vicuna_answers.jsonl": str(data / "traces/vicuna-7b-v1.3/spec_bench_vanilla_run1.jsonl"),
        "VICUNA": str(data / "tokenizers/vicuna"),
        "results/profiles": str(ROOT / "results/profiles"),
    }
    for old, new in places.items():
        replay, modelled = (
            [each.replace(old, new) for each in command] for command in (replay, modelled)
        )
    run(*replay, "report.plots=false")
    run(*modelled, "--no-plots")
    overall = (
        pd.read_csv("results/latest/summary.csv").query("category == 'overall'").set_index("method")
    )
    loads = pd.read_csv("results/latest/tables/crossover.csv").set_index(["method", "concurrency"])
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.|* ]+)", text[text.index("| | MAT | tokens fed |") :], re.MULTILINE
    )
    assert len(rows) == 6
    for method, cells in rows:
        found = [overall.mat[method], overall.tokens_fed[method]]
        found += [loads.modelled_speedup[method, load] for load in (1, 8, 32, 128)]
        wanted = [f"{value:.2f}" for value in found] + [str(loads.pays_to[method, 1])]
        assert [cell.strip(" *") for cell in cells.strip("| ").split("|")] == wanted, method


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_examples_pass_every_methods_tests(tmp_path):
    """All but that of the page, which the examples leave to their reader; in a copy of what a
    method is added to.
    """
    unfinished = shutil.ignore_patterns("*.pyc.*", "*.tmp.*")  # of processes that compile now
    for name in ("specbench", "methods", "conf", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unfinished)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    write_files(
        tmp_path, files_of(README), files_of(ADDING), {"conf/method/successor.yaml": SUCCESSOR}
    )
    chosen = f"({' or '.join(NAMES)}) and not page"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n0",
        "tests/methods/test_battery.py",
        "-k",
        chosen,
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 6 * len(NAMES)
