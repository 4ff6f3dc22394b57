"""What runs were set to, and what distinguishes two rows of a method: the parameters that differ, or the run's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.records.store import Run
from specbench.report.frames.facts import Facts, flatten


def name_variants(runs: Sequence[Run], facts: Sequence[Facts]) -> list[dict[str, str]]:
    """For each run: method -> variant, '' where there is one run of it.

    Runs of the same model and suite are compared. A variant lists the method's own parameters that differ ('k=v,...'),
    then the run's settings that differ ('decode.temperature=1'). Where rows still read alike, because two runs
    repeat the same thing, the run's directory is added: a row is always one run's, since pairs live in one process.
    """
    names: list[dict[str, str]] = [{} for _ in runs]
    for members in _alike(facts):
        loads = _LOAD if all(facts[index].load for index in members) else _LOAD_BESIDE_ONE
        settings = differing([read_settings(runs[index], facts[index], loads) for index in members])
        for method in dict.fromkeys(name for index in members for name in facts[index].methods):
            holders = [place for place, index in enumerate(members) if method in facts[index].methods]
            own = differing([read_parameters(runs[members[place]], method) for place in holders])
            labels = [_label({**own[rank], **settings[place]}) for rank, place in enumerate(holders)]
            for place, label in zip(holders, _distinct(labels, [runs[members[p]] for p in holders]), strict=True):
                names[members[place]][method] = label
    return names


def _alike(facts: Sequence[Facts]) -> list[list[int]]:
    """Indices of runs grouped by (model, suite)."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, fact in enumerate(facts):
        groups.setdefault((fact.model, fact.suite), []).append(index)
    return list(groups.values())


def _label(values: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    """A file by its name alone; two of one name are distinguished by their runs."""
    text = spell_value(value)
    return Path(text).name if isinstance(value, str) and Path(text).is_absolute() else text


def _distinct(labels: list[str], runs: list[Run]) -> list[str]:
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    directories = _directory_names(runs)
    return [
        ",".join(filter(None, (label, f"run={name}"))) if label in repeated else label
        for label, name in zip(labels, directories, strict=True)
    ]


def _directory_names(runs: list[Run]) -> list[str]:
    """The last parts of each run's path, as many as make them differ."""
    paths = [run.directory.resolve().parts for run in runs]
    length = max(len(parts) for parts in paths)
    for depth in range(1, length + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(parts[-1:])}#{rank}" for rank, parts in enumerate(paths)]


UNSET = "unset"
_RUN_SECTIONS = ("model", "engine", "decode", "measure")
_SELECTION = ("order", "seed", "limit", "first", "sample", "categories", "ids", "shots")  # of the suite's section
_NOT_NAMED = ("model.name", "model.path", "measure.fresh")  # two are the model column, the last moves nothing
_LOAD, _LOAD_BESIDE_ONE = ("load.",), ("load.kind", "load.requests", "load.rate")  # one request has none of the others
_MATERIAL = ("model.draft", "model.heads.", "model.frozen_table", "model.datastore")  # a parameter of who uses it


def read_settings(run: Run, facts: Facts, loads: tuple[str, ...] = _LOAD) -> dict[str, Any]:
    """The run's own settings, flat, without those that have a column or that are a method's. loads: kept of load's."""
    flat = flatten({key: run.section("config", key) for key in _RUN_SECTIONS})
    chosen = run.section("config", "suite")
    flat |= {f"suite.{key}": chosen[key] for key in _SELECTION if key in chosen}
    flat.setdefault("decode.temperature", facts.temperature)
    load = flatten(facts.load, "load.") or {"load.requests": 1, "load.kind": "one"}
    flat |= {key: value for key, value in load.items() if key.startswith(loads) and value is not None}
    return {key: value for key, value in flat.items() if key not in _NOT_NAMED and not key.startswith(_MATERIAL)}


def read_parameters(run: Run, method: str) -> dict[str, Any]:
    """A method's parameters, flat, its reset policy among them."""
    entry = run.section("methods", method)
    flat = flatten(run.section("methods", method, "parameters"))
    return flat | ({"reset": entry["reset"]} if "reset" in entry else {})


def differing(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each mapping only the keys on which not all agree."""
    keys = dict.fromkeys(key for choice in choices for key in choice)
    kept = [key for key in keys if len({repr(choice.get(key, UNSET)) for choice in choices}) > 1]
    return [{key: choice.get(key, UNSET) for key in kept} for choice in choices]


def spell_value(value: object) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else str(value)
