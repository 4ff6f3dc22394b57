"""A format of suites: how a file becomes rows, how a row becomes a case, and the forms of the
prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specbench.input import GZIP, numbered_lines, parse_json, read_file, unpack_gzip
from specbench.types import Case, InputError

_MOST_FAULTS = 20  # wrong rows that one error lists


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a suite's file or data set, before it is a case.

    source: the file or data set. place: ``line 3`` of a file (blank lines count) or ``row 3`` of a
    table. index: from 0, within its part (blank lines do not count). part: the file or
    configuration of a source that has several, else empty. fault: why the row cannot be read, ''
    for a valid row.
    """

    values: Mapping[str, object]
    source: str
    place: str
    index: int
    part: str = ""
    fault: str = ""

    @property
    def where(self) -> str:
        """``questions.jsonl, line 3``: the beginning of every error about the row."""
        return f"{self.source}, {self.place}"

    def text(self, key: str, expected: str) -> str:
        """Returns the text under ``key`` unchanged. Raises InputError, with ``expected``, for
        anything else.
        """
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.where}: {self.got(key)}, expected {expected}.")
        return value

    def number(self, key: str, expected: str) -> int:
        """Returns the whole number under ``key``. Raises InputError, with ``expected``, for
        anything else.
        """
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{self.where}: {self.got(key)}, expected {expected}.")
        return value

    def optional(self, key: str) -> tuple[object, ...]:
        """Returns the value under ``key`` in a tuple, which is empty if the row has no value."""
        value = self.values.get(key)
        return () if value is None else (value,)

    def got(self, key: str) -> str:
        """Describes the value under ``key`` in words: ``turns is an empty list``."""
        if key not in self.values:
            return f"there is no {key}"
        value = self.values[key]
        if value is None:
            return f"{key} is null"
        if isinstance(value, str) and value and not value.strip():
            return f"{key} is blank"
        return f"{key} is {'an empty' if value in ('', []) else 'a'} {kind(value)}"


