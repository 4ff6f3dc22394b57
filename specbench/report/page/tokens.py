"""The token view of a page: what each step of the sampled cases emitted, and its data, as small as
plain JSON allows.

The sampled cases are those with recorded drafts, and the first ones. Ids, the parents of drafts and
the names of sources are written once, in tables, and are numbers everywhere else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup

from specbench.names import printable
from specbench.records.record import CONTROL, VANILLA, CaseRecord, TurnRecord
from specbench.records.store import Run
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.trials import Columns, Values
from specbench.report.label import label
from specbench.report.page.parts import part
from specbench.report.tokenizer import UNKNOWN, spell_ids, write_pieces

MOST_CASES = 12
MOST_ANSWERS = 24  # of one case: a sweep has hundreds
MOST_TOKENS = 120_000  # of all answers together
_FIRST = 3  # cases shown whether or not their drafts were recorded
TREE_BYTES = 1_200_000  # all drafts of a page together
PROMPT_CHARS = 4000
OWN = -1  # the target's own token, or one whose source is not known
_EMPTY_BYTES, _NODE_BYTES = 32, 5
_NONE_DRAFTED = 0
_LEFT_OUT = None
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_KEYS = (
    "Left and right arrows move by token, up and down by step, Home and End to the ends. Turns,"
    " steps and tokens are counted from 0, as in records.jsonl; token 0 is the prefill's and"
    " belongs to no step."
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One method's record of a case. name: as printed; run: the run of the record, whose tokenizer
    gives its text.
    """

    name: str
    record: CaseRecord
    run: Run
    kind: str  # reference | lossy | peer | ''


@dataclass(frozen=True, slots=True)
class SampledCase:
    """One question under every method. left_out: the number of answers that are not among
    ``answers``.
    """

    model: str
    suite: str
    case: str
    category: str
    answers: list[SampledAnswer] = field(default_factory=list)
    left_out: int = 0


