"""The methods that README and docs/adding_a_method.md write down, added to a copy of the checkout as they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README, ADDING = ROOT / "README.md", ROOT / "docs/adding_a_method.md"
FILE = re.compile(r"^`((?:methods|conf)/[\w/]+\.(?:py|yaml))`[^`]*:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The page leaves this yaml to its reader.
SUCCESSOR = """# @package method.successor
# What the target would say after each token: an example.
_target_: methods.successor.Successor
reset: case
depth: 4
"""
NAMES = ("echo", "repeat_last", "successor")

pytestmark = pytest.mark.skipif(not ADDING.is_file(), reason="docs/ is not beside an installed package")


def files_of(page: Path) -> dict[str, str]:
    """Path -> text of every file that a page shows whole."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what a method is added to, with the examples in it; and with what is compiled, which takes long."""
    copy = tmp_path_factory.mktemp("checkout")
    unfinished = shutil.ignore_patterns("*.pyc.*", "*.tmp.*")  # of processes that compile now
    for name in ("specbench", "methods", "conf", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=unfinished)
    shutil.copy(ROOT / "pyproject.toml", copy)
    shown = files_of(README) | files_of(ADDING) | {"conf/method/successor.yaml": SUCCESSOR}
    for path, text in shown.items():
        (copy / path).write_text(text, encoding="utf-8")
    return copy


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def test_the_pages_show_the_files_that_they_speak_of():
    assert set(files_of(README)) == {"methods/echo.py", "conf/method/echo.yaml"}
    assert {"methods/repeat_last.py", "conf/method/repeat_last.yaml", "methods/successor.py"} == set(files_of(ADDING))
    assert len(files_of(README)["methods/echo.py"].splitlines()) <= 25


@pytest.mark.slow
def test_the_examples_run_as_the_readme_says(checkout):
    """The command that stands below the example, and a real draft in what it reports."""
    [command] = re.findall(r"^specbench ('method=\[pld,echo\]'.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    done = run(checkout, "specbench.cli", *shlex.split(command), "suite.limit=1", "report.plots=false")
    assert done.returncode == 0, done.stderr
    [row] = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["echo"] and "%" in line]
    assert float(row[1]) > 1.1  # MAT
    assert row.count("100") == 1  # lossless
    assert row[-1] == "0"  # errors


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_examples_pass_every_methods_tests(checkout):
    """All but that of the page, which the examples leave to their reader."""
    chosen = f"({' or '.join(NAMES)}) and not page"
    done = run(checkout, "pytest", "-v", "-n0", "tests/methods/test_battery.py", "-k", chosen)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 6 * len(NAMES)
