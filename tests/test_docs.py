"""The documents: links lead to a file and a heading, command lines compose, and tables follow the
code that they list.

``test_doc_examples`` runs the README's commands.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest
from doc_tables import TABLES, page_with_table
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from builders.runs import composed
from specbench import commands
from specbench.runs.composition import with_own_groups
from specbench.runs.given import refuse_idle
from specbench.runs.job import idle_of

ROOT = Path(__file__).resolve().parent.parent
NAMED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("results/**/README.md"))]
PAGES = [*NAMED, *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("", "sh", "bash", "console")
INLINE = re.compile(r"^(?:\| `(specbench [^`]+)` \|| {4}(specbench .*)$)", re.MULTILINE)
# methods, and an experiment, that pages write down
EXAMPLE = re.compile("echo|repeat_last|successor|my_")

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="docs/ is not next to an installed package"
)


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings: lower case, without punctuation, with dashes for blanks."""
    text = BLOCK.sub("", text_of(page))
    headings = [
        re.sub(r"\]\([^)]*\)", "]", each) for each in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def faults_of(page: Path, text: str) -> Iterator[str]:
    """The links of a page that lead to no file or no heading."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", BLOCK.sub("", text)):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        if not there.exists():
            yield f"{page.relative_to(ROOT)}: {target}: no such file"
        elif anchor and there.suffix == ".md" and anchor not in anchors_of(there):
            yield f"{page.relative_to(ROOT)}: {target}#{anchor}: no such heading"


def test_links_lead_to_a_file_and_a_heading():
    faults = [fault for page in PAGES for fault in faults_of(page, text_of(page))]
    assert not faults, "\n".join(faults)
    wrong = "[a](README.md#documentation) [b](none.md) [c](README.md#none) [d](#documentation)"
    found = faults_of(ROOT / "docs/README.md", wrong)
    assert [fault.split(": ")[1] for fault in found] == ["none.md", "README.md#none"]


@pytest.mark.parametrize("page", TABLES)
def test_tables_follow_the_code(page):
    """``python tests/doc_tables.py`` writes them."""
    assert text_of(ROOT / "docs" / page) == page_with_table(page)


def lines_of(text: str) -> Iterator[str]:
    """The ``specbench`` lines of a page, those of several physical lines joined."""
    text = text.replace("\\\n", " ")
    blocks = [block for language, block in BLOCK.findall(text) if language in SHELLS]
    inline = "\n".join(map("".join, INLINE.findall(text)))
    return (
        line
        for block in [*blocks, inline]
        for line in block.splitlines()
        if line.startswith("specbench ")
    )


LINES = [(page, line) for page in PAGES if page.is_file() for line in lines_of(text_of(page))]
COMMANDS = [
    [
        word
        for each in shlex.split(line)[1:]
        if (word := each.strip("\\ ")) not in ("...", "") and "$" not in word
    ]
    for _, line in LINES
]


class _Parsed(Exception):
    pass


def settings_of(words: Sequence[str], patch: pytest.MonkeyPatch) -> list[str]:
    """The settings among the arguments of a command; its own parser reads the options."""
    if not words or words[0] not in commands.COMMANDS:
        if {"--help", "--version"} & {*words}:
            return []
        found = [word for word in words if not word.startswith("-")]
        return [
            re.sub(r"(=(?:'[^']*'|[^,\[{]+)),.*", r"\1", word) if "-m" in words else word
            for word in found
        ]

    def stop(parser, argv):
        given, rest = parser.parse_known_args(argv)
        assert not [word for word in rest if word.startswith("-")], f"{words}: {rest}"
        raise _Parsed(given)

    patch.setattr(argparse.ArgumentParser, "parse_args", stop)
    patch.setattr(argparse.ArgumentParser, "parse_intermixed_args", stop)
    try:
        commands.module_of(words[0]).main(words[1:])
    except _Parsed as parsed:
        given = vars(parsed.args[0])
        return list(given.get("overrides") or given.get("settings") or [])
    except SystemExit as end:
        if end.code:
            raise AssertionError(f"{words}: no such option") from end
    return []  # of --help


@pytest.mark.exhaustive
def test_every_line_is_a_command_with_settings_that_exist(monkeypatch, capsys):
    """Settings that choose the same groups are composed together: no file is opened, no model
    loaded.
    """
    assert {words[0] for words in COMMANDS if words} >= {*commands.COMMANDS} - {commands.DEFAULT}
    assert len(COMMANDS) > 100
    together: dict[frozenset[str], dict[str, None]] = defaultdict(dict)
    for words in COMMANDS:
        given = [
            word
            for word in with_own_groups(settings_of(words, monkeypatch))
            if not EXAMPLE.search(word)
        ]
        chosen = frozenset(
            word for word in given if re.match(r"\+?\w+=", word) and not word.startswith("method=")
        )
        together[chosen] |= dict.fromkeys(given)
    for given in together.values():
        methods = [
            name
            for word in given
            if word.startswith("method=")
            for name in word[7:].strip("[]").split(",")
        ]
        others = [word for word in given if not word.startswith("method=")]
        named = [word.split(".")[1] for word in others if re.match(r"method\.\w+\.", word)]
        several = (
            [f"method=[{','.join(dict.fromkeys(filter(None, [*methods, *named])))}]"]
            if methods or named
            else []
        )
        composed(*others, *several)


@pytest.mark.exhaustive
def test_no_line_gives_a_setting_without_effect():
    """The jobs of a sweep together. No model, trace or question is opened."""
    for words in COMMANDS:
        if words and words[0] not in commands.COMMANDS and not EXAMPLE.search(" ".join(words)):
            given = with_own_groups([word for word in words if not word.startswith("-")])
            jobs = BasicSweeper.split_arguments(
                OverridesParser.create().parse_overrides(given), None
            )[0]
            refuse_idle(idle_of(composed(*job), "-m" in words) for job in jobs)


def methods_without_docstring(module) -> Iterator[str]:
    for kind in vars(module).values():
        if (
            inspect.isclass(kind)
            and kind.__module__ == module.__name__
            and not kind.__name__.startswith("_")
        ):
            for name, member in vars(kind).items():
                public = (
                    isinstance(member, (FunctionType, classmethod, staticmethod, property))
                    and name[0] != "_"
                )
                if public and not any(
                    getattr(vars(base).get(name), "__doc__", None) for base in kind.__mro__
                ):
                    yield f"{module.__name__}.{kind.__name__}.{name}"


@pytest.mark.slow
def test_every_public_method_has_a_docstring_or_overrides_one_that_has():
    packages = (
        pkgutil.walk_packages([root], f"{root}.") for root in ("specbench", "methods", "scripts")
    )
    names = {
        found.name
        for package in packages
        for found in package
        if not found.name.endswith("__main__")
    }
    lacking = []
    # which has no methods, and turns Triton's interpreter off
    for name in sorted(names - {"scripts.lab.kernels"}):
        try:
            module = importlib.import_module(name)
        except ImportError:  # of an extra that is not installed
            continue
        lacking += methods_without_docstring(module)
    assert lacking == []
