"""The token view of a page: what each step of the sampled cases emitted, and its data, as small as plain JSON allows.

Ids, the parents of drafts and the names of sources are written once, in tables, and are numbers everywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.names import printable
from specbench.records.record import VANILLA, TurnRecord
from specbench.records.store import Run
from specbench.report.frames.findings import Findings
from specbench.report.page.elements import escape
from specbench.report.page.pieces import UNKNOWN, spell_ids, write_pieces
from specbench.report.page.sample import SampledAnswer, SampledCase, has_trees, sample_cases

TREE_BYTES = 1_200_000  # all drafts of a page together
PROMPT_CHARS = 4000
OWN = -1  # the target's own token, or one whose source is not known
_EMPTY_BYTES, _NODE_BYTES = 32, 5
_NONE_DRAFTED = 0
_LEFT_OUT = None


@dataclass(slots=True)
class _Tables:
    """What is written once: pairs (id, piece), parents of drafts, names of sources; each a value -> its number."""

    tokens: dict[tuple[int, str], int] = field(default_factory=dict)
    shapes: dict[tuple[int, ...], int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)

    def token(self, token: int, pieces: Mapping[int, str]) -> int:
        """Number of a token."""
        return self.tokens.setdefault((token, pieces[token]), len(self.tokens))

    def shape(self, parents: Sequence[int]) -> int:
        """Number of a draft's parents."""
        return self.shapes.setdefault(tuple(parents), len(self.shapes))

    def source(self, name: str) -> int:
        """Number of a source."""
        return self.sources.setdefault(name, len(self.sources))


def token_data(cases: Sequence[SampledCase], tree_bytes: int = TREE_BYTES) -> dict[str, Any]:
    """The data of ``tokens.js``.

    Answers share ``tree_bytes`` evenly, what one leaves goes to the later ones; drafts beyond them are left out, which
    ``trees_left_out`` counts.
    """
    tables = _Tables()
    pieces = {id(run): spell_ids(run, ids) for run, ids in ids_by_run(cases)}
    waiting = sum(has_trees(answer.record) for case in cases for answer in case.answers)
    budget = tree_bytes
    shown, left_out = [], 0
    for case in cases:
        answers = []
        for answer in case.answers:
            allowance = budget // waiting if waiting else 0
            packed, spent, dropped = _answer(answer, pieces[id(answer.run)], tables, allowance)
            answers.append(packed)
            budget, left_out, waiting = budget - spent, left_out + dropped, waiting - has_trees(answer.record)
        shown.append(_case(case, answers, pieces))
    return {
        "ids": [token for token, _ in tables.tokens],
        "pieces": [piece for _, piece in tables.tokens],
        "shapes": [list(shape) for shape in tables.shapes],
        "sources": list(map(printable, tables.sources)),
        "cases": shown,
        "trees_left_out": left_out,
    }


def ids_by_run(cases: Sequence[SampledCase]) -> list[tuple[Run, set[int]]]:
    """Each run with all ids that the view shows of it: prompts, answers, drafts."""
    found: dict[int, tuple[Run, set[int]]] = {}
    for answer in (answer for case in cases for answer in case.answers):
        _, ids = found.setdefault(id(answer.run), (answer.run, set()))
        for turn in answer.record.turns:
            ids.update(turn.ids, turn.prompt_ids or ())
            ids.update(*(tree["tokens"] for tree in turn.trees or ()))
    return list(found.values())


def _case(case: SampledCase, answers: list[dict[str, Any]], pieces: Mapping[int, Mapping[int, str]]) -> dict[str, Any]:
    prompt = ""
    for answer in case.answers:
        ids = answer.record.turns[-1].prompt_ids
        if ids and not prompt:
            prompt = "".join(pieces[id(answer.run)][token] for token in ids)
    cut = len(prompt) > PROMPT_CHARS
    return {
        "where": printable(f"{case.model} on {case.suite}"),
        "case": printable(case.case),
        "category": printable(case.category),
        "prompt": f"... {prompt[-PROMPT_CHARS:]}" if cut else prompt,
        "left_out": case.left_out,
        "answers": answers,
    }


def _answer(
    answer: SampledAnswer, pieces: Mapping[int, str], tables: _Tables, allowance: int
) -> tuple[dict[str, Any], int, int]:
    """(the answer, bytes its drafts take, drafts left out)."""
    turns, spent, dropped = [], 0, 0
    for turn in answer.record.turns:
        trees: list[object] = []
        for tree in turn.trees or ():
            cost = _cost(tree)
            fits = spent + cost <= allowance
            trees.append(_tree(tree, pieces, tables) if fits else _LEFT_OUT)
            spent, dropped = spent + cost * fits, dropped + (not fits)
        turns.append(_turn(turn, trees, pieces, tables))
    kind = (
        "reference" if answer.record.method == VANILLA else "lossy" if answer.lossy else "peer" if answer.peer else ""
    )
    return {"name": printable(answer.name), "kind": kind, "turns": turns}, spent, dropped


