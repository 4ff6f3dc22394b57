"""What a run was set to, flat: a method's parameters and the run's own settings, and which of them runs differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.report.data.facts import flatten, read_facts
from specbench.store import Run

UNSET = "unset"
_RUN_SECTIONS = ("model", "engine", "decode", "measure")
_SELECTION = ("order", "seed", "limit", "first", "sample", "categories", "ids", "shots")  # of the suite's section
_UNTOLD = ("model.name", "model.path", "measure.fresh")  # two are the model column, the last moves nothing
_MATERIAL = ("model.draft", "model.heads.", "model.frozen_table", "model.datastore")  # a parameter of who uses it


def read_settings(run: Run) -> dict[str, Any]:
    """The run's own settings, flat, without those that have a column or that are a method's."""
    config = run.manifest.get("config")
    sections = config if isinstance(config, Mapping) else {}
    flat = flatten({key: sections[key] for key in _RUN_SECTIONS if isinstance(sections.get(key), Mapping)})
    suite = sections.get("suite")
    chosen = suite if isinstance(suite, Mapping) else {}
    flat |= {f"suite.{key}": chosen[key] for key in _SELECTION if key in chosen}
    flat.setdefault("decode.temperature", read_facts(run).temperature)
    return {key: value for key, value in flat.items() if key not in _UNTOLD and not key.startswith(_MATERIAL)}


def read_parameters(run: Run, method: str) -> dict[str, Any]:
    """A method's parameters, flat, its reset policy among them."""
    entry = run.manifest["methods"].get(method)
    if not isinstance(entry, Mapping):
        return {}
    parameters = entry.get("parameters")
    flat = flatten(parameters) if isinstance(parameters, Mapping) else {}
    return flat | ({"reset": entry["reset"]} if "reset" in entry else {})


def differing(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each mapping only the keys on which not all agree."""
    keys = dict.fromkeys(key for choice in choices for key in choice)
    kept = [key for key in keys if len({repr(choice.get(key, UNSET)) for choice in choices}) > 1]
    return [{key: choice.get(key, UNSET) for key in kept} for choice in choices]


def spell_value(value: object) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else str(value)
