"""Input from users: files of JSON lines checked against a schema, constraints of settings, and the
error they raise.

Lines are split on the newline byte alone, because a JSON string may contain other line separators
(U+2028).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import io
import json
import math
import os
import re
import socket
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic_core import from_json

_T = TypeVar("_T")
_MARK = b"\xef\xbb\xbf"  # the byte order mark
# in a path, after an entry of several
_TYPE = re.compile(r"(constrained-)?(str|int|float|bool)|(list|dict)\[.*\]")
# times a packed file's size, which text never reaches; [bytes] allowed for any file
MOST_TIMES, ALWAYS = 100, 64 << 20
_SHOWN = 40  # characters of a wrong value
LONGEST_PART = 255  # [bytes] of a file's name
_LONGEST_SHOWN = 60  # characters of a path


class InputError(ValueError):
    """Bad input from the user: the message names the thing, what was got, what was expected, and
    the fix.
    """


def refuse_name(text: str, what: str) -> None:
    """Raise InputError for a text that no file system takes as a path. what: in front of it in the
    message.
    """
    shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
    longest = max(len(part.encode(errors="surrogatepass")) for part in text.split("/"))
    if longest > LONGEST_PART:
        raise InputError(
            f"{what}{shown}: a name of {longest} bytes; expected at most {LONGEST_PART}"
        )
    if re.search("[\0\ud800-\udfff]", text):
        raise InputError(f"{what}{shown!a}: contains NUL or is not UTF-8; expected text without")


def file_path(text: str) -> Path:
    """The path that an option of a command names, for argparse. Raises ArgumentTypeError for a text
    that is none.
    """
    try:
        refuse_name(text, "")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not text:
        raise argparse.ArgumentTypeError("got an empty name; expected a file or a folder")
    return Path(text)


def read_file(path: Path, what: str, fix: str) -> bytes:
    """The bytes that a regular file has now: a pipe might never end. Raises InputError, with
    ``what`` before the path.
    """
    with _reading(path, what, fix), path.open("rb") as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_lines(path: Path, what: str, fix: str, rest: bool = False) -> Iterator[bytes]:
    """The lines of a regular file with their newlines; a last one without a newline was cut, and is
    left out.

    rest: also that one, in a file of another program.
    """
    with _reading(path, what, fix), path.open("rb") as file:
        for line in file:
            if rest or line.endswith(b"\n"):
                yield line


GZIP = b"\x1f\x8b"  # what such a file begins with


def unpack_gzip(raw: bytes, where: str, fix: str) -> bytes:
    """The content of a gzip file. Raises InputError for a damaged one, and for one that would fill
    the memory.
    """
    most = max(MOST_TIMES * len(raw), ALWAYS)
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{where} is a damaged gzip file ({error}): fetch or pack it again."
        ) from None
    if len(unpacked) > most:
        raise InputError(f"{where}: unpacks to more than {MOST_TIMES} times its size; {fix}")
    return unpacked


@contextlib.contextmanager
def _reading(path: Path, what: str, fix: str) -> Iterator[None]:
    try:
        refuse_irregular(path, what, fix)
        yield
    except FileNotFoundError as error:
        raise InputError(f"{what}{path}: no such file; {fix}") from error
    except OSError as error:
        raise InputError(f"{what}{path}: cannot be read ({error.strerror}); {fix}") from error


def require_directory() -> None:
    """Raise InputError if the working directory does not exist any more."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise InputError(
            "the working directory was deleted: expected one that exists; change to it (cd)"
        ) from error