def sample_cases(findings: Findings) -> list[SampledCase]:
    """Returns the sampled cases in the order of the records, by model and suite; the control is
    left out.
    """
    groups: dict[tuple[str, str], list[ReportedRun]] = {}
    for reported in findings.reported:
        groups.setdefault(reported.place, []).append(reported)
    chosen = {place: names for place, group in groups.items() if (names := _choose(group))}
    most = max(1, MOST_CASES // max(1, len(chosen)))
    cases = [
        _sample(groups[place], name) for place, names in chosen.items() for name in names[:most]
    ]
    return _fitting(cases, [sum(map(_tokens, case.answers)) for case in cases])


def _choose(group: Sequence[ReportedRun]) -> list[str]:
    """Returns the cases with recorded drafts, and the first ones."""
    found: dict[str, bool] = {}
    for reported in group:
        for _, columns, finished in _finished(reported):
            names = reported.trials.cases[columns["case"][finished]]
            for name, drawn in zip(names, columns["drawn"][finished], strict=True):
                found[name] = found.get(name, False) or drawn
    return [name for place, (name, drawn) in enumerate(found.items()) if drawn or place < _FIRST]


def _finished(reported: ReportedRun) -> Iterator[tuple[str, Columns, Values]]:
    """Yields (method, its columns, which of its records finished), the control left out."""
    for method in (name for name in reported.facts.methods if name != CONTROL):
        columns = reported.trials.columns(method)
        yield method, columns, columns["ok"] & (columns["turns"] > 0)


def _sample(group: Sequence[ReportedRun], name: str) -> SampledCase:
    found = [
        (reported, method, place) for reported in group for method, place in _places(reported, name)
    ]
    answers = []
    for reported, method, place in found[:MOST_ANSWERS]:
        facts = reported.facts
        kind = "lossy" if method in facts.lossy else "peer" if method in facts.peers else ""
        kind = "reference" if method == VANILLA else kind
        title = label(method, reported.variants.get(method, ""))
        answers.append(SampledAnswer(title, reported.run.records[place], reported.run, kind))
    kept = _fitting(answers, [_tokens(answer) for answer in answers])
    return SampledCase(
        *group[0].place, name, answers[0].record.category, kept, len(found) - len(kept)
    )


def _places(reported: ReportedRun, name: str) -> Iterator[tuple[str, int]]:
    """Yields (method, place of its record of this case): the record with drafts, else the first;
    never a failed one.
    """
    for number in np.flatnonzero(reported.trials.cases == name):
        for method, columns, finished in _finished(reported):
            rows = np.flatnonzero(finished & (columns["case"] == number))
            if len(rows):
                yield method, int(columns["record"][rows[np.argmax(columns["drawn"][rows])]])


def _tokens(answer: SampledAnswer) -> int:
    return sum(len(turn.ids) for turn in answer.record.turns)


def _fitting(entries: Sequence[_T], tokens: Sequence[int]) -> list[_T]:
    """Returns the entries that end within MOST_TOKENS, and always the first one."""
    ends = zip(entries, itertools.accumulate(tokens), strict=True)
    return [entry for place, (entry, end) in enumerate(ends) if not place or end <= MOST_TOKENS]


def _has_trees(record: CaseRecord) -> bool:
    """Returns whether complete drafts were recorded."""
    return any(turn.trees for turn in record.turns)


class _Numbers(dict[Any, int]):
    """Numbers values in the order of their first use."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


class _Packer:
    """Packs answers; pairs of (id, piece), parents of drafts and names of sources are numbered
    across all of them.
    """

    def __init__(self, budget: int, waiting: int) -> None:
        """budget: bytes for drafts, which ``waiting`` answers with drafts share evenly."""
        self.tokens, self.shapes, self.sources = _Numbers(), _Numbers(), _Numbers()
        self.left_out = 0
        self._budget, self._waiting = budget, waiting

    def pack_answer(self, answer: SampledAnswer, pieces: Mapping[int, str]) -> dict[str, Any]:
        """Packs an answer with the drafts that fit its share; what it leaves of that goes to the
        later answers.
        """
        allowance = self._budget // self._waiting if self._waiting else 0
        turns, spent = [], 0
        for turn in answer.record.turns:
            trees: list[object] = []
            for tree in turn.trees or ():
                nodes = len(tree["tokens"])
                several = len(tree.get("sources", {})) > 1
                cost = (_EMPTY_BYTES + nodes * (_NODE_BYTES + 2 * several)) if nodes else 0
                fits = spent + cost <= allowance
                trees.append(self._pack_tree(tree, pieces) if fits else _LEFT_OUT)
                spent, self.left_out = spent + cost * fits, self.left_out + (not fits)
            turns.append(self._pack_turn(turn, trees, pieces))
        self._budget, self._waiting = (
            self._budget - spent,
            self._waiting - _has_trees(answer.record),
        )
        return {"name": printable(answer.name), "kind": answer.kind, "turns": turns}

    def _pack_turn(
        self, turn: TurnRecord, trees: list[object], pieces: Mapping[int, str]
    ) -> dict[str, Any]:
        by: list[int] = []  # the source of each token that a step emitted
        for tree, count in zip(turn.trees or (), turn.accept, strict=False):
            path = self._find_sources(tree, tree["path"])
            by += [*path, *[OWN] * (count - len(path))]
        return {
            "ids": [self.tokens[token, pieces[token]] for token in turn.ids],
            "finish": turn.finish,
            "accept": turn.accept,
            "proposed": turn.proposed,
            "depth": turn.depth,
            "fed": turn.fed,
            "by": by if any(number != OWN for number in by) else [],
            "late": [step for step, tree in enumerate(turn.trees or ()) if tree.get("late")],
            "trees": trees,
        }

    def _find_sources(self, tree: Mapping[str, Any], nodes: Iterable[int]) -> list[int]:
        names = {node: name for name, own in tree.get("sources", {}).items() for node in own}
        return [self.sources[names[node]] if node in names else OWN for node in nodes]

    def _pack_tree(
        self, tree: Mapping[str, Any], pieces: Mapping[int, str]
    ) -> dict[str, Any] | int:
        """t: tokens, p: parents, a: accepted nodes, s: the source of all nodes or of each, x:
        passengers.
        """
        if not tree["tokens"]:
            return _NONE_DRAFTED
        numbers = self._find_sources(tree, range(len(tree["tokens"])))
        packed = {
            "t": [self.tokens[token, pieces[token]] for token in tree["tokens"]],
            "p": self.shapes[tuple(tree["parents"])],
            "a": tree["path"],
            "s": numbers[0] if len(set(numbers)) == 1 else numbers,
        }
        return packed | ({"x": tree["passengers"]} if tree.get("passengers") else {})


def token_data(cases: Sequence[SampledCase], tree_bytes: int = TREE_BYTES) -> dict[str, Any]:
    """Returns the data of ``tokens.js``. tree_bytes: of all drafts; ``trees_left_out`` counts those
    beyond it.
    """
    pieces = {id(run): spell_ids(run, ids) for run, ids in ids_by_run(cases)}
    packer = _Packer(
        tree_bytes, sum(_has_trees(answer.record) for case in cases for answer in case.answers)
    )
    shown = []
    for case in cases:
        prompts = ((answer, answer.record.turns[-1].prompt_ids or ()) for answer in case.answers)
        texts = ("".join(pieces[id(answer.run)][token] for token in ids) for answer, ids in prompts)
        prompt = next(filter(None, texts), "")
        shown.append(
            {
                "where": printable(f"{case.model} on {case.suite}"),
                "case": printable(case.case),
                "category": printable(case.category),
                "prompt": f"... {prompt[-PROMPT_CHARS:]}" if len(prompt) > PROMPT_CHARS else prompt,
                "left_out": case.left_out,
                "answers": [
                    packer.pack_answer(answer, pieces[id(answer.run)]) for answer in case.answers
                ],
            }
        )
    return {
        "ids": [token for token, _ in packer.tokens],
        "pieces": [piece for _, piece in packer.tokens],
        "shapes": [list(shape) for shape in packer.shapes],
        "sources": list(map(printable, packer.sources)),
        "cases": shown,
        "trees_left_out": packer.left_out,
    }


def ids_by_run(cases: Sequence[SampledCase]) -> list[tuple[Run, set[int]]]:
    """Returns each run with all ids that the view shows of it: prompts, answers, drafts."""
    found: dict[int, tuple[Run, set[int]]] = {}
    for answer in (answer for case in cases for answer in case.answers):
        _, ids = found.setdefault(id(answer.run), (answer.run, set()))
        for turn in answer.record.turns:
            ids.update(turn.ids, turn.prompt_ids or ())
            ids.update(*(tree["tokens"] for tree in turn.trees or ()))
    return list(found.values())


def token_section(cases: Sequence[SampledCase]) -> Markup:
    """Returns the place of the view and its data; '' if no case finished."""
    if not cases:
        return Markup("")
    data = token_data(cases)
    notes = [_KEYS]
    if not any(_has_trees(answer.record) for case in cases for answer in case.answers):
        notes.append(
            "No drafts were recorded: run with measure.keep_trees=3 to see them and their sources."
        )
    if data["trees_left_out"]:
        notes.append(
            f"{data['trees_left_out']} drafts are left out to keep the page small; records.jsonl"
            " has them."
        )
    if all(
        piece == UNKNOWN.format(token)
        for token, piece in zip(data["ids"], data["pieces"], strict=True)
    ):
        notes.append("Ids are shown, since the run's tokenizer was not found on this machine.")
    return part("tokens", " ".join(notes), Markup(embed(data)))


def embed(data: Mapping[str, Any]) -> str:
    """Returns JSON that no text inside can end: it is ASCII without '<', '>' and '&'."""
    return json.dumps(data, separators=(",", ":")).translate(_ESCAPES)


def keep_pieces(findings: Findings, output: Path) -> list[Path]:
    """Keeps the text of the shown tokens next to the records of the run that is reported in its own
    directory.

    The page can then be made again on a machine without the run's tokenizer.
    """
    shown = ids_by_run(sample_cases(findings))
    written = (
        write_pieces(run, ids) for run, ids in shown if run.directory.resolve() == output.resolve()
    )
    return [path for path in written if path is not None]
