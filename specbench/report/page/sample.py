"""The sampled cases that a page shows token by token: those with recorded drafts, and the first ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from specbench.records.record import CONTROL, CaseRecord
from specbench.records.store import Run
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.trials import Columns, Values
from specbench.report.label import label

MOST_CASES = 12
MOST_ANSWERS = 24  # of one case: a sweep has hundreds
MOST_TOKENS = 120_000  # of all answers together
_T = TypeVar("_T")
_FIRST = 3  # cases shown whether or not their drafts were recorded


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One method's record of a case. name: as printed; run: the run that it is of, whose tokenizer gives its text."""

    name: str
    record: CaseRecord
    run: Run
    lossy: bool
    peer: bool


@dataclass(frozen=True, slots=True)
class SampledCase:
    """One question under every method. left_out: how many answers are not among ``answers``."""

    model: str
    suite: str
    case: str
    category: str
    answers: list[SampledAnswer] = field(default_factory=list)
    left_out: int = 0


def sample_cases(findings: Findings) -> list[SampledCase]:
    """The sampled cases in the order of the records, each model and suite apart; the control is left out."""
    places = dict.fromkeys(reported.place for reported in findings.reported)
    groups = {place: [each for each in findings.reported if each.place == place] for place in places}
    chosen = {place: names for place, group in groups.items() if (names := _choose(group))}
    room = max(1, MOST_CASES // max(1, len(chosen)))
    cases = [_case(groups[place], name) for place, names in chosen.items() for name in names[:room]]
    return _fitting(cases, [sum(map(_tokens, case.answers)) for case in cases])


def _choose(group: Sequence[ReportedRun]) -> list[str]:
    """The cases with recorded drafts, and the first."""
    found: dict[str, bool] = {}
    for reported in group:
        for method in _methods(reported):
            columns = reported.trials.columns(method)
            good = _finished(columns)
            names = reported.trials.cases[columns["case"][good]]
            for name, drawn in zip(names, columns["drawn"][good], strict=True):
                found[name] = found.get(name, False) or drawn
    return [name for place, (name, drawn) in enumerate(found.items()) if drawn or place < _FIRST]


def _methods(reported: ReportedRun) -> Iterator[str]:
    return (method for method in reported.facts.methods if method != CONTROL)


def _finished(columns: Columns) -> Values:
    return columns["ok"] & (columns["turns"] > 0)


def _case(group: Sequence[ReportedRun], name: str) -> SampledCase:
    found = [(reported, method, place) for reported in group for method, place in _places(reported, name)]
    answers = [
        SampledAnswer(
            label(method, reported.variants.get(method, "")),
            reported.run.records[place],
            reported.run,
            method in reported.facts.lossy,
            method in reported.facts.peers,
        )
        for reported, method, place in found[:MOST_ANSWERS]
    ]
    kept = _fitting(answers, [_tokens(answer) for answer in answers])
    return SampledCase(*group[0].place, name, answers[0].record.category, kept, len(found) - len(kept))


def _places(reported: ReportedRun, name: str) -> Iterator[tuple[str, int]]:
    """(method, place of its record of this case): the one with drafts, else the first; failed ones are left out."""
    trials = reported.trials
    for number in np.flatnonzero(trials.cases == name):
        for method in _methods(reported):
            columns = trials.columns(method)
            rows = np.flatnonzero(_finished(columns) & (columns["case"] == number))
            if len(rows):
                yield method, int(columns["record"][rows[np.argmax(columns["drawn"][rows])]])


def _tokens(answer: SampledAnswer) -> int:
    return sum(len(turn.ids) for turn in answer.record.turns)


def _fitting(entries: Sequence[_T], tokens: Sequence[int]) -> list[_T]:
    """The entries that end within MOST_TOKENS; the first one always."""
    ends = itertools.accumulate(tokens)
    return [
        entry for place, (entry, end) in enumerate(zip(entries, ends, strict=True)) if not place or end <= MOST_TOKENS
    ]


def has_trees(record: CaseRecord) -> bool:
    """Whole drafts were recorded."""
    return any(turn.trees for turn in record.turns)
