"""A user's own chat log as a trace: one conversation a line, in the order in which they came.

``{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}``, as chat APIs have
it; ``id`` and ``category`` may stand beside ``messages``. Every answer of the assistant is one request.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench.record import OVERALL
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn
from specbench.trace.retokenise import conversation_ids
from specbench.types import Case, InputError

CATEGORY = "chat"
_EXPECTED = (
    'expected one conversation a line: {"messages": [{"role": "user", "content": "..."}, {"role": "assistant",'
    ' "content": "..."}]}, user and assistant by turns, a system message first if there is one'
)


def read(path: Path, builder: PromptBuilder, end: int | None) -> list[Recorded]:
    """The conversations with at least one answer. end: the EOS id. Raises InputError naming the line."""
    found: list[Recorded] = []
    seen: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            recorded = _conversation(json.loads(line), str(number), builder, end)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"model.trace={path}, line {number}: {error}; {_EXPECTED}") from error
        if recorded is None:
            continue
        where = f"model.trace={path}, line {number}"
        if recorded.case.id in seen:
            raise InputError(f"{where}: id {recorded.case.id} stands above already; a line without id is its number")
        if recorded.case.category == OVERALL:
            raise InputError(f"{where}: category {OVERALL!r} names the whole in tables; rename it")
        seen.add(recorded.case.id)
        found.append(recorded)
    if not found:
        raise InputError(f"model.trace={path}: no answer of an assistant in it; {_EXPECTED}")
    return found


def _conversation(line: dict[str, Any], number: str, builder: PromptBuilder, end: int | None) -> Recorded | None:
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
    case = Case(str(number if name is None else name), str(category or CATEGORY), tuple(asked[: len(turns)]))
    return Recorded(case, tuple(turns))


def _text(content: Any) -> str:
    """Plain text, or the text parts of a message."""
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise ValueError("a message holds more than text")
    return "".join(part["text"] for part in content)
