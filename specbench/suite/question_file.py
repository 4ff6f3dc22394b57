"""The Spec-Bench question file: one JSON object a line with ``question_id``, ``category``, ``turns``, ``reference``.

Spec-Bench reports six tasks, but its file spells the first as the eight raw categories of MT-Bench; here a case's
category is the task and the raw word is kept as its subcategory. A category that Spec-Bench does not know stays as it
is. Lines are split on the newline byte alone, because a JSON string may hold other line separators (U+2028).
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from specbench.types import Case, InputError

MULTI_TURN = "multi-turn"
TASKS = (MULTI_TURN, "translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")

_GZIP_MAGIC = b"\x1f\x8b"
_FORM = '{"question_id": 1, "category": "qa", "turns": ["..."]}'


def read_bytes(path: Path) -> bytes:
    """The bytes of a suite's file as they lie on disk; InputError when it is missing, a directory, or empty."""
    fix = "Give an existing .jsonl or .jsonl.gz file with suite.path=<file>."
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"Suite file {path} does not exist. {fix}") from None
    except IsADirectoryError:
        raise InputError(f"Suite file {path} is a directory, expected a file. {fix}") from None
    except OSError as error:
        raise InputError(f"Suite file {path} cannot be read: {error.strerror}. {fix}") from None
    if not raw:
        raise InputError(f"Suite file {path} is empty, expected one JSON object a line such as {_FORM}. {fix}")
    return raw


def parse(raw: bytes, path: Path) -> list[Case]:
    """The cases of a question file, plain or gzipped, in its order.

    raw: the file's bytes. path: only named in errors. Raises InputError with file and line number for whatever is not
    a question, and for two lines with the same question_id.
    """
    cases: list[Case] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(_unzipped(raw, path).split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        case = _case(_object(line, where), where)
        if case.id in line_of:
            raise InputError(
                f"{where}: question_id {case.id} is on line {line_of[case.id]} already; every question needs its own."
            )
        line_of[case.id] = number
        cases.append(case)
    if not cases:
        raise InputError(f"Suite file {path} holds no questions, expected one JSON object a line such as {_FORM}.")
    return cases


def _unzipped(raw: bytes, path: Path) -> bytes:
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): fetch or pack it again.") from None


def _object(line: bytes, where: str) -> dict[str, object]:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 (byte {error.start} of the line is 0x{line[error.start]:02x}): save the file as UTF-8."
        ) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}). Expected one object a line such as {_FORM}.") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object such as {_FORM}, got a {_kind(value)}.")
    return value


def _case(row: dict[str, object], where: str) -> Case:
    raw_category = row.get("category")
    if not isinstance(raw_category, str) or not raw_category.strip():
        raise InputError(f"{where}: {_got(row, 'category')}, expected the name of a category such as qa.")
    return Case(
        id=_question_id(row, where),
        category=MULTI_TURN if raw_category in MT_BENCH else raw_category,
        turns=_turns(row, where),
        subcategory=raw_category,
        references=_references(row, where),
    )


def _question_id(row: dict[str, object], where: str) -> str:
    value = row.get("question_id")
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole or (isinstance(value, str) and value.strip()):
        return str(value)
    raise InputError(f"{where}: {_got(row, 'question_id')}, expected a whole number or a non-empty string.")


def _turns(row: dict[str, object], where: str) -> tuple[str, ...]:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{where}: {_got(row, 'turns')}, expected a list of the user's messages, at least one.")
    for position, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            got = "is empty" if isinstance(turn, str) else f"is a {_kind(turn)}"
            raise InputError(f"{where}: turn {position} {got}, expected a non-empty string.")
    return tuple(turns)


def _references(row: dict[str, object], where: str) -> tuple[object, ...]:
    references = row.get("reference")
    if references is None:
        return ()
    if not isinstance(references, list):
        raise InputError(f"{where}: {_got(row, 'reference')}, expected a list (or leave reference out).")
    return tuple(references)


def _got(row: dict[str, object], key: str) -> str:
    if key not in row:
        return f"there is no {key}"
    value = row[key]
    empty = "an empty " if value in ("", []) else "a "
    return f"{key} is null" if value is None else f"{key} is {empty}{_kind(value)}"


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "true or false", int: "number", float: "number"}
    return names.get(type(value), "null")
