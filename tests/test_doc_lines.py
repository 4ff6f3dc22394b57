"""Every command line of README and docs is what a reader's shell makes of it: in bash, and in an interactive zsh.

There a trailing comment is no comment, an unquoted bracket or brace is a pattern, and a variable is not split.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose import composed
from specbench import commands
from specbench.report.cli import _parser

ROOT = Path(__file__).resolve().parent.parent
COMPOSED = ("README.md", "running.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
COMMANDS = ("specbench", "python", "pip", "make", "export", "pytest")
BLOCK = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
SPECIAL = re.compile(r"[\[\]{}*?~^#|;&<>()$]")

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is not beside an installed package")


def lines_of(text: str) -> Iterator[str]:
    """Command lines, those of several physical lines joined."""
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    for line in (line for block in [*blocks, "\n".join(INLINE.findall(text))] for line in block.splitlines()):
        if line.split(" ")[0] in COMMANDS and not line.endswith('-c "'):  # a script of several lines
            yield line


LINES = [
    (page.relative_to(ROOT), line) for page in PAGES if page.is_file() for line in lines_of(page.read_text("utf-8"))
]


def unquoted(line: str) -> str:
    """The line without what stands in quotes, and without an array that is spelled out in both shells."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", line)


def test_there_are_lines_of_every_kind():
    assert {line.split(" ")[0] for _, line in LINES} >= {"specbench", "python", "make"}
    assert len(LINES) > 60


@pytest.mark.parametrize(("line", "fails"), [("specbench 'a=[b]' c=d", False), ("x a=[b]", True), ("x  # why", True)])
def test_the_check_can_fail(line, fails):
    assert bool(SPECIAL.search(unquoted(line))) is fails


def test_every_line_means_the_same_in_every_shell():
    wrong = [f"{page}: {line}" for page, line in LINES if SPECIAL.search(unquoted(line))]
    assert not wrong, "\n".join(["quote what a shell would expand, and put comments into prose:", *wrong])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shells_agree_with_us(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    found = [line for _, line in LINES if "$" not in line]
    script = "\n".join(f"printf '%s\\n' {line}; echo =" for line in found)
    done = subprocess.run([shell, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert [part.split("\n") for part in done.stdout.removesuffix("\n=\n").split("\n=\n")] == list(
        map(shlex.split, found)
    )


def test_the_readmes_settings_exist():
    """Each `specbench` line of the README composes: no file is opened, no model loaded."""
    for page, line in LINES:
        name, *words = shlex.split(line)
        if name == "specbench" and page.name in COMPOSED and not {*words[:1]} & {*commands.COMMANDS, "--help"}:
            if "echo" in line:
                continue
            settings = [word for word in words if not word.startswith("-")]
            several = [re.sub(r"(=[^,\[{]+),.*", r"\1", word) if "-m" in words else word for word in settings]
            composed(*several)


def test_the_reports_options_exist():
    for _, line in LINES:
        name, *words = shlex.split(line)
        if [name, *words[:1]] == ["specbench", "report"]:
            _parser().parse_args(words[1:])
