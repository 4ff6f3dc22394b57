"""Messages of recorded conversations as a chat template reads them, tool calls and tools included.

One reader for the forms of public files: OpenAI's (role, content, tool_calls, tool_call_id;
OpenHands, SWE-smith, SPEED-Bench), its older one (function_call), SWE-agent's (role ai, text) and
that of ShareGPT and LLaMA-Factory (from, value; function_call, observation). The form that it
returns is the one that chat templates of transformers expect: arguments are objects, every call has
an id, and a result has the id and the name of its call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.input import InputError, parse_json
from specbench.suite.format import kind

Message = dict[str, Any]
USER, ASSISTANT, SYSTEM, TOOL = "user", "assistant", "system", "tool"
_CALL = "function_call"  # of LLaMA-Factory: an assistant's message that is a call
ROLES = {
    **dict.fromkeys(("user", "human"), USER),
    **dict.fromkeys(("assistant", "gpt", "model", "ai"), ASSISTANT),
    **dict.fromkeys(("system", "developer"), SYSTEM),
    **dict.fromkeys(("tool", "observation", "function", "function_response"), TOOL),
    _CALL: _CALL,
}
_CONTENTS = ("content", "value", "text", "system_prompt")
# calls that a model without structured ones wrote into its text
_WRITTEN = ("<tool_call>", "<function=")
# around Hermes' results
_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)
_SHOWN = 3  # ids of calls that an error lists


def read_message(where: str, message: object) -> Message:
    """Reads one message; a plain text is the user's. where: the beginning of errors, which are
    InputErrors.
    """
    if isinstance(message, str):
        return {"role": USER, "content": _named(where, "content", message)}
    if not isinstance(message, Mapping):
        raise InputError(f"{where} is a {kind(message)}, expected an object with role and content.")
    if "user" in message:  # question and answer in one, as in MT-Bench-101
        return {"role": USER, "content": _named(where, "content", message["user"])}
    given = message.get("role", message.get("from"))
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise InputError(f"{where}: role is {given}, expected system, user, assistant or tool.")
    content = next((message[key] for key in _CONTENTS if message.get(key) is not None), None)
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and "text" in part for part in content
    ):
        content = "".join(str(part["text"]) for part in content)  # a message in parts
    if role == _CALL:
        value = parse_json(
            _named(where, "content", content).encode(errors="surrogatepass"),
            f"{where}: value",
            _CALLS_FIX,
        )
        calls = _read_calls(where, "value", value if isinstance(value, list) else [value])
        return {"role": ASSISTANT, "content": "", "tool_calls": calls}
    if role == TOOL:
        return {"role": TOOL, **_read_result(where, message, content)}
    if role == ASSISTANT:
        return {"role": ASSISTANT, **_read_answer(where, message, content)}
    return {"role": role, "content": _named(where, "content", content)}


def _read_answer(where: str, message: Mapping[str, Any], content: object) -> Message:
    """Returns content, calls and reasoning of a message of the assistant."""
    calls, older = message.get("tool_calls"), message.get(_CALL)
    found: Message = {}
    if calls or older:
        found["tool_calls"] = (
            _read_calls(where, "tool_calls", calls) if calls else _read_calls(where, _CALL, [older])
        )
        # templates write null differently, and agree on an empty text
        content = "" if content is None else content
        if not isinstance(content, str):
            raise InputError(f"{where}: content is a {kind(content)}, expected a text.")
    else:
        content = _named(where, "content", content)
    if (thought := message.get("reasoning_content")) is not None:
        if not isinstance(thought, str):
            raise InputError(f"{where}: reasoning_content is a {kind(thought)}, expected a text.")
        found["reasoning_content"] = thought
    return {"content": content, **found}


def has_tools(messages: Sequence[Message]) -> bool:
    """Returns whether a conversation has a call or a result."""
    return any(message["role"] == TOOL or "tool_calls" in message for message in messages)


def _named(where: str, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key} is {_a(value)}, expected a text.")
    return value


def _read_function(where: str, given: Any, fix: str) -> tuple[str, Mapping[str, Any]]:
    """Returns a function's name, and all of it, whether or not it is in an object of its own."""
    found = given.get("function", given) if isinstance(given, Mapping) else given
    if not isinstance(found, Mapping):
        raise InputError(f"{where} is {_a(found)}; {fix}")
    return _named(where, "name", found.get("name")), found


def _read_result(where: str, message: Mapping[str, Any], content: object) -> Message:
    """Returns content, id and name of a tool's message; a command that printed nothing has an empty
    content.
    """
    if not isinstance(content, str):
        raise InputError(f"{where}: content is {_a(content)}, expected the tool's result as text.")
    found: Message = {"content": inner[1] if (inner := _RESPONSE.fullmatch(content)) else content}
    ids = message.get("tool_call_ids")  # of SWE-smith
    alone = ids[0] if isinstance(ids, list) and len(ids) == 1 else None
    for key, other in (("tool_call_id", alone), ("name", None)):
        if (value := message.get(key, other) or other) is not None:
            found[key] = _named(where, key, value)
    return found


_CALLS_FIX = 'expected calls such as {"name": "ls", "arguments": {"path": "/"}}.'


