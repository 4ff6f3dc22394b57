"""Traces: recorded answers of a model, read from a run's records, a Spec-Bench answer file, or a chat log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from specbench.input import InputError, numbered_lines, parse_json, read_file
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn, Trace, model_of, read_live
from specbench.trace.texts import read_answer_file, read_chat
from specbench.types import Case

__all__ = ["Recorded", "RecordedTurn", "Trace", "find_trace", "kind_of", "model_of", "read_trace"]

KINDS = {"case": "records", "choices": "answers", "messages": "chat"}  # a key of the first line -> the kind of file
_EXPECTED = (
    "expected a run's records.jsonl, a Spec-Bench answer file, or a chat log (JSON lines with messages); the format of"
    " each is in docs/replay.md"
)


def find_trace(named: str) -> Path:
    """Returns the file of a trace: of a run's folder, its records."""
    found = Path(named).expanduser()
    records = found / "records.jsonl"
    return records if records.is_file() else found


def kind_of(path: Path) -> str:
    """Returns records, answers or chat, by the first line. Raises InputError for anything else."""
    lines = numbered_lines(read_file(path, "model.trace=", _EXPECTED))
    number, line = next(lines, (1, b"null"))
    first = parse_json(line, f"model.trace={path}, line {number}", _EXPECTED)
    keys = first if isinstance(first, dict) else {}
    for key, kind in KINDS.items():
        if key in keys:
            return kind
    raise InputError(f"model.trace={path}, line {number}: has {', '.join(keys) or 'no keys'}; {_EXPECTED}")


def read_trace(
    path: Path, builder: Callable[[], PromptBuilder], end: int | None, cases: Sequence[Case] | None
) -> Trace:
    """Reads a trace of any kind.

    builder: makes the prompts of texts; not called for records, which have ids. end: the EOS id, which is put after
    texts. cases: the suite's cases, to keep those in this order; None keeps all that the file has. Raises InputError
    if the file is not a trace, or has none of the cases.
    """
    kind = kind_of(path)
    if kind == "answers":
        if cases is None:
            raise InputError(
                f"model.trace={path}: an answer file contains no questions; name the suite it was made with,"
                " e.g. suite=spec_bench"
            )
        return read_answer_file(path, cases, builder(), end)
    trace = read_chat(path, builder(), end) if kind == "chat" else read_live(path)
    if cases is None:
        return trace
    there = {each.case.id: each for each in trace.conversations}
    kept = tuple(there[case.id] for case in cases if case.id in there)
    if not kept:
        raise InputError(
            f"model.trace={path}: has none of the suite's {len(cases)} selected questions; expected suite=trace, or"
            " the suite that it was made with"
        )
    return replace(trace, conversations=kept)
