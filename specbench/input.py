"""Input from users: files of JSON lines checked against a schema, constraints of settings, and the error they raise.

Lines are split on the newline byte alone, because a JSON string may hold other line separators (U+2028).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic_core import from_json

_T = TypeVar("_T")
_MARK = b"\xef\xbb\xbf"  # the byte order mark
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device"}
_TYPE = re.compile(r"str|int|float|bool|(list|dict)\[.*\]")  # in a path, after an entry that may be of several types
_SHOWN = 40  # characters of a wrong value


class InputError(ValueError):
    """Bad input from the user: the message names the thing, what was got, what was expected, and the fix."""


def read_file(path: Path, what: str, fix: str) -> bytes:
    """The bytes of a regular file: a pipe might never end. Raises InputError, with ``what`` before the path."""
    with _reading(path, what, fix):
        return path.read_bytes()


def read_lines(path: Path, what: str, fix: str) -> Iterator[bytes]:
    """The lines of a regular file with their newlines; a last one without a newline was cut, and is left out."""
    with _reading(path, what, fix), path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


@contextlib.contextmanager
def _reading(path: Path, what: str, fix: str) -> Iterator[None]:
    try:
        refuse_irregular(path, what, fix)
        yield
    except FileNotFoundError as error:
        raise InputError(f"{what}{path}: no such file; {fix}") from error
    except OSError as error:
        raise InputError(f"{what}{path}: cannot be read ({error.strerror}); {fix}") from error


def refuse_irregular(path: Path, what: str, fix: str) -> None:
    """Raise InputError for anything but a regular file, OSError if nothing exists."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise InputError(f"{what}{path}: is {_KINDS.get(kind, 'no file')}; {fix}")


def numbered_lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number from 1, without byte order marks."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, line.removeprefix(_MARK)


def decode_text(text: bytes, where: str) -> str:
    """Bytes of a line or a file as text, without a byte order mark. where: for the InputError if they are not UTF-8."""
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text, start = error.object, error.start  # without the mark
        above = text[:start].count(b"\n")
        line = f", line {above + 1}" if b"\n" in text.rstrip(b"\n") else ""  # of a file
        byte = start - text.rfind(b"\n", 0, start) - 1
        raise InputError(
            f"{where}{line}: not UTF-8 (byte {byte} of the line is 0x{text[start]:02x}): save the file as UTF-8."
        ) from None


def parse_json(text: bytes, where: str, fix: str) -> Any:
    """The value of a JSON text without NaN, infinity or half a surrogate pair. Raises InputError."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        decode_text(text, where)
        raise InputError(f"{where}: not JSON ({error}); {fix}") from None


def refuse_repeated_keys(text: bytes, where: str) -> None:
    """Raise InputError for a valid JSON text in which an object has a key twice, of which a parser keeps the last."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{where}: has {twice!r} twice in one object; expected each key once")

    json.loads(text, object_pairs_hook=check, parse_int=str)  # Python refuses an int of 4,300 digits


_adapter_of = functools.cache(TypeAdapter)  # building one takes milliseconds


def parse_as(schema: type[_T] | TypeAdapter[_T], text: bytes, where: str, fix: str) -> _T:
    """A JSON text as what a schema describes. Raises InputError naming the first entry that does not fit."""
    adapter: TypeAdapter[_T] = schema if isinstance(schema, TypeAdapter) else _adapter_of(schema)  # type: ignore[arg-type]
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        decode_text(text, where)
        raise InputError(f"{where}: {describe(error)}; {fix}") from None


def describe(error: ValidationError) -> str:
    """The first entry that does not fit, what it is, and what was expected."""
    found = error.errors(include_url=False)[0]
    entry = ".".join(part for part in map(str, found["loc"]) if not _TYPE.fullmatch(part))
    if found["type"] == "json_invalid":
        return f"not JSON ({found['ctx']['error']})"
    if found["type"] == "missing":
        return f"{entry} is missing"
    got = repr(found["input"])
    got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}..."
    reason = found["msg"]
    detail = f", which{reason.removeprefix('Input')}" if reason.startswith("Input should") else f": {reason}"
    return f"{entry or 'it'} is {got}{detail}"


def must(fits: Callable[[Any], bool], expected: str) -> AfterValidator:
    """A constraint of a setting's type. fits: whether a value is allowed; null always is. expected: for the message."""

    def check(value: Any) -> Any:
        if value is not None and not fits(value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


def one_of(*known: str) -> AfterValidator:
    """A constraint: one of these words."""
    return must(lambda value: value in known, f"one of {', '.join(known)}")


def within(low: float, high: float | None = None) -> AfterValidator:
    """A constraint: a finite number within these bounds."""

    def check(value: float | None) -> float | None:
        if value is None or (math.isfinite(value) and low <= value and (high is None or value <= high)):
            return value
        upper = f" and at most {high}" if high is not None else ""
        raise ValueError(f"expected {'' if math.isfinite(value) else 'a finite number of '}at least {low}{upper}")

    return AfterValidator(check)


def whole_numbers(text: str) -> list[int]:
    """'1,8,32' -> [1, 8, 32], of a command line."""
    return [int(part) for part in text.split(",")]


def counts(text: str) -> tuple[int, ...]:
    """'8,1,8' -> (1, 8), of a command line: each once, from 1."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,5}", part) for part in parts):
        raise argparse.ArgumentTypeError(f"got {text!r}; expected whole numbers from 1 to 999999, such as 1,8,32,128")
    return tuple(sorted({int(part) for part in parts}))


_WAIT_S = 5
_HTTPS = 443
_FETCH = "so only the local cache is read: fetch it where there is network (specbench fetch SETTINGS)"


@functools.cache
def refuse_network() -> str:
    """Why the hub is not asked, '' if it is. One that cannot be reached is switched off, as by HF_HUB_OFFLINE."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, {_FETCH}, or unset it"
    place = urlsplit(constants.ENDPOINT)
    if getproxies():  # a proxy finds the host
        return ""
    try:
        socket.create_connection((place.hostname, place.port or _HTTPS), _WAIT_S).close()
    except OSError as error:
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:  # which copies it
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
        return f"{place.hostname} cannot be reached ({error.strerror or error}), {_FETCH}"
    return ""