def _read_calls(where: str, key: str, calls: object) -> list[Message]:
    """Returns the calls of a message: id if there is one, type, and function with its name and
    arguments.
    """
    if not isinstance(calls, list):
        raise InputError(f"{where}: {key} is a {kind(calls)}, expected a list of calls.")
    found = []
    for place, call in enumerate(calls):
        there = f"{where}: {key}.{place}"
        name, function = _read_function(there, call, _CALLS_FIX)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments.strip():
            arguments = parse_json(
                arguments.encode(errors="surrogatepass"), f"{there}: arguments", _ARGUMENTS_FIX
            )
        else:  # a table has null for each argument of other calls
            arguments = _without_nulls(arguments)
        arguments = arguments or {}
        if not isinstance(arguments, Mapping):
            raise InputError(f"{there}: arguments is {_a(arguments)}; {_ARGUMENTS_FIX}")
        identifier = call.get("id")
        own = {} if identifier is None else {"id": _named(there, "id", identifier)}
        found.append(
            {**own, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        )
    return found


_ARGUMENTS_FIX = "expected an object of JSON, or such an object as text."


def _a(value: object) -> str:
    return (
        "null"
        if value is None
        else f"an empty {kind(value)}"
        if value in ("", [], {})
        else f"a {kind(value)}"
    )


def pair_results(messages: Sequence[Message], name: str, first: int) -> list[Message]:
    """Checks the order of a recorded conversation, without its system message, and pairs results
    with their calls.

    name: of the field, and first: the number of the first message, for errors. Returns the
    messages; calls without an id have a made one, as some templates need it. Raises InputError,
    which begins with ``message N of NAME``.
    """
    found: list[Message] = []
    waiting: list[Message] = []  # calls without a result
    named = written = False  # the calls have ids; the call is a part of the text
    made = 0
    for number, message in enumerate(messages, start=first):
        where, role, before = (
            f"message {number} of {name}",
            message["role"],
            found[-1]["role"] if found else None,
        )
        if role == ASSISTANT:
            if before in (None, ASSISTANT):
                there = (
                    "it is the first one"
                    if before is None
                    else "the one before it is of the assistant, too"
                )
                raise InputError(
                    f"{where} is of the assistant, and {there}; expected a user's or a tool's"
                    " between them."
                )
            waiting = [{**call} for call in message.get("tool_calls", ())]
            named, written = (
                any("id" in call for call in waiting),
                any(m in message["content"] for m in _WRITTEN),
            )
            if named and (
                lacking := next(
                    (place for place, call in enumerate(waiting) if "id" not in call), None
                )
            ):
                raise InputError(
                    f"{where}: tool_calls.{lacking} has no id, and others have; expected one in"
                    " each."
                )
            for call in waiting:
                if not named:
                    call["id"], made = f"call{made:05d}", made + 1
            message = {**message, "tool_calls": waiting} if waiting else message
            waiting = [*waiting]
        elif role == TOOL and not (written and not named):
            message = _pair(where, message, waiting, named)
        elif role == USER:
            waiting, written = [], False
        found.append(message)
    return found


def _pair(where: str, message: Message, waiting: list[Message], named: bool) -> Message:
    """Returns a tool's message with id and name of its call, which is taken from those that
    wait.
    """
    if not waiting:
        raise InputError(
            f"{where} is of a tool, and no call waits for it; expected a call of the assistant"
            " before it."
        )
    own = message.get("tool_call_id")
    ids = [call["id"] for call in waiting]
    shown = f"{', '.join(ids[:_SHOWN])}{' ...' if len(ids) > _SHOWN else ''}"
    if named and own not in ids:
        got = "there is no tool_call_id" if own is None else f"tool_call_id is {own}"
        raise InputError(f"{where}: {got}, expected that of a call before it: {shown}.")
    if own is not None and not named:
        raise InputError(
            f"{where}: tool_call_id is {own}, and the calls before it have no id; expected one in"
            " each."
        )
    call = waiting.pop(ids.index(own) if named else 0)
    return {"name": call["function"]["name"], **message, "tool_call_id": call["id"]}


def find_cuts(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the cut points: before each message of the assistant, and at the end if another's is
    the last.
    """
    cuts = [place for place, message in enumerate(messages) if message["role"] == ASSISTANT]
    return cuts if messages and messages[-1]["role"] == ASSISTANT else [*cuts, len(messages)]


def read_tools(where: str, value: object) -> tuple[Message, ...]:
    """Reads function schemas: a list, or such a list as text, of OpenAI's tools or of their
    functions alone.

    Entries that are null are left out: tables fill what a row lacks with them. Raises InputError,
    from ``where`` on.
    """
    if isinstance(value, str) and value.strip():
        value = parse_json(value.encode(errors="surrogatepass"), where, _TOOLS_FIX)
    if value in (None, "", [], {}):
        return ()
    if not isinstance(value, list):
        raise InputError(f"{where} is a {kind(value)}; {_TOOLS_FIX}")
    found = []
    for place, tool in enumerate(value):
        name, function = _read_function(f"{where}.{place}", tool, _TOOLS_FIX)
        parameters = function.get("parameters")
        if not isinstance(parameters, Mapping | None):
            raise InputError(
                f"{where}.{place}: parameters is a {kind(parameters)}, expected a JSON schema."
            )
        full = {"name": name, "description": "", **_without_nulls(function)}
        full.setdefault("parameters", {"type": "object", "properties": {}})
        found.append({"type": "function", "function": full})
    return tuple(found)


_TOOLS_FIX = (
    'expected a list of functions such as {"name": "ls", "parameters": {"type": "object",'
    ' "properties": {}}}.'
)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
