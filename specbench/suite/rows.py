"""Rows of a suite's file or data set, each with its place for errors, and how JSON lines give them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.input import InputError, numbered_lines, parse_json, refuse_repeated_keys

_GZIP_MAGIC = b"\x1f\x8b"
_MOST_TIMES, _ALWAYS = 100, 64 << 20  # of gzip's size, text has fewer; [bytes] what any file may unpack to


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row before it is a case.

    source: the file or data set. place: ``line 3`` of a file (blank lines count), ``row 3`` of a table.
    index: from 0, within its part (blank lines do not count). part: which of several files or configurations of the
    source it is from, empty where there is one. fault: why it is no row, '' where it is one.
    """

    values: Mapping[str, object]
    source: str
    place: str
    index: int
    part: str = ""
    fault: str = ""

    @property
    def where(self) -> str:
        """``questions.jsonl, line 3``: how every error about the row begins."""
        return f"{self.source}, {self.place}"

    def text(self, key: str, expected: str) -> str:
        """The text under ``key``, unchanged. expected: for the InputError that anything else raises."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.where}: {self.got(key)}, expected {expected}.")
        return value

    def whole(self, key: str, expected: str) -> int:
        """The whole number under ``key``. expected: for the InputError that anything else raises."""
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"{self.where}: {self.got(key)}, expected {expected}.")
        return value

    def optional(self, key: str) -> tuple[object, ...]:
        """The value under ``key`` alone in a tuple, or an empty tuple where there is none."""
        value = self.values.get(key)
        return () if value is None else (value,)

    def got(self, key: str) -> str:
        """What the row has under ``key``, in words: ``turns is an empty list``."""
        if key not in self.values:
            return f"there is no {key}"
        value = self.values[key]
        if value is None:
            return f"{key} is null"
        if isinstance(value, str) and value and not value.strip():
            return f"{key} is blank"
        return f"{key} is {'an empty' if value in ('', []) else 'a'} {kind(value)}"


def kind(value: object) -> str:
    """The JSON word for a value's type."""
    names = {dict: "object", list: "list", str: "string", bool: "true or false", int: "number", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def tell_apart(rows: Sequence[SourceRow]) -> list[SourceRow]:
    """The rows; where files of several endings have one name, each is a part by its whole name."""
    sources: dict[str, set[str]] = {}
    for row in rows:
        sources.setdefault(row.part, set()).add(row.source)
    return [replace(row, part=Path(row.source).name) if len(sources[row.part]) > 1 else row for row in rows]


def parse_json_lines(raw: bytes, path: Path, example: str) -> list[SourceRow]:
    """The rows of a file of JSON lines, plain or gzipped, in its order, blank lines left out.

    raw: the file's bytes. path, example (a good line): for errors. A line that is not a JSON object is a row with a
    fault, which has file and line number.
    """
    rows: list[SourceRow] = []
    fix = f"expected one object a line such as {example}."
    for number, line in numbered_lines(_unzipped(raw, path)):
        place = f"line {number}"
        value, fault = _object(line, f"{path}, {place}", fix)
        rows.append(SourceRow(value, str(path), place, len(rows), fault=fault))
    return rows


def _object(line: bytes, where: str, fix: str) -> tuple[Mapping[str, object], str]:
    try:
        value = parse_json(line, where, fix)
        if not isinstance(value, dict):
            return {}, f"{where}: got a {kind(value)}; {fix}"
        refuse_repeated_keys(line, where)
    except InputError as error:
        return {}, str(error)
    return value, ""


def _unzipped(raw: bytes, path: Path) -> bytes:
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    most = max(_MOST_TIMES * len(raw), _ALWAYS)
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): fetch or pack it again.") from None
    if len(unpacked) > most:
        raise InputError(f"{path}: unpacks to more than {_MOST_TIMES} times its size; expected questions.")
    return unpacked