def refuse_irregular(path: Path, what: str, fix: str) -> None:
    """Raise InputError for anything but a regular file of a disk, OSError if nothing exists."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{what}{path}: is a directory, a pipe or a device; {fix}")


def refuse_foreign(path: Path, mark: bytes, fix: str) -> None:
    """Raise InputError for an output that exists and lacks ``mark``: it is no
    earlier one of ours.
    """
    if not path.exists():
        return
    refuse_irregular(path, "", fix)
    if (found := path.read_bytes()) and mark not in found:
        raise InputError(f"{path}: exists and was not written by specbench; {fix}")


def numbered_lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number from 1, without byte order marks."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, line.removeprefix(_MARK)


def decode_text(text: bytes, where: str) -> str:
    """Bytes of a line or a file as text, without a byte order mark. where: for the InputError if
    they are not UTF-8.
    """
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text, start = error.object, error.start  # without the mark
        above = text[:start].count(b"\n")
        line = f", line {above + 1}" if b"\n" in text.rstrip(b"\n") else ""  # of a file
        byte = start - text.rfind(b"\n", 0, start) - 1
        raise InputError(
            f"{where}{line}: not UTF-8 (byte {byte} of the line is 0x{text[start]:02x}): save the"
            " file as UTF-8."
        ) from None


def parse_json(text: bytes, where: str, fix: str) -> Any:
    """The value of a JSON text without NaN, infinity, half a surrogate pair or a repeated key.
    Raises InputError.
    """
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        decode_text(text, where)
        raise InputError(f"{where}: not JSON ({error}); {fix}") from None
    if isinstance(value, dict | list):
        refuse_repeated_keys(text, where)
    return value


def refuse_repeated_keys(text: bytes, where: str) -> None:
    """Raise InputError for a valid JSON text in which an object has a key twice, of which a parser
    keeps the last.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{where}: has {twice!r} twice in one object; expected each key once")

    # Python refuses an int of 4,300 digits
    json.loads(text, object_pairs_hook=check, parse_int=str)


_adapter_of = functools.cache(TypeAdapter)  # building one takes milliseconds


def parse_as(schema: type[_T] | TypeAdapter[_T], text: bytes, where: str, fix: str) -> _T:
    """A JSON text as what a schema describes. Raises InputError naming the first entry that does
    not fit.
    """
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
    got = cut(repr(found["input"]))
    reason = found["msg"]
    detail = (
        f", which{reason.removeprefix('Input')}"
        if reason.startswith("Input should")
        else f": {reason}"
    )
    return f"{entry or 'it'} is {got}{detail}"


def cut(value: str) -> str:
    """A wrong value as a message shows it."""
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."


def must(fits: Callable[[Any], bool], expected: str) -> AfterValidator:
    """A constraint of a setting's type. fits: whether a value is allowed; null always is. expected:
    for the message.
    """

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
        if value is None or (
            math.isfinite(value) and low <= value and (high is None or value <= high)
        ):
            return value
        upper = f" and at most {high}" if high is not None else ""
        raise ValueError(
            f"expected {'' if math.isfinite(value) else 'a finite number of '}at least {low}{upper}"
        )

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class When:
    """The condition under which a setting has an effect, next to its type; a setting may have
    several.

    key: the setting that decides. fits: (settings of the run, the setting's own key) -> whether the
    condition is met. needs: what would meet it, for the message.
    """

    key: str
    fits: Callable[[Any, str], bool]
    needs: str


def when(key: str, fits: Callable[[Any], bool], needs: str) -> When:
    """A condition on the settings of the run alone."""
    return When(key, lambda run, _: fits(run), needs)


def whole_numbers(text: str) -> list[int]:
    """'1,8,32' -> [1, 8, 32], of a command line."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", part) for part in parts):
        raise argparse.ArgumentTypeError(f"got {text!r}; expected whole numbers, such as 1,8,32")
    return [int(part) for part in parts]


def counts(text: str) -> tuple[int, ...]:
    """'8,1,8' -> (1, 8), of a command line: each once, from 1."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,5}", part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"got {text!r}; expected whole numbers from 1 to 999999, such as 1,8,32,128"
        )
    return tuple(sorted({int(part) for part in parts}))


_WAIT_S = 5
_HTTPS = 443
_FETCH = (
    "so only the local cache is read: fetch it where there is network (specbench fetch SETTINGS)"
)


@functools.cache
def refuse_network() -> str:
    """Why the hub is not asked, '' if it is. One that cannot be reached is switched off, as by
    HF_HUB_OFFLINE.
    """
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
