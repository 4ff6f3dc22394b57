"""Records as a trace: those of a run, or lines that another program wrote with the few entries that a replay needs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal, NotRequired

import numpy as np
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines, parse_as, parse_json, read_file
from specbench.records.manifest import Manifest, TargetModel
from specbench.records.record import OVERALL, VANILLA, Count, Tokens
from specbench.records.store import MANIFEST, read_manifest
from specbench.trace.recorded import Recorded, RecordedTurn, Trace, digest_of
from specbench.types import Case, named

CATEGORY = "trace"  # of a line that names none
_EXPECTED = (
    'expected the records.jsonl of a run of specbench, or lines such as {"case": "1", "turns": [{"prompt_ids":'
    ' [1, 5], "ids": [7, 2], "finish": "eos"}]}, with at least one id in each list'
)


_Ids = Annotated[Tokens, Field(min_length=1)]


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


@functools.cache
def _schema() -> TypeAdapter[_Line]:
    return TypeAdapter(_Line)


def read_live(path: Path) -> Trace:
    """Vanilla's first decoding of every case, and how many cases failed in it. Raises InputError.

    Only the ids that ended one of its answers end an answer: another tokenizer's EOS is a token like any other.
    """
    found: dict[str, _Line] = {}
    grown = bool(_manifest_of(path).grown)  # vanilla again beside the methods that came later
    for number, text in numbered_lines(_without_cut_line(read_file(path, "model.trace=", _EXPECTED))):
        where = f"model.trace={path}, line {number}"
        line = parse_as(_schema(), text, where, _EXPECTED)
        if line.get("method", VANILLA) != VANILLA or line.get("round", 0) != 0:
            continue
        if line["case"] in found and grown:
            continue
        if line["case"] in found:
            raise InputError(f"{where}: case {line['case']} is recorded twice; expected the records of one run")
        if OVERALL in (line.get("category"), line.get("subcategory")):
            raise InputError(f"{where}: category {OVERALL!r} is the row of all categories; rename the category")
        found[line["case"]] = line
    kept = [line for line in found.values() if _is_good(line)]
    if not kept:
        raise InputError(f"model.trace={path}: holds no good record of {VANILLA} with its prompts; {_EXPECTED}")
    ends = frozenset(turn["ids"][-1] for line in kept for turn in line["turns"] if turn.get("finish") == "eos")
    conversations = tuple(_recorded(line) for line in kept)
    _check_ends(path, conversations, ends)
    return Trace(
        kind="records",
        origin=str(path),
        sha256=digest_of(path),
        conversations=conversations,
        ends=ends,
        model=model_of(path).name or "",
        suite=_manifest_of(path).suite.name or "",
        failed=len(found) - len(kept),
    )


def _without_cut_line(raw: bytes) -> bytes:
    """The file but for a last line that a kill cut: one without a newline that is no JSON."""
    head, _, last = raw.rpartition(b"\n")
    try:
        parse_json(last or b"{}", "", "")
    except InputError:
        return head
    return raw


def _is_good(line: _Line) -> bool:
    turns = line["turns"]
    return line.get("status", "ok") == "ok" and bool(turns) and all(turn.get("prompt_ids") for turn in turns)


def _recorded(line: _Line) -> Recorded:
    case = Case(line["case"], line.get("category", CATEGORY), ("",) * len(line["turns"]), line.get("subcategory", ""))
    turns = (RecordedTurn.of(turn.get("prompt_ids") or (), turn["ids"], turn.get("text", "")) for turn in line["turns"])
    return Recorded(case, tuple(turns))


def _check_ends(path: Path, conversations: tuple[Recorded, ...], ends: frozenset[int]) -> None:
    """An id that ends answers would cut the ones that have it inside. Raises InputError."""
    for each in conversations:
        for number, turn in enumerate(each.turns):
            inside = np.flatnonzero(np.isin(turn.ids[:-1], list(ends)))
            if len(inside):
                raise InputError(
                    f"model.trace={path}, case {each.case.id}, turn {number}: id {turn.ids[inside[0]]} at place"
                    f" {inside[0]} of {len(turn.ids)} ends other answers; expected it last alone, or finish=length in"
                    " every turn, so that answers are replayed as they are"
                )


def model_of(path: Path) -> TargetModel:
    """The model section of the manifest of the run that wrote ``path``; without entries where there is no manifest."""
    return _manifest_of(path).model


def _manifest_of(path: Path) -> Manifest:
    if not (path.parent / MANIFEST).exists():
        return Manifest()
    with named(f"model.trace={path}, the manifest beside it: "):
        return read_manifest(path.parent, "expected that of the run that wrote the trace, or none beside it")
