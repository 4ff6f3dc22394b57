"""A row of a suite's file or data set, and where it stands, so that what is wrong with it can be pointed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.types import InputError


@dataclass(frozen=True, slots=True)
class Row:
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
        """The text under ``key``, as it stands; InputError, which says what was ``expected``, for anything else."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{self.where}: {self.got(key)}, expected {expected}.")
        return value

    def whole(self, key: str, expected: str) -> int:
        """The whole number under ``key``; InputError, which says what was ``expected``, for anything else."""
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
