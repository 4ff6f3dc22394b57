"""Every command line of README and docs is what a reader's shell makes of it, in bash and in an interactive zsh, and is
a command that there is: its options are parsed and its settings composed. ``test_doc_examples`` runs the README's.

In zsh a trailing comment is no comment, an unquoted bracket or brace is a pattern, and a variable is not split.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from compose import composed
from specbench import commands
from specbench.runs.composition import with_own_groups

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
COMMANDS = ("specbench", "python", "pip", "make", "export", "pytest")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("", "sh", "bash", "console")
INLINE = re.compile(r"^(?:\| `([^`]+)` \|| {4}(specbench .*)$)", re.MULTILINE)
EXAMPLE = re.compile("echo|repeat_last|successor|my_")  # methods, and an experiment, that pages write down
SPECIAL = re.compile(r"[\[\]{}*?~^#|;&<>()$]")

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is not beside an installed package")


def blocks_of(text: str) -> list[str]:
    return [block for language, block in BLOCK.findall(text) if language in SHELLS]


def lines_of(text: str) -> Iterator[str]:
    """Command lines, those of several physical lines joined."""
    text = text.replace("\\\n", " ")
    single = "\n".join(map("".join, INLINE.findall(text)))
    for line in (line for block in [*blocks_of(text), single] for line in block.splitlines()):
        if line.split(" ")[0] in COMMANDS and not line.endswith('-c "'):  # a script of several lines
            yield line


TEXTS = {page.relative_to(ROOT): page.read_text("utf-8") for page in PAGES if page.is_file()}
LINES = [(page, line) for page, text in TEXTS.items() for line in lines_of(text)]


def words_of(line: str) -> list[str]:
    """The arguments of a ``specbench`` line, without what stands for others: ``...`` and variables."""
    words = [word.rstrip("\\").strip() for word in shlex.split(line)[1:]]
    return [word for word in words if word not in ("...", "") and "$" not in word]


OURS = [(page, words_of(line)) for page, line in LINES if line.split(" ")[0] == "specbench"]


def unquoted(line: str) -> str:
    """The line without what stands in quotes, and without an array that is spelled out in both shells."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", line)


def test_there_are_lines_of_every_kind():
    assert {line.split(" ")[0] for _, line in LINES} >= {"specbench", "python", "make"}
    assert {words[0] for _, words in OURS if words} >= {*commands.COMMANDS} - {commands.DEFAULT}
    assert len(OURS) > 100


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
    blocks = [block for text in TEXTS.values() for block in blocks_of(text) if block.split(" ")[0] in COMMANDS]
    done = subprocess.run([shell, "-n"], input="\n".join(blocks), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class _Parsed(Exception):
    pass


def settings_of(words: Sequence[str], patch: pytest.MonkeyPatch) -> list[str]:
    """The settings among the arguments of a command, whose own parser reads the others."""
    if not words or words[0] not in commands.COMMANDS:
        if {"--help", "--version"} & {*words}:
            return []
        several = "-m" in words
        found = [word for word in words if not word.startswith("-")]
        return [re.sub(r"(=[^,\[{]+),.*", r"\1", word) if several else word for word in found]

    def stop(parser, argv):
        given, rest = parser.parse_known_args(argv)
        assert not [word for word in rest if word.startswith("-")], f"{words}: {rest}"
        raise _Parsed(given)

    patch.setattr(argparse.ArgumentParser, "parse_args", stop)
    patch.setattr(argparse.ArgumentParser, "parse_intermixed_args", stop)
    try:
        import_module(commands.COMMANDS[words[0]].module).main(words[1:])
    except _Parsed as parsed:
        given = vars(parsed.args[0])
        return list(given.get("overrides") or given.get("settings") or [])
    except SystemExit as end:
        if end.code:
            raise AssertionError(f"{words}: no such option") from end
    return []  # of --help


def test_every_line_is_a_command_with_settings_that_exist(monkeypatch, capsys):
    """Settings that choose the same groups are composed at once: no file is opened, no model loaded."""
    together: dict[frozenset[str], dict[str, None]] = defaultdict(dict)
    for _, words in OURS:
        given = [word for word in with_own_groups(settings_of(words, monkeypatch)) if not EXAMPLE.search(word)]
        chosen = frozenset(word for word in given if re.match(r"\+?\w+=", word) and not word.startswith("method="))
        together[chosen] |= dict.fromkeys(given)
    for given in together.values():
        methods = [name for word in given if word.startswith("method=") for name in word[7:].strip("[]").split(",")]
        others = [word for word in given if not word.startswith("method=")]
        named = [word.split(".")[1] for word in others if re.match(r"method\.\w+\.", word)]
        several = [f"method=[{','.join(dict.fromkeys(filter(None, [*methods, *named])))}]"] if methods or named else []
        composed(*others, *several)


def test_a_setting_that_does_not_exist_does_not_compose(monkeypatch):
    with pytest.raises(Exception, match="num_drafts"):
        composed("method=[pld]", "method.pld.num_drafts=3")
    with pytest.raises(AssertionError, match="--concurency"):
        settings_of(["report", "RUN", "--concurency", "1"], monkeypatch)
