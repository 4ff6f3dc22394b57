"""A format of suites: how files become rows, how a row becomes a case, and the ways in which a question may be put."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.input import read_file
from specbench.suite.rows import SourceRow, parse_json_lines, tell_apart
from specbench.suite.sources import HubTables
from specbench.types import Case, InputError

_MOST_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Wording:
    """How a question is put. form: one of the format's, empty where it has none. prefix: worked examples.

    fields: what a case needs -> the file's name of it (suite.fields). frame: the text around a prompt (suite.frame).
    """

    form: str = ""
    prefix: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    frame: str | None = None


@dataclass(frozen=True, slots=True)
class SuiteFormat:
    """How the files of a suite are read.

    case: a row as a case, or None for a row that is not of the suite (another split); raises InputError.
    key: the row's identifier, for errors. example: a good line. holds: what ``suite.path`` must name.
    forms: names of the ways to put a question, the default first; empty when turns are taken as the file has them.
    parse: (raw bytes, path, example) -> rows of one file. files: the files that a path stands for.
    shot: a row as a worked example in front of a question, for ``shot_form``; None where the format has none.
    refuse: (rows, origin) -> why none of them can be run, '' where they can. own: takes suite.fields and suite.frame.
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
    refuse: Callable[[Sequence[SourceRow], str], str] = lambda rows, origin: ""
    own: bool = False

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
        return tell_apart(rows), digest.hexdigest()

    def read_bytes(self, path: Path, key: str = "suite.path") -> bytes:
        """The bytes of a file as they lie on disk; InputError when it is missing, a directory, or empty."""
        fix = f"give {self.holds} with {key}=<file>."
        raw = read_file(path, "Suite file ", fix)
        if not raw:
            raise InputError(f"Suite file {path}: is empty; expected one question a line such as {self.example}; {fix}")
        return raw

    def cases(self, rows: Iterable[SourceRow], wording: Wording, origin: str) -> list[Case]:
        """The cases of rows, in their order; rows that are not of the suite are left out.

        origin: the file or data set, for errors. Raises one InputError for all rows that are no question of the format
        or have the id of another, or when no question is left.
        """
        rows = list(rows)
        cases: list[Case] = []
        row_of: dict[str, SourceRow] = {}
        faults: list[str] = [refusal] if (refusal := self.refuse(rows, origin)) else []
        for row in rows if not faults else ():
            try:
                cases += self._read(row, wording, row_of)
            except InputError as error:
                faults.append(str(error))
        if faults:
            raise InputError(_join(faults, origin))
        if not cases:
            raise InputError(
                f"Suite file {origin} holds no questions of the suite, expected one a line such as {self.example}."
            )
        return cases

    def _read(self, row: SourceRow, wording: Wording, row_of: dict[str, SourceRow]) -> list[Case]:
        """The row's case, none where it is not of the suite. row_of: id -> its row, which this one joins."""
        if row.fault:
            raise InputError(row.fault)
        case = self.case(row, wording)
        if case is None:
            return []
        if other := row_of.get(case.id):
            there = other.place if other.source == row.source else other.where
            raise InputError(f"{row.where}: {self.key} {case.id} is on {there} already; every question needs its own.")
        row_of[case.id] = row
        return [case]


def _join(faults: Sequence[str], origin: str) -> str:
    """One fault as it is, several a line each."""
    if len(set(faults)) == 1:
        return faults[0]
    shown = [fault.removeprefix(f"{origin}, ") for fault in faults[:_MOST_FAULTS]]
    more = [f"and {len(faults) - _MOST_FAULTS} more"] if len(faults) > _MOST_FAULTS else []
    return "\n  ".join([f"Suite file {origin}: {len(faults)} rows are wrong:", *shown, *more])
