"""Rows of a suite's file or data set, each with its place, so that an error can name it; and how JSON lines give them.

Lines are split on the newline byte alone, because a JSON string may hold other line separators (U+2028).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench.types import InputError

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row before it is a case.

    source: the file or data set. place: ``line 3`` of a file (blank lines count), ``row 3`` of a table.
    index: from 0, within its part (blank lines do not count). part: which of several files or configurations of the
    source it is from, empty where there is one.
    """

    values: Mapping[str, object]
    source: str
    place: str
    index: int
    part: str = ""

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
    return names.get(type(value), "null")


def parse_json_lines(raw: bytes, path: Path, example: str) -> list[SourceRow]:
    """The rows of a file of JSON lines, plain or gzipped, in its order, blank lines left out.

    raw: the file's bytes. path, example (a good line): for errors. Raises InputError with file and line number for a
    line that is not a JSON object.
    """
    rows: list[SourceRow] = []
    for number, line in enumerate(_unzipped(raw, path).split(b"\n"), start=1):
        if line.strip():
            place = f"line {number}"
            rows.append(SourceRow(_object(line, f"{path}, {place}", example), str(path), place, len(rows)))
    return rows


def decode_line(line: bytes, where: str) -> str:
    """A line as text, a byte order mark left out. where: for the InputError when it is not UTF-8."""
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 (byte {error.start} of the line is 0x{line[error.start]:02x}): save the file as UTF-8."
        ) from None


def _unzipped(raw: bytes, path: Path) -> bytes:
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): fetch or pack it again.") from None


def _object(line: bytes, where: str, example: str) -> dict[str, object]:
    text = decode_line(line, where)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}). Expected one object a line such as {example}.") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object such as {example}, got a {kind(value)}.")
    return value
