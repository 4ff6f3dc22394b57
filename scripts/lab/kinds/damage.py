"""Damage of a file: its bytes as a whole, what takes its place, and every entry of a JSON value."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

LONG = 60 * 10**6  # [bytes] of a line
STEERING = "\x1b[31m\u202ered\x9b"
MOST_ENTRIES, SOME_ENTRIES = 40, 3  # of an object: one with more is a vocabulary
HOLE = "\x00fuzz\x00"
Place = tuple[str | int, ...]

# Fault -> the JSON text that takes the place of a value, and the kind of JSON value that it is.
VALUES: dict[str, tuple[str, str]] = {
    "null": ("null", "null"),
    "true": ("true", "bool"),
    "negative": ("-1", "int"),
    "a thousand": ("1000", "int"),
    "2^31": ("2147483648", "int"),
    "10^30": (f"{10**30}", "int"),
    "fraction": ("1.5", "float"),
    "1e9": ("1e9", "float"),
    "1e300": ("1e300", "float"),
    "nan": ("NaN", "nan"),
    "infinite": ("Infinity", "nan"),
    "text": ('"abc"', "str"),
    "number as text": ('"1"', "str"),
    "empty text": ('""', "str"),
    "long text": (f'"{"x" * 5000}"', "str"),
    "steering text": (json.dumps(STEERING), "str"),
    "markup text": ('"[bold red]x[/]<script>alert(1)</script>"', "str"),
    "half a character": ('"\\ud800"', "half"),
    "empty list": ("[]", "list"),
    "list": ("[1]", "list"),
    "list of lists": ("[[1]]", "list"),
    "empty object": ("{}", "dict"),
    "object": ('{"a": 1}', "dict"),
}
ABSENT, TWICE = "absent", "twice"


def kind_of(value: Any) -> str:
    """Returns the kind of a JSON value as ``VALUES`` names it."""
    return "null" if value is None else type(value).__name__


def places_of(value: Any, above: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every entry of a JSON value: of a list the first, of an object with many entries some."""
    entries: list[tuple[str | int, Any]] = [*value.items()] if isinstance(value, dict) else []
    entries = entries if len(entries) <= MOST_ENTRIES else entries[:SOME_ENTRIES]
    entries += [*enumerate(value[:1])] if isinstance(value, list) else []
    for key, part in entries:
        yield (*above, key), part
        yield from places_of(part, (*above, key))


def mutants_of(value: Any) -> Iterator[tuple[str, str, bool, Callable[[], str]]]:
    """Yield (place, fault, whether its kind of value is another, what makes the JSON) for each entry of a value."""
    for place, part in places_of(value):
        name = ".".join(map(str, place))
        for fault, (text, kind) in VALUES.items():
            wrong = kind != kind_of(part) and (kind, kind_of(part)) != ("int", "float")
            yield name, fault, wrong, partial(_replace, value, place, text)
        if isinstance(place[-1], str):
            twice = f"{json.dumps(part)}, {json.dumps(place[-1])}: {json.dumps(part)}"
            yield name, TWICE, True, partial(_replace, value, place, twice)
            yield name, ABSENT, False, partial(_replace, value, place, None)


def _replace(value: Any, place: Place, by: str | None) -> str:
    """The JSON text of a value with another text in a place; None leaves the place out."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = HOLE
    if by is None:
        del inner[place[-1]]
    return json.dumps(copy).replace(json.dumps(HOLE), by or "")


# Fault -> the bytes of a damaged file, of those of the whole one.
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "blank lines": lambda content: b"\n \n\t\n",
    "binary": lambda content: random.Random(0).randbytes(5000),
    "cut": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "twice": lambda content: content * 2,
    "not UTF-8": lambda content: content[: len(content) // 2] + b"\xff\xfe" + content[len(content) // 2 :],
    "UTF-16": lambda content: content.decode(errors="replace").encode("utf-16"),
    "byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "CRLF": lambda content: content.replace(b"\n", b"\r\n"),
    "NUL": lambda content: content + bytes(1000),
    "nested": lambda content: b"[" * 100_000,
    "nested object": lambda content: b'{"a":' * 100_000,
    "line of 60 MB": lambda content: b"x" * LONG,
    "text of 60 MB": lambda content: b'{"' + b"x" * LONG + b'": 1}\n',
    "list of 20 million": lambda content: b"[" + b"1," * 20_000_000 + b"1]\n",
    "a last line of garbage": lambda content: content + b"garbage\n",
    "null": lambda content: b"null\n",
    "number": lambda content: b"3\n",
    "list": lambda content: b"[]\n",
    "object": lambda content: b"{}\n",
    "steering": lambda content: STEERING.encode() + b"\n",
}
# Fault -> what takes the place of the file.
THINGS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "kernel's log": lambda path: path.symlink_to("/proc/kmsg"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("gone"),
}
WRONG = {"binary", "UTF-16", "not UTF-8", "nested", "nested object", "line of 60 MB", *THINGS}  # for any format of text
