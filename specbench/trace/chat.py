"""A user's own chat log as a trace: one conversation a line, every answer of the assistant one request."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from specbench.input import numbered_lines, parse_as, read_file
from specbench.records.record import OVERALL
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn, Trace, conversation_ids, digest_of
from specbench.types import Case, InputError

_EXPECTED = (
    'expected one conversation a line: {"messages": [{"role": "user", "content": "..."}, {"role": "assistant",'
    ' "content": "..."}]}, user and assistant by turns, a system message first if there is one'
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


@functools.cache
def _schema() -> TypeAdapter[_Line]:
    return TypeAdapter(_Line)


def read_chat(path: Path, builder: PromptBuilder, end: int | None) -> Trace:
    """The conversations of a chat log with at least one answer. end: the EOS id. Raises InputError naming the line.

    One conversation a line, in the order in which they came, as chat APIs have it: ``{"messages": [{"role": "user",
    "content": "..."}, {"role": "assistant", "content": "..."}, ...]}``; ``id`` and ``category`` may stand beside
    ``messages``. Every answer of the assistant is one request.
    """
    found: list[Recorded] = []
    seen: set[str] = set()
    for number, text in numbered_lines(read_file(path, "model.trace=", _EXPECTED)):
        where = f"model.trace={path}, line {number}"
        line = parse_as(_schema(), text, where, _EXPECTED)
        if fault := _find_fault(line):
            raise InputError(f"{where}: {fault}; {_EXPECTED}")
        recorded = _recorded(line, str(number), builder, end)
        if recorded is None:
            continue
        if recorded.case.id in seen:
            raise InputError(f"{where}: id {recorded.case.id} occurs twice; a line without id has its number as id")
        if recorded.case.category == OVERALL:
            raise InputError(f"{where}: category {OVERALL!r} is the row of all categories; rename the category")
        seen.add(recorded.case.id)
        found.append(recorded)
    if not found:
        raise InputError(f"model.trace={path}: no answer of an assistant in it; {_EXPECTED}")
    ends = frozenset() if end is None else frozenset({end})
    return Trace("chat", str(path), digest_of(path), tuple(found), ends)


def _find_fault(line: _Line) -> str | None:
    """What the schema cannot say; None for a good line."""
    messages = line["messages"]
    system = bool(messages) and messages[0]["role"] == "system"
    for place, message in enumerate(messages[system:]):
        name = f"messages.{place + system}"
        if message["role"] != ("user", "assistant")[place % 2]:
            return f"{name} is of {message['role']!r}"
        if not _text(message).strip():
            return f"{name} is empty"
    return None


def _recorded(line: _Line, number: str, builder: PromptBuilder, end: int | None) -> Recorded | None:
    """None for a conversation without an answer."""
    messages = line["messages"]
    if messages and messages[0]["role"] == "system":
        builder = builder.with_system(_text(messages[0]))
    asked = [_text(message) for message in messages if message["role"] == "user"]
    answers = [_text(message) for message in messages if message["role"] == "assistant"]
    turns: list[RecordedTurn] = []
    for count in range(1, len(answers) + 1):
        prompt, ids = conversation_ids(builder, asked[:count], answers[:count])
        turns.append(RecordedTurn.of(prompt, ids if end is None else (*ids, end), answers[count - 1]))
    if not turns:
        return None
    name = line.get("id")
    case = Case(str(number if name is None else name), line.get("category") or "chat", tuple(asked[: len(turns)]))
    return Recorded(case, tuple(turns))


def _text(message: _Message) -> str:
    """Plain text, or the text parts of a message."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
