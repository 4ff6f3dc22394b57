"""The sampled cases that a page shows token by token: those with recorded drafts, and the first ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from specbench.record import CONTROL, CaseRecord
from specbench.report.data.findings import Findings
from specbench.report.text.label import label
from specbench.store import Run

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
    found: dict[tuple[str, str, str], list[SampledAnswer]] = {}
    for reported in findings.reported:
        run, facts = reported.run, reported.facts
        records = _first_records(run)
        ranks = {method: rank for rank, method in enumerate(facts.methods)}
        for case, method in sorted(records, key=lambda key: ranks[key[1]]):
            name = label(method, reported.variants.get(method, ""))
            answer = SampledAnswer(name, records[case, method], run, method in facts.lossy, method in facts.peers)
            found.setdefault((*reported.place, case), []).append(answer)
    groups = _groups(found)
    room = max(1, MOST_CASES // max(1, len(groups)))
    cases = [_case(key, answers) for group in groups.values() for key, answers in _chosen(group)[:room]]
    return _fitting(cases, [sum(map(_tokens, case.answers)) for case in cases])


def _tokens(answer: SampledAnswer) -> int:
    return sum(len(turn.ids) for turn in answer.record.turns)


def _fitting(entries: Sequence[_T], tokens: Sequence[int]) -> list[_T]:
    """The entries that end within MOST_TOKENS; the first one always."""
    ends = itertools.accumulate(tokens)
    return [
        entry for place, (entry, end) in enumerate(zip(entries, ends, strict=True)) if not place or end <= MOST_TOKENS
    ]


def _first_records(run: Run) -> dict[tuple[str, str], CaseRecord]:
    """(case, method) -> the record with trees, else the first; failed ones and the control's are left out."""
    found: dict[tuple[str, str], CaseRecord] = {}
    for record in run.records:
        if record.status != "ok" or not record.turns or record.method == CONTROL:
            continue
        known = found.setdefault((record.case, record.method), record)
        if has_trees(record) and not has_trees(known):
            found[record.case, record.method] = record
    return found


def has_trees(record: CaseRecord) -> bool:
    """Whole drafts were recorded."""
    return any(turn.trees for turn in record.turns)


_Entry = tuple[tuple[str, str, str], list[SampledAnswer]]


def _groups(found: Mapping[tuple[str, str, str], list[SampledAnswer]]) -> dict[tuple[str, str], list[_Entry]]:
    groups: dict[tuple[str, str], list[_Entry]] = {}
    for key, answers in found.items():
        groups.setdefault(key[:2], []).append((key, answers))
    return groups


def _chosen(group: Sequence[_Entry]) -> Sequence[_Entry]:
    drawn = (any(has_trees(answer.record) for answer in answers) for _, answers in group)
    return [entry for place, (entry, shown) in enumerate(zip(group, drawn, strict=True)) if shown or place < _FIRST]


def _case(key: tuple[str, str, str], answers: list[SampledAnswer]) -> SampledCase:
    kept = answers[:MOST_ANSWERS]
    kept = _fitting(kept, [_tokens(answer) for answer in kept])
    return SampledCase(*key, answers[0].record.category, kept, len(answers) - len(kept))
