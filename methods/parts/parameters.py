"""The parameters of a method as fields of a dataclass; those that are whole numbers state their bounds.

A method's constructor is the schema of its configuration, and ``dataclass`` writes it from these fields.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from specbench.types import require_count


def count(default: int | None, low: int = 1, high: int | None = None) -> Any:
    """A parameter that is a whole number from ``low`` to ``high``, or None."""
    return field(default=default, metadata={"low": low, "high": high})


class Parameters:
    """A dataclass whose counts are checked when it is made."""

    def __post_init__(self) -> None:
        for parameter in fields(self):  # type: ignore[arg-type]
            value = getattr(self, parameter.name)
            if "low" in parameter.metadata and value is not None:
                require_count(parameter.name, value, **parameter.metadata)
