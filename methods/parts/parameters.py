"""The parameters of a method as fields of a dataclass, which state the values that they allow.

A method's constructor is the schema of its configuration, and ``dataclass`` writes it from these
fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from specbench.types import MOST, InputError, require_count

KEPT = 1 << 28  # entries that a table may keep: they take memory only as requests fill it


def count(default: int | None, low: int = 1, high: int = MOST) -> Any:
    """A parameter that is a whole number from ``low`` to ``high``, or None if its type allows
    that.
    """
    return field(default=default, metadata={"low": low, "high": high})


def number(default: float | None, allows: Callable[[float], bool], expected: str) -> Any:
    """A parameter that ``allows`` accepts, or None if its type allows that. expected: the end of
    the message.
    """
    return field(default=default, metadata={"allows": allows, "expected": expected})


def probability(default: float) -> Any:
    """A parameter from 0 to 1."""
    return number(default, lambda value: 0 <= value <= 1, "a probability, 0 to 1")


def positive(default: float) -> Any:
    """A parameter above 0 whose products stay finite."""
    return number(default, lambda value: 0 < value <= 1e9, "a number above 0, at most 1e9")


class Parameters:
    """A dataclass whose fields of ``count`` and ``number`` are checked when it is made."""

    def __post_init__(self) -> None:
        for parameter in fields(self):  # type: ignore[arg-type]
            value, rule = getattr(self, parameter.name), parameter.metadata
            if value is None and str(parameter.type).endswith("| None"):
                continue
            if parameter.type == "bool" and not isinstance(value, bool):
                raise InputError(f"{parameter.name}={value}: expected true or false")
            if "low" in rule:
                require_count(parameter.name, value, **rule)
            if "allows" in rule and (value is None or not rule["allows"](value)):
                raise InputError(
                    f"{parameter.name}={'null' if value is None else value}: expected"
                    f" {rule['expected']}"
                )
