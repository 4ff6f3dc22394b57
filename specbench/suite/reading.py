"""From the place where a suite is to its cases: bytes, then rows, then cases, whatever the format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from specbench.suite.format import Form, Format
from specbench.suite.hub_tables import HubTables
from specbench.suite.row import Row
from specbench.types import Case, InputError


def read_rows(place: Path | HubTables, format: Format, key: str = "suite.path") -> tuple[list[Row], str]:
    """The rows of a suite in order, and the SHA-256 of what was read.

    The hash is of the files' bytes as they lie on disk, one file after the other. key: the knob that named the place.
    Raises InputError for a file that is missing or malformed.
    """
    if isinstance(place, HubTables):
        return place.rows()
    rows: list[Row] = []
    digest = hashlib.sha256()
    for path in format.files(place):
        raw = read_bytes(path, format, key)
        digest.update(raw)
        rows += format.parse(raw, path, format.example)
    return rows, digest.hexdigest()


def read_bytes(path: Path, format: Format, key: str = "suite.path") -> bytes:
    """The bytes of a file as they lie on disk; InputError when it is missing, a directory, or empty."""
    fix = f"Give {format.holds} with {key}=<file>."
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"Suite file {path} does not exist. {fix}") from None
    except IsADirectoryError:
        raise InputError(f"Suite file {path} is a directory, expected a file. {fix}") from None
    except OSError as error:
        raise InputError(f"Suite file {path} cannot be read: {error.strerror}. {fix}") from None
    if not raw:
        raise InputError(f"Suite file {path} is empty, expected one question a line such as {format.example}. {fix}")
    return raw


def cases_of(rows: Iterable[Row], format: Format, form: Form, origin: str) -> list[Case]:
    """The cases of rows, in their order; rows that are not of the suite are left out.

    origin: the file or data set, for errors. Raises InputError for a row that is no question of the format, for two
    rows with the same id, and when no question is left.
    """
    cases: list[Case] = []
    place_of: dict[str, str] = {}
    for row in rows:
        case = format.case(row, form)
        if case is None:
            continue
        if case.id in place_of:
            raise InputError(
                f"{row.where}: {format.key} {case.id} is on {place_of[case.id]} already; every question needs its own."
            )
        place_of[case.id] = row.place
        cases.append(case)
    if not cases:
        raise InputError(
            f"Suite file {origin} holds no questions of the suite, expected one a line such as {format.example}."
        )
    return cases
