"""Traces: what a model once answered, read from a run's records, a Spec-Bench answer file, or a chat log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench.suite.prompt import PromptBuilder
from specbench.trace import answer_file, chat_log, records_file
from specbench.trace.recorded import Recorded, RecordedTurn, Trace
from specbench.trace.records_file import model_of
from specbench.types import Case, InputError

__all__ = ["Recorded", "RecordedTurn", "Trace", "kind_of", "model_of", "read_trace"]

KINDS = {"choices": "answers", "messages": "chat"}
_EXPECTED = "expected a run's records.jsonl, a Spec-Bench answer file, or a chat log (JSON lines with messages)"


def kind_of(path: Path) -> str:
    """records | answers | chat, told by the first line. Raises InputError for anything else."""
    if path.is_dir():
        raise InputError(f"model.trace={path}: is a directory; {_EXPECTED}")
    if not path.is_file():
        raise InputError(f"model.trace={path}: no such file; {_EXPECTED}")
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except ValueError as error:
        raise InputError(f"model.trace={path}, line 1: not JSON ({error}); {_EXPECTED}") from error
    keys = first if isinstance(first, dict) else {}
    if "turns" in keys and "method" in keys:
        return "records"
    for key, kind in KINDS.items():
        if key in keys:
            return kind
    raise InputError(f"model.trace={path}, line 1: has {', '.join(keys) or 'no keys'}; {_EXPECTED}")


def read_trace(
    path: Path, builder: Callable[[], PromptBuilder], end: int | None, cases: Sequence[Case] | None
) -> Trace:
    """Read a trace of any kind.

    builder: makes the prompts of texts (not called for records, which hold ids). end: the EOS id. cases: the suite's,
    to keep those and in this order; None = all that the file has. Raises InputError.
    """
    kind = kind_of(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    ends = frozenset() if end is None else frozenset({end})
    exact: int | None = None
    model = ""
    failed = 0
    if kind == "answers":
        if cases is None:
            raise InputError(
                f"model.trace={path}: an answer file holds no questions; name the suite it was made with,"
                " e.g. suite=spec_bench"
            )
        found, _, exact, model, failed = answer_file.read(path, cases, builder(), end)
    elif kind == "chat":
        found = _kept(chat_log.read(path, builder(), end), cases, path)
    else:
        found, seen, failed = records_file.read(path)
        found, ends = _kept(found, cases, path), ends | seen
        model = str(model_of(path).get("name") or "")
    turns = sum(len(each.turns) for each in found)
    exact = turns if kind == "records" else exact
    return Trace(kind, str(path), digest, model, tuple(found), ends, turns, exact, failed)


def _kept(found: Sequence[Recorded], cases: Sequence[Case] | None, path: Path) -> list[Recorded]:
    """Those of a suite, in its order."""
    if cases is None:
        return list(found)
    there = {each.case.id: each for each in found}
    kept = [there[case.id] for case in cases if case.id in there]
    if not kept:
        raise InputError(
            f"model.trace={path}: has none of the suite's {len(cases)} selected questions; expected suite=trace, or"
            " the suite that it was made with"
        )
    return kept
