"""Traces of three kinds as conversations: a run's records, a Spec-Bench answer file, a user's own chat log."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.answers import FAILED, Answer, read_answers
from specbench.record import OVERALL, VANILLA, CaseRecord
from specbench.store import MANIFEST, RunError, read_manifest, read_records
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn, Trace, conversation_ids
from specbench.types import Case, InputError

KINDS = {"choices": "answers", "messages": "chat"}
_EXPECTED = "expected a run's records.jsonl, a Spec-Bench answer file, or a chat log (JSON lines with messages)"
_CHAT = (
    'expected one conversation a line: {"messages": [{"role": "user", "content": "..."}, {"role": "assistant",'
    ' "content": "..."}]}, user and assistant by turns, a system message first if there is one'
)


def kind_of(path: Path) -> str:
    """records | answers | chat, by the first line. Raises InputError for anything else."""
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
        found, exact, model, failed = _read_answers(path, cases, builder(), end)
    elif kind == "chat":
        found = _kept(_read_chat(path, builder(), end), cases, path)
    else:
        found, seen, failed = _read_records(path)
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


def _read_records(path: Path) -> tuple[list[Recorded], frozenset[int], int]:
    """Vanilla's first decoding of every case of a run, the ids that ended an answer, and how many cases failed in it.

    Raises InputError, also where two records are of one case.
    """
    try:
        records = read_records(path)
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
    first = [entry for entry in records if entry.method == VANILLA and entry.round == 0]
    twice = [case for case, count in Counter(entry.case for entry in first).items() if count > 1]
    if twice:
        raise InputError(f"model.trace={path}: case {twice[0]} is recorded twice; expected the records of one run")
    kept = [entry for entry in first if entry.status == "ok"]
    kept = [entry for entry in kept if all(turn.prompt_ids for turn in entry.turns)]
    if not kept:
        raise InputError(
            f"model.trace={path}: holds no good record of {VANILLA} with its prompts; expected the records.jsonl of a"
            " run of specbench"
        )
    ends = {turn.ids[-1] for entry in kept for turn in entry.turns if turn.finish == "eos"}
    return [_replayed(entry) for entry in kept], frozenset(ends), len(first) - len(kept)


def _replayed(record: CaseRecord) -> Recorded:
    case = Case(record.case, record.category, ("",) * len(record.turns), record.subcategory)
    turns = (RecordedTurn.of(turn.prompt_ids or (), turn.ids, turn.text) for turn in record.turns)
    return Recorded(case, tuple(turns))


def model_of(path: Path) -> dict[str, Any]:
    """The model section of the manifest of the run that wrote ``path``; empty where there is no manifest."""
    if not (path.parent / MANIFEST).is_file():
        return {}
    try:
        return dict(read_manifest(path.parent).get("model", {}))
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error


def _read_answers(
    path: Path, cases: Sequence[Case], builder: PromptBuilder, end: int | None
) -> tuple[list[Recorded], int, str, int]:
    """The answered ones of ``cases`` in their order, answers with the recorded count, the model's name, and cases that
    lack a good answer.

    A Spec-Bench answer file counts each answer's tokens but holds only its text. A text that comes out one token short
    ended with EOS, which is put back; one that comes out whole was cut at the length limit, the longest count of the
    file. An answer with another count lost something in decoding (a split character, a stripped newline).
    end: the EOS id. Raises InputError when the file is none, or answers no question of the suite.
    """
    try:
        answers = {str(answer.question_id): answer for answer in read_answers(path)}
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
    named = [case for case in cases if case.id in answers]
    shared = [case for case in named if _whole(case, answers[case.id])]
    if not shared:
        raise InputError(
            f"model.trace={path}: has a good answer to none of the suite's {len(cases)} selected questions (it has"
            f" {', '.join(list(answers)[:5])} ...); expected the suite that it was made with, e.g. suite=spec_bench"
        )
    limit = _limit(answers)
    found: list[Recorded] = []
    exact = 0
    for case in shared:
        recorded, right = _answered(case, answers[case.id], builder, end, limit)
        found.append(recorded)
        exact += right
    return found, exact, next(iter(answers.values())).model_id, len(named) - len(shared)


def _whole(case: Case, answer: Answer) -> bool:
    """One good answer a turn."""
    texts = [turn.text for turn in answer.turns]
    return len(texts) == len(case.turns) and FAILED not in texts and all(text.strip() for text in texts)


def _limit(answers: Mapping[str, Answer]) -> int | None:
    """The length limit the file was made with: its longest count, if more than one answer has it."""
    counts = [turn.new_tokens for answer in answers.values() for turn in answer.turns]
    longest = max(counts)
    return longest if counts.count(longest) > 1 else None


def _answered(
    case: Case, answer: Answer, builder: PromptBuilder, end: int | None, limit: int | None
) -> tuple[Recorded, int]:
    texts = [turn.text for turn in answer.turns]
    turns: list[RecordedTurn] = []
    exact = 0
    for place, given in enumerate(answer.turns):
        prompt, ids = conversation_ids(builder, case.turns[: place + 1], texts[: place + 1])
        cut = given.new_tokens == len(ids) or given.new_tokens == limit
        if end is not None and not cut:
            ids = (*ids, end)
        exact += len(ids) == given.new_tokens
        turns.append(RecordedTurn.of(prompt, ids, given.text))
    return Recorded(case, tuple(turns)), exact


def _read_chat(path: Path, builder: PromptBuilder, end: int | None) -> list[Recorded]:
    """The conversations of a chat log with at least one answer. end: the EOS id. Raises InputError naming the line.

    One conversation a line, in the order in which they came, as chat APIs have it: ``{"messages": [{"role": "user",
    "content": "..."}, {"role": "assistant", "content": "..."}, ...]}``; ``id`` and ``category`` may stand beside
    ``messages``. Every answer of the assistant is one request.
    """
    found: list[Recorded] = []
    seen: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            recorded = _chatted(json.loads(line), str(number), builder, end)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"model.trace={path}, line {number}: {error}; {_CHAT}") from error
        if recorded is None:
            continue
        where = f"model.trace={path}, line {number}"
        if recorded.case.id in seen:
            raise InputError(f"{where}: id {recorded.case.id} occurs twice; a line without id has its number as id")
        if recorded.case.category == OVERALL:
            raise InputError(f"{where}: category {OVERALL!r} is the row of all categories; rename the category")
        seen.add(recorded.case.id)
        found.append(recorded)
    if not found:
        raise InputError(f"model.trace={path}: no answer of an assistant in it; {_CHAT}")
    return found


def _chatted(line: dict[str, Any], number: str, builder: PromptBuilder, end: int | None) -> Recorded | None:
    messages = [(str(message["role"]), _text(message["content"])) for message in line["messages"]]
    if messages and messages[0][0] == "system":
        builder = builder.with_system(messages[0][1])
        messages = messages[1:]
    for place, (role, _) in enumerate(messages):
        if role != ("user", "assistant")[place % 2]:
            raise ValueError(f"message {place + 1} is of {role!r}")
    asked = [text for role, text in messages if role == "user"]
    answers = [text for role, text in messages if role == "assistant"]
    turns: list[RecordedTurn] = []
    for count in range(1, len(answers) + 1):
        prompt, ids = conversation_ids(builder, asked[:count], answers[:count])
        turns.append(RecordedTurn.of(prompt, ids if end is None else (*ids, end), answers[count - 1]))
    if not turns:
        return None
    if not all(len(turn.ids) for turn in turns):
        raise ValueError("an answer is empty")
    name, category = line.get("id"), line.get("category")
    case = Case(str(number if name is None else name), str(category or "chat"), tuple(asked[: len(turns)]))
    return Recorded(case, tuple(turns))


def _text(content: Any) -> str:
    """Plain text, or the text parts of a message."""
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError("a message holds more than text")
    return "".join(part["text"] for part in content)
