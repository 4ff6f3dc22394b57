"""JSON lines, plain or gzipped: one JSON object a line.

Lines are split on the newline byte alone, because a JSON string may hold other line separators (U+2028).
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from specbench.suite.row import Row, kind
from specbench.types import InputError

_GZIP_MAGIC = b"\x1f\x8b"


def parse(raw: bytes, path: Path, example: str) -> list[Row]:
    """The rows of a file in its order, blank lines left out.

    raw: the file's bytes. path: only named in errors. example: a good line, for errors. Raises InputError with file
    and line number for whatever is not a JSON object.
    """
    rows: list[Row] = []
    for number, line in enumerate(_unzipped(raw, path).split(b"\n"), start=1):
        if line.strip():
            place = f"line {number}"
            rows.append(Row(_object(line, f"{path}, {place}", example), str(path), place, len(rows)))
    return rows


def decoded(line: bytes, where: str) -> str:
    """A line as text, a byte order mark left out; InputError when it is not UTF-8."""
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
    text = decoded(line, where)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}). Expected one object a line such as {example}.") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object such as {example}, got a {kind(value)}.")
    return value
