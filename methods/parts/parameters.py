"""The parameters of a method as fields of a dataclass, which state the values that they allow.

A method's constructor is the schema of its configuration, and ``dataclass`` writes it from these fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from specbench.types import InputError, require_count


def count(default: int | None, low: int = 1, high: int | None = None) -> Any:
    """A parameter that is a whole number from ``low`` to ``high``, or None."""
    return field(default=default, metadata={"low": low, "high": high})


def number(default: float | None, allows: Callable[[float], bool], expected: str) -> Any:
    """A parameter that ``allows`` accepts, or None. expected: the end of the message about another value."""
    return field(default=default, metadata={"allows": allows, "expected": expected})


class Parameters:
    """A dataclass whose fields of ``count`` and ``number`` are checked when it is made."""

    def __post_init__(self) -> None:
        for parameter in fields(self):  # type: ignore[arg-type]
            value, rule = getattr(self, parameter.name), parameter.metadata
            if "low" in rule and value is not None:
                require_count(parameter.name, value, **rule)
            if "allows" in rule and value is not None and not rule["allows"](value):
                raise InputError(f"{parameter.name}={value}: expected {rule['expected']}")
