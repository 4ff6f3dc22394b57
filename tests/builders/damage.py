"""Damage of a JSON value: each of its entries in turn is another value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

HOLE = "\x00hole\x00"
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
    "1e300": ("1e300", "float"),
    "nan": ("NaN", "nan"),
    "text": ('"abc"', "str"),
    "half a character": ('"\\ud800"', "half"),
    "list": ("[1]", "list"),
    "object": ('{"a": 1}', "dict"),
}


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value as ``VALUES`` names it."""
    return "null" if value is None else type(value).__name__


def places_of(value: Any, above: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every entry of a JSON value, of a list the first."""
    entries: list[tuple[str | int, Any]] = [*value.items()] if isinstance(value, dict) else []
    entries += [*enumerate(value[:1])] if isinstance(value, list) else []
    for key, part in entries:
        yield (*above, key), part
        yield from places_of(part, (*above, key))


def mutants_of(value: Any) -> Iterator[tuple[str, str, bool, Callable[[], str]]]:
    """Yield (place, fault, whether its kind of value is another, what makes the JSON) of each."""
    for place, part in places_of(value):
        name = ".".join(map(str, place))
        for fault, (text, kind) in VALUES.items():
            wrong = kind != kind_of(part) and (kind, kind_of(part)) != ("int", "float")
            yield name, fault, wrong, partial(put, value, place, text)


def put(value: Any, place: Place, by: str) -> str:
    """Return the JSON text of a value with another text in a place."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = HOLE
    return json.dumps(copy).replace(json.dumps(HOLE), by)
