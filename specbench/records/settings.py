"""Settings of runs on one level of dotted keys, and those in which several runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

UNSET = "unset"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one level of dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def differing(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each mapping with only the keys on which not all agree."""
    keys = dict.fromkeys(key for choice in choices for key in choice)
    kept = [key for key in keys if len({repr(choice.get(key, UNSET)) for choice in choices}) > 1]
    return [{key: choice.get(key, UNSET) for key in kept} for choice in choices]


def spell_value(value: object) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else str(value)
