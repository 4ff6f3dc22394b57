"""A format of suites: how files become rows, how a row becomes a case, and the ways in which a question may be put."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from specbench.input import read_file
from specbench.suite.rows import SourceRow, parse_json_lines
from specbench.suite.sources import HubTables
from specbench.types import Case, InputError


@dataclass(frozen=True, slots=True)
class Wording:
    """How a question is put. form: one of the format's, empty where it has none. prefix: worked examples."""

    form: str = ""
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class SuiteFormat:
    """How the files of a suite are read.

    case: a row as a case, or None for a row that is not of the suite (another split); raises InputError.
    key: the row's identifier, for errors. example: a good line. holds: what ``suite.path`` must name.
    forms: names of the ways to put a question, the default first; empty when turns are taken as the file has them.
    parse: (raw bytes, path, example) -> rows of one file. files: the files that a path stands for.
    shot: a row as a worked example in front of a question, for ``shot_form``; None where the format has none.
    """

    case: Callable[[SourceRow, Wording], Case | None]
    key: str
    example: str
    holds: str = "a .jsonl or .jsonl.gz file of questions"
    forms: tuple[str, ...] = ()
    parse: Callable[[bytes, Path, str], list[SourceRow]] = parse_json_lines
    files: Callable[[Path], list[Path]] = lambda path: [path]
    shot: Callable[[SourceRow], str] | None = None
    shot_form: str = ""

    def choose_form(self, name: str | None) -> str:
        """The form that ``suite.form`` names, by default the first. Raises InputError for an unknown one."""
        if name is None:
            return self.forms[0] if self.forms else ""
        if name in self.forms:
            return name
        if not self.forms:
            raise InputError(f"suite.form={name}: this suite's turns are taken as its file has them; leave it out.")
        raise InputError(f"suite.form={name}: expected one of {', '.join(self.forms)}, or null for {self.forms[0]}.")

    def read_rows(self, place: Path | HubTables, key: str = "suite.path") -> tuple[list[SourceRow], str]:
        """The rows of a suite in order, and the SHA-256 of what was read.

        The hash is of the files' bytes as they lie on disk, one file after the other. key: the setting that named the
        place. Raises InputError for a file that is missing or malformed.
        """
        if isinstance(place, HubTables):
            return place.rows()
        rows: list[SourceRow] = []
        digest = hashlib.sha256()
        for path in self.files(place):
            raw = self.read_bytes(path, key)
            digest.update(raw)
            rows += self.parse(raw, path, self.example)
        return rows, digest.hexdigest()

    def read_bytes(self, path: Path, key: str = "suite.path") -> bytes:
        """The bytes of a file as they lie on disk; InputError when it is missing, a directory, or empty."""
        fix = f"give {self.holds} with {key}=<file>."
        raw = read_file(path, "Suite file ", fix)
        if not raw:
            raise InputError(f"Suite file {path}: is empty; expected one question a line such as {self.example}; {fix}")
        return raw

    def cases(self, rows: Iterable[SourceRow], wording: Wording, origin: str) -> list[Case]:
        """The cases of rows, in their order; rows that are not of the suite are left out.

        origin: the file or data set, for errors. Raises InputError for a row that is no question of the format, for
        two rows with the same id, and when no question is left.
        """
        cases: list[Case] = []
        place_of: dict[str, str] = {}
        for row in rows:
            case = self.case(row, wording)
            if case is None:
                continue
            if case.id in place_of:
                raise InputError(
                    f"{row.where}: {self.key} {case.id} is on {place_of[case.id]} already; every question needs its"
                    " own."
                )
            place_of[case.id] = row.place
            cases.append(case)
        if not cases:
            raise InputError(
                f"Suite file {origin} holds no questions of the suite, expected one a line such as {self.example}."
            )
        return cases