def kind(value: object) -> str:
    """Returns the JSON word for a value's type."""
    names = {
        dict: "object",
        list: "list",
        str: "string",
        bool: "true or false",
        int: "number",
        float: "number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def parse_json_lines(raw: bytes, path: Path, example: str) -> list[SourceRow]:
    """Reads the bytes of JSON lines, plain or gzipped. A line that is not a JSON object is a row
    with a fault.

    path: the file; example: a valid line; both for errors.
    """
    if raw.startswith(GZIP):
        raw = unpack_gzip(raw, str(path), "expected questions.")
    rows: list[SourceRow] = []
    fix = f"expected one object a line such as {example}."
    for number, line in numbered_lines(raw):
        place, value, fault = f"line {number}", {}, ""
        where = f"{path}, {place}"
        try:
            found = parse_json(line, where, fix)
            if isinstance(found, dict):
                value = found
            else:
                fault = f"{where}: got a {kind(found)}; {fix}"
        except InputError as error:
            fault = str(error)
        rows.append(SourceRow(value, str(path), place, len(rows), fault=fault))
    return rows


@dataclass(frozen=True, slots=True)
class HubTables:
    """One split of a data set on the Hugging Face hub.

    tables: (configuration, its rows in order); the configuration's name is empty if the data set
    has only one.
    """

    repo: str
    split: str
    tables: tuple[tuple[str, Iterable[Mapping[str, object]]], ...]

    def __str__(self) -> str:
        return f"{self.repo} ({self.split}) on the hub"

    def rows(self) -> tuple[list[SourceRow], str]:
        """Returns the rows of all tables and the SHA-256 of their JSON, which does not depend on
        the file format.
        """
        rows: list[SourceRow] = []
        digest = hashlib.sha256()
        for config, table in self.tables:
            source = f"{self.repo} ({', '.join(filter(None, (config, self.split)))})"
            for index, values in enumerate(table):
                rows.append(SourceRow(dict(values), source, f"row {index}", index, config))
                digest.update(json.dumps([config, dict(values)], sort_keys=True).encode())
        return rows, digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Wording:
    """The wording of a question. form: one of the format's, empty if it has none. prefix: worked
    examples.

    fields: what a case needs -> the file's name of it (suite.fields). frame: the text around a
    prompt (suite.frame).
    """

    form: str = ""
    prefix: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    frame: str | None = None


Reader = Callable[[SourceRow, Wording], Case | None]


@dataclass(frozen=True, slots=True)
class SuiteFormat:
    """The reader of one kind of suite file.

    case: makes a case of a row, or None for a row outside the suite (another split); raises
    InputError. key: the row's identifier, for errors. example: a valid line. holds: what
    ``suite.path`` must name. forms: names of the ways to put a question, the default first; empty
    if turns are used as the file has them. parse: (raw bytes, path, example) -> rows of one file.
    files: the files that a path names. shot: makes a worked example of a row, for ``shot_form``;
    None if the format has none. refuse: (rows, origin) -> why none of them can be run, '' if they
    can. own: accepts suite.fields and suite.frame. tables: suffix of a file that is a table -> a
    valid one, for errors.
    """

    case: Reader
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
    tables: Mapping[str, str] = field(default_factory=dict)

    def choose_form(self, name: str | None) -> str:
        """Returns the form that ``suite.form`` names, by default the first. Raises InputError for
        an unknown one.
        """
        if name is None:
            return self.forms[0] if self.forms else ""
        if name in self.forms:
            return name
        if not self.forms:
            raise InputError(
                f"suite.form={name}: this suite's turns are taken as its file has them; leave it"
                " out."
            )
        raise InputError(
            f"suite.form={name}: expected one of {', '.join(self.forms)}, or null for"
            f" {self.forms[0]}."
        )

    def read_rows(
        self, place: Path | HubTables, key: str = "suite.path"
    ) -> tuple[list[SourceRow], str]:
        """Returns the rows of a suite, and the SHA-256 of the files' bytes on disk, concatenated.

        key: the setting that named the place, for errors. Raises InputError for a file that is
        missing, a directory, empty or malformed.
        """
        if isinstance(place, HubTables):
            return place.rows()
        rows: list[SourceRow] = []
        digest = hashlib.sha256()
        fix = f"give {self.holds} with {key}=<file>."
        for path in self.files(place):
            raw = read_file(path, "Suite file ", fix)
            if not raw:
                raise InputError(
                    f"Suite file {path}: is empty; {fix} Expected {self.show_example(path)}"
                )
            digest.update(raw)
            rows += self.parse(raw, path, self.example)
        # part -> its files: data.csv and data.json are both the part "data"
        sources: dict[str, set[str]] = {}
        for row in rows:
            sources.setdefault(row.part, set()).add(row.source)
        rows = [
            replace(row, part=Path(row.source).name) if len(sources[row.part]) > 1 else row
            for row in rows
        ]
        return rows, digest.hexdigest()

    def cases(self, rows: Iterable[SourceRow], wording: Wording, origin: str) -> list[Case]:
        """Returns the cases of rows, in their order, without the rows outside the suite.

        origin: the file or data set, for errors. Raises one InputError for all rows that are not a
        question of the format or repeat the id of another, or if no question is left.
        """
        rows = list(rows)
        if refusal := self.refuse(rows, origin):
            raise InputError(refusal)
        cases: list[Case] = []
        row_of: dict[str, SourceRow] = {}
        faults: list[tuple[SourceRow, str]] = []
        for row in rows:
            try:
                case = None if row.fault else self.case(row, wording)
            except InputError as error:
                faults.append((row, str(error)))
                continue
            if row.fault:
                faults.append((row, row.fault))
            elif case and (other := row_of.get(case.id)):
                there = other.place if other.source == row.source else other.where
                fault = (
                    f"{row.where}: {self.key} {case.id} is on {there} already; every question needs"
                    " its own."
                )
                faults.append((row, fault))
            elif case:
                row_of[case.id] = row
                cases.append(case)
        if faults:
            raise InputError(_spell_faults(faults, origin, len(rows)))
        if not cases:
            raise InputError(
                f"Suite file {origin} contains no questions of the suite, expected"
                f" {self.show_example(Path(origin))}"
            )
        return cases

    def show_example(self, path: Path) -> str:
        """Returns what a file of this name should have: a csv its header and a row, any other file
        a line.
        """
        table = self.tables.get(path.suffix)
        return (
            f"a header and rows such as\n{table}"
            if table
            else f"one question a line such as {self.example}."
        )


def _spell_faults(faults: Sequence[tuple[SourceRow, str]], origin: str, total: int) -> str:
    """One text for all wrong rows: what is wrong with several is reported once, with the first of
    them.
    """
    groups: dict[str, list[SourceRow]] = {}
    for row, fault in faults:
        groups.setdefault(fault.removeprefix(f"{row.where}: "), []).append(row)

    def spell(text: str, rows: Sequence[SourceRow], where: str) -> str:
        if text.startswith(rows[0].source):  # names its own place
            return text.removeprefix(f"{origin}, ")
        others = f"{len(rows) - 1} more" if len(rows) < total else "all other rows"
        return f"{where}{f' and {others}' if len(rows) > 1 else ''}: {text}"

    if len(groups) == 1:
        (text, rows), *_ = groups.items()
        return spell(text, rows, rows[0].where) if not text.startswith(rows[0].source) else text
    shown = [
        spell(text, rows, rows[0].where.removeprefix(f"{origin}, "))
        for text, rows in groups.items()
    ]
    more = [f"and {len(shown) - _MOST_FAULTS} more"] if len(shown) > _MOST_FAULTS else []
    return "\n  ".join(
        [f"Suite file {origin}: {len(faults)} rows are wrong:", *shown[:_MOST_FAULTS], *more]
    )
