"""A trace of any of the three kinds as conversations; which kind it is, its first line says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from specbench.input import InputError, numbered_lines, parse_json, read_file
from specbench.suite.prompt import PromptBuilder
from specbench.trace.answer_file import read_answer_file
from specbench.trace.chat import read_chat
from specbench.trace.live import read_live
from specbench.trace.recorded import Recorded, Trace
from specbench.types import Case

KINDS = {"case": "records", "choices": "answers", "messages": "chat"}
_EXPECTED = (
    "expected a run's records.jsonl, a Spec-Bench answer file, or a chat log (JSON lines with messages); the format of"
    " each is in docs/replay.md"
)


def find_trace(named: str) -> Path:
    """The file of a trace; the folder of a run stands for its records."""
    found = Path(named).expanduser()
    records = found / "records.jsonl"
    return records if records.is_file() else found


def kind_of(path: Path) -> str:
    """Records | answers | chat, by the first line. Raises InputError for anything else."""
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
    """Read a trace of any kind.

    builder: makes the prompts of texts (not called for records, which hold ids). end: the EOS id, put behind texts.
    cases: the suite's, to keep those and in this order; None = all that the file has. Raises InputError.
    """
    kind = kind_of(path)
    if kind == "answers":
        if cases is None:
            raise InputError(
                f"model.trace={path}: an answer file holds no questions; name the suite it was made with,"
                " e.g. suite=spec_bench"
            )
        return read_answer_file(path, cases, builder(), end)
    trace = read_chat(path, builder(), end) if kind == "chat" else read_live(path)
    return replace(trace, conversations=tuple(_kept(trace.conversations, cases, path)))


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
