"""Recorded answers, to be replayed without a model: a trace, and the traces of records.

Records are those of a run, or lines of another program with the few entries that a replay needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines, parse_as, parse_json, read_file, refuse_repeated_keys
from specbench.records.manifest import Manifest, TargetModel
from specbench.records.record import OVERALL, VANILLA, Count, Tokens
from specbench.records.store import MANIFEST, read_manifest
from specbench.types import Case, named

CATEGORY = "trace"  # of a line that names none
_EXPECTED = (
    'expected the records.jsonl of a run of specbench, or lines such as {"case": "1", "turns": [{"prompt_ids":'
    ' [1, 5], "ids": [7, 2], "finish": "eos"}]}, with at least one id in each list'
)
_Ids = Annotated[Tokens, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request. prompt: (T,) int32 ids read. ids: (n,) int32 ids emitted, EOS included. text: the answer."""

    prompt: np.ndarray
    ids: np.ndarray
    text: str

    @classmethod
    def of(cls, prompt: Sequence[int], ids: Sequence[int], text: str) -> RecordedTurn:
        """Packs lists of ids, because a chat log has millions of tokens."""
        return cls(np.array(prompt, np.int32), np.array(ids, np.int32), text)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One conversation: the case, and its turns in order."""

    case: Case
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The contents of a recorded file.

    kind: records | answers | chat. origin: the file's path; sha256: of its bytes. ends: ids that end an answer.
    exact: of an answer file, the number of answers whose token count is the recorded one. model: the name of the model
    that answered, as the file has it; suite: the name of its suite, as its run has it. failed: conversations that were
    left out because one of their answers is missing or failed. repeated: lines that a later line of the same question
    replaces.
    """

    kind: str
    origin: str
    sha256: str
    conversations: tuple[Recorded, ...]
    ends: frozenset[int]
    exact: int | None = None
    model: str = ""
    suite: str = ""
    failed: int = 0
    repeated: int = 0

    @property
    def turns(self) -> int:
        """The number of answers."""
        return sum(len(each.turns) for each in self.conversations)

    def summary(self) -> str:
        """Describes the trace in one line for the log and the manifest."""
        tokens = sum(len(turn.ids) for each in self.conversations for turn in each.turns)
        line = f"{self.kind}: {len(self.conversations)} conversations, {self.turns} answers, {tokens} tokens"
        if self.exact is None:
            return line if self.kind == "records" else f"{line}, tokenised from text"
        return f"{line}; {self.exact} of {self.turns} answers have the recorded number of tokens"


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    return hashlib.sha256(read_file(path, "model.trace=", _EXPECTED)).hexdigest()


class _Turn(TypedDict):
    ids: _Ids
    prompt_ids: NotRequired[_Ids | None]
    finish: NotRequired[Literal["eos", "length", "context"]]
    text: NotRequired[str]


class _Line(TypedDict):
    case: str
    turns: list[_Turn]
    category: NotRequired[str]
    subcategory: NotRequired[str]
    method: NotRequired[str]
    round: NotRequired[Count]
    status: NotRequired[Literal["ok", "error"]]


def read_live(path: Path) -> Trace:
    """Reads vanilla's first decoding of every case. Raises InputError.

    Only ids that ended one of its answers end an answer: another tokenizer's EOS is a token like any other.
    """
    found: dict[str, _Line] = {}
    manifest = _manifest_of(path)
    grown = bool(manifest.grown)  # such a run has vanilla again, next to the methods that were added later
    raw = read_file(path, "model.trace=", _EXPECTED)
    head, _, last = raw.rpartition(b"\n")
    try:
        parse_json(last or b"{}", "", "")
    except InputError:  # a kill cut the last line
        raw = head
    for number, text in numbered_lines(raw):
        where = f"model.trace={path}, line {number}"
        line = parse_as(_Line, text, where, _EXPECTED)
        if line.get("method", VANILLA) != VANILLA or line.get("round", 0) != 0:
            continue
        refuse_repeated_keys(text, where)
        if line["case"] in found:
            if grown:
                continue
            raise InputError(f"{where}: case {line['case']} is recorded twice; expected the records of one run")
        if OVERALL in (line.get("category"), line.get("subcategory")):
            raise InputError(f"{where}: category {OVERALL!r} is the row of all categories; rename the category")
        found[line["case"]] = line
    kept: list[Recorded] = []
    ends: set[int] = set()
    for name, line in found.items():
        turns = line["turns"]
        if line.get("status", "ok") != "ok" or not turns or not all(turn.get("prompt_ids") for turn in turns):
            continue
        ends.update(turn["ids"][-1] for turn in turns if turn.get("finish") == "eos")
        case = Case(name, line.get("category", CATEGORY), ("",) * len(turns), line.get("subcategory", ""))
        packed = (RecordedTurn.of(turn.get("prompt_ids") or (), turn["ids"], turn.get("text", "")) for turn in turns)
        kept.append(Recorded(case, tuple(packed)))
    if not kept:
        raise InputError(f"model.trace={path}: contains no good record of {VANILLA} with its prompts; {_EXPECTED}")
    _check_ends(path, kept, ends)
    return Trace(
        kind="records",
        origin=str(path),
        sha256=digest_of(path),
        conversations=tuple(kept),
        ends=frozenset(ends),
        model=manifest.model.name or "",
        suite=manifest.suite.name or "",
        failed=len(found) - len(kept),
    )


def _check_ends(path: Path, kept: Sequence[Recorded], ends: set[int]) -> None:
    """Refuses an id that ends answers and is inside another, which it would cut. Raises InputError."""
    for each in kept:
        for number, turn in enumerate(each.turns):
            inside = np.flatnonzero(np.isin(turn.ids[:-1], list(ends)))
            if len(inside):
                raise InputError(
                    f"model.trace={path}, case {each.case.id}, turn {number}: id {turn.ids[inside[0]]} at place"
                    f" {inside[0]} of {len(turn.ids)} ends other answers; expected it last alone, or finish=length in"
                    " every turn, so that answers are replayed unchanged"
                )


def model_of(path: Path) -> TargetModel:
    """Return the model section of the manifest next to ``path``; its entries are None if there is no manifest."""
    return _manifest_of(path).model


def _manifest_of(path: Path) -> Manifest:
    if not (path.parent / MANIFEST).exists():
        return Manifest()
    with named(f"model.trace={path}, the manifest next to it: "):
        return read_manifest(path.parent, "expected the manifest of the run that wrote the trace, or none")
