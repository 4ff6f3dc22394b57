"""The settings that decide the records of a run: their hash names the run, and decides whether it
can be resumed.

A run may get more methods, cases and rounds. So the settings of every method are compared
separately, and the rest without the settings that select cases and rounds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

OUTSIDE = ("report", "run")  # groups that change no record; below, such settings of other groups
OUTSIDE_OF = {"measure": ("fresh", "price_per_hour"), "suite": ("home",), "load": ("slo",)}
# Of ``model``: a parameter of each method that uses it, with which it is compared.
MATERIAL = ("draft", "heads", "frozen_table", "datastore")
# Settings by which a run may grow without a change of its earlier figures.
GROWS = {"measure": ("rounds",), "suite": ("categories", "first", "ids", "limit", "sample")}


def decisive(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, as plain values, without those that change no record."""
    kept = {group: values for group, values in resolved.items() if group not in OUTSIDE}
    for group, keys in OUTSIDE_OF.items():
        kept[group] = {key: value for key, value in kept.get(group, {}).items() if key not in keys}
    return kept


def digest(resolved: Mapping[str, Any]) -> str:
    """The hash of everything that can change a record."""
    return hashlib.sha256(
        json.dumps(decisive(resolved), sort_keys=True, default=str).encode()
    ).hexdigest()


def fixed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that stay the same while a run grows: without its methods, cases and rounds."""
    kept = {group: values for group, values in decisive(resolved).items() if group != "method"}
    apart = {**GROWS, "model": MATERIAL}
    return kept | {
        group: {k: v for k, v in kept.get(group, {}).items() if k not in keys}
        for group, keys in apart.items()
    }


def with_outside(resolved: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with those that change no record taken from another command."""
    kept: dict[str, Any] = {
        **resolved,
        **{group: other[group] for group in OUTSIDE if group in other},
    }
    for group, keys in OUTSIDE_OF.items():
        kept[group] = {
            **kept.get(group, {}),
            **{key: other[group][key] for key in keys if key in other.get(group, {})},
        }
    return kept


def find_difference(one: Any, two: Any, path: str = "") -> tuple[str, Any, Any]:
    """The first entry in which two values differ: its dotted path ('' without a difference) and
    both values.
    """
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in [*one, *(key for key in two if key not in one)]:
            if one.get(key) != two.get(key):
                return find_difference(one.get(key), two.get(key), f"{path}.{key}".strip("."))
    return path, one, two
