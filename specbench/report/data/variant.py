"""What tells two rows of the same method apart: the parameters that a sweep changed, or the run's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.report.data.facts import read_facts
from specbench.report.data.parameters import differing, read_parameters, read_settings, spell_value
from specbench.store import Run


def name_variants(runs: Sequence[Run]) -> list[dict[str, str]]:
    """For each run: method -> variant, '' where one run says it all.

    Runs of the same model and suite are compared. A variant lists the method's own parameters that differ ('k=v,...'),
    then the run's settings that differ ('decode.temperature=1'). Where rows still read alike, because two runs
    repeat the same thing, the run's directory is added: a row is always one run's, since pairs live in one process.
    """
    names: list[dict[str, str]] = [{} for _ in runs]
    for members in _alike(runs):
        settings = differing([read_settings(runs[index]) for index in members])
        for method in dict.fromkeys(name for index in members for name in read_facts(runs[index]).methods):
            holders = [place for place, index in enumerate(members) if method in read_facts(runs[index]).methods]
            own = differing([read_parameters(runs[members[place]], method) for place in holders])
            labels = [_label({**own[rank], **settings[place]}) for rank, place in enumerate(holders)]
            for place, label in zip(holders, _distinct(labels, [runs[members[p]] for p in holders]), strict=True):
                names[members[place]][method] = label
    return names


def _alike(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of runs grouped by (model, suite)."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, run in enumerate(runs):
        facts = read_facts(run)
        groups.setdefault((facts.model, facts.suite), []).append(index)
    return list(groups.values())


def _label(values: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    """A file by its name alone; two of one name are told apart by their runs."""
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
    """The last parts of each run's path, as many as it takes to tell them apart."""
    paths = [run.directory.resolve().parts for run in runs]
    length = max(len(parts) for parts in paths)
    for depth in range(1, length + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(parts[-1:])}#{rank}" for rank, parts in enumerate(paths)]
