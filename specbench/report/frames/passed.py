"""Which answers passed the tests of a sandbox of the user's: JSON lines that it wrote. Code is never run here."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NotRequired

import numpy as np
from pydantic import StrictBool, TypeAdapter
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines, parse_as, read_file
from specbench.records.record import CONTROL, Count
from specbench.report.frames.trials import MethodTrials, Trials

_EXPECTED = 'expected lines such as {"task_id": "HumanEval/0", "method": "pld", "round": 0, "passed": true}'
_SHOWN = 5  # answers of an error
Key = tuple[str, str, int]  # method, case, round


class _Line(TypedDict):
    task_id: str | int
    method: str
    passed: StrictBool
    round: NotRequired[Count]


@functools.cache
def _schema() -> TypeAdapter[_Line]:
    return TypeAdapter(_Line)


def read_passed(paths: Sequence[Path]) -> dict[Key, bool]:
    """Whether each answer passed. Raises InputError naming file and line, also of a second row of an answer."""
    found: dict[Key, bool] = {}
    for path in paths:
        for number, text in numbered_lines(read_file(path, "--passed ", _EXPECTED)):
            where = f"{path}, line {number}"
            line = parse_as(_schema(), text, where, _EXPECTED)
            key = (line["method"], str(line["task_id"]), line.get("round", 0))
            if key in found:
                raise InputError(f"{where}: {_spell(key)} has a row already; expected one row an answer")
            found[key] = line["passed"]
    if not found:
        raise InputError(f"--passed {', '.join(map(str, paths))}: no rows; {_EXPECTED}")
    return found


def with_passed(trials: Sequence[Trials], passed: Mapping[Key, bool]) -> list[Trials]:
    """The trials with these answers checked. trials: of one run, which may have grown.

    A method that has a row needs one for every finished answer of the categories that have any. Raises InputError for
    a row of no answer, and for an answer without a row.
    """
    every = {key: (category, counted) for each in trials for key, category, counted in _answers(each)}
    such = f"expected its cases and methods, such as {_spell(next(iter(every)))}" if every else "it has no answer"
    _refuse([key for key in passed if key not in every], "of no answer of the run", such)
    methods, categories = {key[0] for key in passed}, {every[key][0] for key in passed}
    due = [key for key, (category, counted) in every.items() if counted and category in categories]
    lacking = [key for key in due if key[0] in methods and key not in passed]
    _refuse(lacking, "missing", "expected one row an answer, false where the tests did not end")
    return [
        replace(each, methods={name: _checked(each, name, found, passed) for name, found in each.methods.items()})
        for each in trials
    ]


def _answers(trials: Trials) -> Iterator[tuple[Key, str, bool]]:
    """(key, category, whether it counts) of every answer."""
    for method, found in trials.methods.items():
        columns = found.columns
        names, categories = trials.cases[columns["case"]], trials.categories[columns["category"]]
        for case, category, number, counted in zip(
            names, categories, columns["round"], columns["counted"], strict=True
        ):
            yield (method, str(case), int(number)), str(category), bool(counted) and method != CONTROL


def _checked(trials: Trials, method: str, found: MethodTrials, passed: Mapping[Key, bool]) -> MethodTrials:
    columns = found.columns
    names = zip(trials.cases[columns["case"]], columns["round"], strict=True)
    verdicts = [passed.get((method, str(case), int(number))) for case, number in names]
    given = np.array([verdict is not None for verdict in verdicts], dtype=bool)
    correct = np.where(given, np.array(verdicts, dtype=bool), columns["correct"])
    return replace(found, columns={**columns, "checked": columns["checked"] | given, "correct": correct})


def _refuse(keys: Sequence[Key], what: str, fix: str) -> None:
    if keys:
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        raise InputError(f"--passed: {len(keys)} rows are {what}: {'; '.join(map(_spell, keys[:_SHOWN]))}{more}; {fix}")


def _spell(key: Key) -> str:
    method, case, number = key
    return f"{case} of {method}" + (f" in round {number}" if number else "")