def _cost(tree: Mapping[str, Any]) -> int:
    """[bytes] About what a draft takes in the page; one that is empty takes none worth counting."""
    nodes = len(tree["tokens"])
    several = len(tree.get("sources", {})) > 1
    return (_EMPTY_BYTES + nodes * (_NODE_BYTES + 2 * several)) if nodes else 0


def _turn(turn: TurnRecord, trees: list[object], pieces: Mapping[int, str], tables: _Tables) -> dict[str, Any]:
    by = [
        number
        for tree, count in zip(turn.trees or (), turn.accept, strict=False)
        for number in _by(tree, count, tables)
    ]
    return {
        "ids": [tables.token(token, pieces) for token in turn.ids],
        "finish": turn.finish,
        "accept": turn.accept,
        "proposed": turn.proposed,
        "depth": turn.depth,
        "fed": turn.fed,
        "by": by if any(number != OWN for number in by) else [],
        "late": [step for step, tree in enumerate(turn.trees or ()) if tree.get("late")],
        "trees": trees,
    }


def _by(tree: Mapping[str, Any], count: int, tables: _Tables) -> list[int]:
    """The source of each token that a step emitted."""
    names = _sources(tree)
    path = [tables.source(names[node]) if node in names else OWN for node in tree["path"]]
    return [*path, *[OWN] * (count - len(path))]


def _sources(tree: Mapping[str, Any]) -> dict[int, str]:
    """Node -> the name of its source."""
    return {node: name for name, nodes in tree.get("sources", {}).items() for node in nodes}


def _tree(tree: Mapping[str, Any], pieces: Mapping[int, str], tables: _Tables) -> dict[str, Any] | int:
    """t: tokens, p: parents, a: accepted nodes, s: the source of all nodes or of each, x: passengers."""
    if not tree["tokens"]:
        return _NONE_DRAFTED
    names = _sources(tree)
    numbers = [tables.source(names[node]) if node in names else OWN for node in range(len(tree["tokens"]))]
    packed = {
        "t": [tables.token(token, pieces) for token in tree["tokens"]],
        "p": tables.shape(tree["parents"]),
        "a": tree["path"],
        "s": numbers[0] if len(set(numbers)) == 1 else numbers,
    }
    return packed | ({"x": tree["passengers"]} if tree.get("passengers") else {})


DATA_ID = "token-data"
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_KEYS = (
    "Left and right arrows move by token, up and down by step, Home and End to the ends. Turns, steps and tokens are "
    "counted from 0, as in records.jsonl; token 0 is the prefill's and belongs to no step."
)


def token_section(cases: Sequence[SampledCase]) -> str:
    """The view's place and its data; '' where no case finished."""
    if not cases:
        return ""
    data = token_data(cases)
    notes = escape(" ".join([_KEYS, *_notes(cases, data)]))
    return (
        "<p>Each answer as it was emitted, token by token. A bracket opens each decode step and every second step is "
        "shaded; underlined tokens were drafted and accepted, plain bold ones are the target's own.</p>\n"
        f'<p class="soft">{notes}</p>\n'
        "<noscript><p>This view needs JavaScript; the figures of this page do not.</p></noscript>\n"
        '<div id="token-view"></div>\n'
        f'<script type="application/json" id="{DATA_ID}">{embed(data)}</script>'
    )


def _notes(cases: Sequence[SampledCase], data: Mapping[str, Any]) -> Iterator[str]:
    """Why something is not in the view."""
    if not any(has_trees(answer.record) for case in cases for answer in case.answers):
        yield "No drafts were recorded: run with measure.keep_trees=3 to see them and their sources."
    if data["trees_left_out"]:
        yield f"{data['trees_left_out']} drafts are left out to keep the page small; records.jsonl has them."
    if all(piece == UNKNOWN.format(token) for token, piece in zip(data["ids"], data["pieces"], strict=True)):
        yield "Ids are shown, since the run's tokenizer was not found on this machine."


def embed(data: Mapping[str, Any]) -> str:
    """JSON that no text inside can end: it is ASCII, and no '<', '>' or '&' is left in it."""
    return json.dumps(data, separators=(",", ":")).translate(_ESCAPES)


def keep_pieces(findings: Findings, output: Path) -> list[Path]:
    """Keep the shown tokens' text beside the records of the run that is reported in its own directory, so that its
    page can be made again where its tokenizer is not.
    """
    shown = ids_by_run(sample_cases(findings))
    written = (write_pieces(run, ids) for run, ids in shown if run.directory.resolve() == output.resolve())
    return [path for path in written if path is not None]
