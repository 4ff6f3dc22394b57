"""What is known of a suite's format: how its files become rows, a row a case, and the ways a question may be put."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specbench.suite import json_lines
from specbench.suite.row import Row
from specbench.types import Case, InputError


@dataclass(frozen=True, slots=True)
class Form:
    """How a question is put. name: one of the format's forms, empty where it has none. prefix: worked examples."""

    name: str = ""
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """One format of suites; each reader file has its own as ``FORMAT``, ``formats.FORMATS`` names them all.

    case: a row as a case, or None for a row that is not of the suite (another split); raises InputError.
    key: what a row is known by, for errors. example: a good line. holds: what ``suite.path`` must name.
    forms: names of the ways to put a question, the default first; empty when turns are taken as the file has them.
    parse: (raw bytes, path, example) -> rows of one file. files: the files that a path stands for.
    shot: a row as a worked example in front of a question, for ``shot_form``; None where the format has none.
    """

    case: Callable[[Row, Form], Case | None]
    key: str
    example: str
    holds: str = "a .jsonl or .jsonl.gz file of questions"
    forms: tuple[str, ...] = ()
    parse: Callable[[bytes, Path, str], list[Row]] = json_lines.parse
    files: Callable[[Path], list[Path]] = lambda path: [path]
    shot: Callable[[Row], str] | None = None
    shot_form: str = ""

    def form(self, name: str | None) -> str:
        """The form that ``suite.form`` names, by default the first. Raises InputError for one that there is not."""
        if name is None:
            return self.forms[0] if self.forms else ""
        if name in self.forms:
            return name
        if not self.forms:
            raise InputError(f"suite.form={name}: this suite's turns are taken as its file has them; leave it out.")
        raise InputError(f"suite.form={name}: expected one of {', '.join(self.forms)}, or null for {self.forms[0]}.")
