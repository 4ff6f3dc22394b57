"""Traces from answers that are stored as text: a Spec-Bench answer file, or a user's own chat log.

The text of an answer becomes tokens inside its conversation: the conversation is written out and tokenised whole, and
the prompt is cut off. Tokenised alone, an answer differs at its first token (a Llama tokenizer puts a space before
it); inside the conversation its tokens are those that were generated, except where stripping and decoding lost some.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from specbench.input import numbered_lines, parse_as, read_file, refuse_repeated_keys
from specbench.records.answers import FAILED, read_answers
from specbench.records.record import OVERALL
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn, Trace, digest_of
from specbench.types import Case, InputError, named

_NEXT = "Next question"  # a turn after the answer, so that the template writes the answer as a finished one
_EXPECTED_CHAT = (
    'expected one conversation a line: {"messages": [{"role": "user", "content": "..."}, {"role": "assistant",'
    ' "content": "..."}]}, user and assistant by turns, a system message first if there is one'
)


def conversation_ids(
    builder: PromptBuilder, turns: Sequence[str], answers: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns (prompt ids, answer ids) of the conversation's last answer, without an EOS.

    turns: the user's n messages; answers: the n answers.
    """
    prompt = builder.ids(turns, answers[:-1])
    before = builder.text(turns, answers[:-1])
    answer = answers[-1].strip()
    whole = builder.text([*turns, _NEXT], answers)
    at = whole.find(answer, len(before)) if whole.startswith(before) else -1
    lead = whole[len(before) : at] if at >= 0 else ""  # a template may rewrite finished answers (cut their reasoning)
    ids = builder.encode(before + lead + answer)
    if ids[: len(prompt)] != prompt:  # the template's end and the answer's beginning are one token
        ids = [*prompt, *builder.encode_bare(answer)]
    return tuple(prompt), tuple(ids[len(prompt) :])


def read_answer_file(path: Path, cases: Sequence[Case], builder: PromptBuilder, end: int | None) -> Trace:
    """Reads the answers to ``cases``, in their order; of a question that is answered twice the last answer counts.

    A Spec-Bench answer file counts each answer's tokens but has only its text. A text that has one token less than
    its count ended with EOS, which is appended; one with the counted tokens was cut at the length limit, the longest
    count of the file. An answer with another count lost something in decoding (a split character, a stripped newline).
    Questions without one valid answer a turn are left out. end: the EOS id. Raises InputError if the file is not an
    answer file, or answers no question of the suite.
    """
    with named("model.trace: "):
        lines = read_answers(path, timed=False)
    answers = {str(answer.question_id): answer for answer in lines}
    there = [case for case in cases if case.id in answers]
    if recorded := [case.id for case in there if case.messages]:
        raise InputError(
            f"model.trace={path}: question {recorded[0]} is a recorded conversation, whose answers need their ids;"
            " expected the records.jsonl of a run"
        )
    answered: list[Case] = []
    for case in there:
        texts = [turn.text for turn in answers[case.id].turns]
        if len(texts) == len(case.turns) and FAILED not in texts and all(text.strip() for text in texts):
            answered.append(case)
    if not answered:
        raise InputError(
            f"model.trace={path}: has a good answer to none of the suite's {len(cases)} selected questions (it has"
            f" {', '.join(list(answers)[:5])} ...); expected the suite that it was made with, e.g. suite=spec_bench"
        )
    counts = [turn.new_tokens for answer in answers.values() for turn in answer.turns]
    limit = max(counts) if counts.count(max(counts)) > 1 else None  # the length limit, if several answers reached it
    found: list[Recorded] = []
    exact = 0
    for case in answered:
        given = answers[case.id].turns
        texts = [turn.text for turn in given]
        turns: list[RecordedTurn] = []
        for count, turn in enumerate(given, start=1):
            prompt, ids = conversation_ids(builder.of(case), case.turns[:count], texts[:count])
            if end is not None and turn.new_tokens not in (len(ids), limit):
                ids = (*ids, end)
            exact += len(ids) == turn.new_tokens
            turns.append(RecordedTurn.of(prompt, ids, turn.text))
        found.append(Recorded(case, tuple(turns)))
    return Trace(
        kind="answers",
        origin=str(path),
        sha256=digest_of(path),
        conversations=tuple(found),
        ends=frozenset() if end is None else frozenset({end}),
        exact=exact,
        model=lines[0].model_id,
        failed=len(there) - len(answered),
        repeated=len(lines) - len(answers),
    )


class _Part(TypedDict):
    type: Literal["text"]
    text: str


class _Message(TypedDict):
    role: str
    content: str | list[_Part]


class _Line(TypedDict):
    messages: list[_Message]
    id: NotRequired[str | int | None]
    category: NotRequired[str | None]


def read_chat(path: Path, builder: PromptBuilder, end: int | None) -> Trace:
    """Reads the conversations of a chat log that have at least one answer.

    A line is one conversation, as chat APIs have it: ``{"messages": [{"role": "user", "content": "..."}, {"role":
    "assistant", "content": "..."}, ...]}``, with an optional ``id`` and ``category``. Every answer of the assistant is
    one request. end: the EOS id. Raises InputError naming the line.
    """
    found: dict[str, Recorded] = {}
    for number, text in numbered_lines(read_file(path, "model.trace=", _EXPECTED_CHAT)):
        where = f"model.trace={path}, line {number}"
        line = parse_as(_Line, text, where, _EXPECTED_CHAT)
        refuse_repeated_keys(text, where)
        if fault := _find_fault(line["messages"]):
            raise InputError(f"{where}: {fault}; {_EXPECTED_CHAT}")
        texts = [(message["role"], _text(message)) for message in line["messages"]]
        with named(f"{where}: "):
            own = builder.with_system(texts[0][1]) if texts and texts[0][0] == "system" else builder
        questions, answers = ([text for role, text in texts if role == name] for name in ("user", "assistant"))
        if not answers:
            continue
        turns: list[RecordedTurn] = []
        for count, answer in enumerate(answers, start=1):
            prompt, ids = conversation_ids(own, questions[:count], answers[:count])
            turns.append(RecordedTurn.of(prompt, ids if end is None else (*ids, end), answer))
        name = str(number if (given := line.get("id")) is None else given)
        category = line.get("category") or "chat"
        if name in found:
            raise InputError(f"{where}: id {name} occurs twice; a line without id has its number as id")
        if category == OVERALL:
            raise InputError(f"{where}: category {OVERALL!r} is the row of all categories; rename the category")
        found[name] = Recorded(Case(name, category, tuple(questions[: len(turns)])), tuple(turns))
    if not found:
        raise InputError(f"model.trace={path}: no answer of an assistant in it; {_EXPECTED_CHAT}")
    ends = frozenset() if end is None else frozenset({end})
    return Trace("chat", str(path), digest_of(path), tuple(found.values()), ends)


def _find_fault(messages: list[_Message]) -> str | None:
    """Describes what the schema cannot express, or returns None for a valid conversation."""
    system = bool(messages) and messages[0]["role"] == "system"
    for place, message in enumerate(messages[system:]):
        name = f"messages.{place + system}"
        if message["role"] != ("user", "assistant")[place % 2]:
            return f"{name} is of {message['role']!r}"
        if not _text(message).strip():
            return f"{name} is empty"
    return None


def _text(message: _Message) -> str:
    """Returns the text of a message, or of its parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
