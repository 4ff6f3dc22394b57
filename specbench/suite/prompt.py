"""Prompts: the token ids that the target reads of a conversation, by a template around the turns
and a tokenizer.

Spec-Bench writes the complete conversation as text before every turn, including its own stripped
answers, and tokenises it again; no token of an earlier turn is reused. The same is done here, so a
prompt depends only on the text of the turns and answers. The start-of-sequence token (BOS) is at
the front once, also if both the template and the tokenizer add it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.input import decode_text, read_file
from specbench.suite import trial
from specbench.suite.messages import ASSISTANT, SYSTEM, TOOL, USER, Message, find_cuts
from specbench.types import Case, InputError, named

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raised by the expressions of a chat template, in addition to its own errors.
RAISED = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    SyntaxError,
)
# What a template needs to write more than loops over a conversation do: a call, a product, a
# filter, a name, a width.
_GROWS, _MOST_LOOPS = re.compile(r"[(*|]|\b(set|with|macro|call|filter)\b|(?<!\{)%(?!\})"), 3
_HELLO = {"role": USER, "content": "Hello"}
_TRIED = (
    [_HELLO],
    [
        _HELLO,
        {"role": ASSISTANT, "content": "Hi"},
        _HELLO,
        {"role": ASSISTANT, "content": "Hi"},
        _HELLO,
    ],
)
TEMPLATES = (".jinja", ".jinja2")
_PROBE = "Answer as a test of system messages."  # which a template writes or leaves out
# A conversation with a tool, each part of which has a word that no template has.
_TOOL = {
    "name": "probe_schema",
    "description": "probe",
    "parameters": {"type": "object", "properties": {}},
}
_PROBE_TOOLS = ({"type": "function", "function": _TOOL},)
_ARGUMENT = "probe_argument"
_PROBE_CALL = {
    "id": "probe0001",
    "type": "function",
    "function": {"name": "probe_call", "arguments": {"a": _ARGUMENT}},
}
_PROBE_CHAT = (
    _HELLO,
    {"role": ASSISTANT, "content": "", "tool_calls": [_PROBE_CALL]},
    {"role": TOOL, "content": "probe_result", "name": "probe_call", "tool_call_id": "probe0001"},
)
_PARTS = {
    "probe_schema": "schemas of tools",
    "probe_call": "calls",
    _ARGUMENT: "calls",
    "probe_result": "results",
}
_ADDED = 8  # more tokens than a tokenizer adds to a text
_ROLES_SHOWN = 8  # of a conversation in an error
RAW = "raw"  # no template; shadows fschat's own "raw", which writes no separator between messages


class PromptBuilder:
    """Builds the prompts of one tokenizer under one template.

    template: a template of fschat (``vicuna_v1.1``, ``llama-2``), None for the tokenizer's own chat
    template, a file (``*.jinja``) of another one, or ``raw`` for turns and answers joined by
    newlines. system: replaces the template's system message; None keeps it. thinking: the chat
    template's switch; None leaves it unchanged. Raises InputError if the template does not exist or
    cannot be written out.

    The attribute ``warnings`` states where the tokenizer gives other prompts than the model was
    trained on.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None,
        system: str | None = None,
        thinking: bool | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = (
            read_template(template) if template and template.endswith(TEMPLATES) else None
        )
        template = None if self._chat_template else template
        self._template = template
        self._system = system
        self._writes_system = False  # once it was seen to
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._arguments_as_text = False  # of calls
        # Once a conversation with a tool was tried: ``_arguments_as_text`` -> the parts that the
        # template does not write, and its refusal. Shared by all copies.
        self._tried: dict[bool, dict[str, str]] = {}
        plain, bos, eos = (
            tokenizer("a")["input_ids"],
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        )
        self._opens_texts = bos is not None and plain[:1] == [bos]
        # Some tokenizers close every text with EOS, after which a model would start anew instead of
        # answering.
        self._closes_texts = eos is not None and plain[-1:] == [eos]
        if template is None and not (
            self._chat_template or getattr(tokenizer, "chat_template", None)
        ):
            raise InputError(
                f"The tokenizer of {_name(tokenizer)} has no chat template and model.template is"
                " null, so there is no way to write a conversation. Set model.template to the one"
                f" that the model was trained with: {_choices()}."
            )
        if template not in (None, RAW) and template not in _fschat_names():
            close = get_close_matches(str(template), [RAW, *_fschat_names()], n=5, cutoff=0.4)
            hint = f"did you mean {', '.join(close)}? " if close else ""
            raise InputError(
                f"model.template={template}: fschat writes no prompt under that name; {hint}"
                f"Expected null (the tokenizer's own chat template), a file *.jinja, {_choices()}."
            )
        self._switch: dict[str, Any] = {} if thinking is None else self._find_switch(thinking)
        if template is None:
            self._refuse_endless(_TRIED)
        if system is not None:
            with named(f"model.system={system}: "):
                self.with_system(system)
        # a template that cannot be written out fails here, before a run starts
        probe = self.ids(["Hello"], [])
        self.warnings = tuple(
            filter(None, (self._bos_warning(probe), _space_run_warning(tokenizer)))
        )

    def _refuse_endless(self, chats: Sequence[Sequence[Message]]) -> None:
        """Raises InputError for a chat template that does not end or fills the memory, which
        another process tries.

        That process is started, not forked: a lock that another thread has is never released in a
        fork. Any other error is left to the caller, who writes the text again.
        """
        template = self._chat_template or self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if (
            isinstance(template, str)
            and template.count("for") <= _MOST_LOOPS
            and not _GROWS.search(template)
        ):
            return
        given = {
            "template": template,
            "chats": [self._with_system(chat) for chat in chats],
            "names": {
                **self._tokenizer.special_tokens_map,
                **self._switch,
                "tools": self._tools or None,
            },
        }
        command = [sys.executable, "-P", trial.__file__]
        done = subprocess.run(
            command, input=json.dumps(given, default=str).encode(), capture_output=True, check=False
        )
        # a signal, such as of a stack that is full
        if done.returncode < 0 or done.returncode == trial.TOO_MUCH:
            much = done.returncode not in (-signal.SIGXCPU, -signal.SIGKILL)
            took = (
                "more memory than any conversation needs"
                if much
                else f"over {trial.LONGEST_CPU_S} s"
            )
            raise InputError(
                f"The chat template of {_name(self._tokenizer)} takes {took} to write a short"
                " conversation; expected one that ends: correct it, or set model.template to one"
                f" of {_choices()}."
            )
        if done.returncode:
            raise RuntimeError(
                f"a chat template could not be tried: {done.stderr.decode(errors='replace')}"
            )

    def _find_switch(self, thinking: bool) -> dict[str, Any]:
        """Finds the template's variable: ``enable_thinking`` (Qwen3, GLM) or ``thinking``
        (DeepSeek, Granite).
        """
        source = str(self._chat_template or getattr(self._tokenizer, "chat_template", None) or "")
        found = [] if self._template else re.findall(r"\b(?:enable_)?thinking\b", source)
        if not found:
            raise InputError(
                f"model.thinking={str(thinking).lower()}: the template of {_name(self._tokenizer)}"
                " has no switch (enable_thinking or thinking); leave it out, or name a template"
                " that has one with model.template."
            )
        return dict.fromkeys(found, thinking)

    def with_system(self, system: str) -> PromptBuilder:
        """Returns a builder of the same prompts under another system message.

        Raises InputError if the template writes none: the model would not see it.
        """
        other = copy(self)
        if not self._writes_system:
            other._system = _PROBE
            if _PROBE not in other.text(["Hello"], []):
                raise InputError(
                    f"the template of {_name(self._tokenizer)} does not write system messages, so"
                    " the model would not see them; remove them from the file (and model.system),"
                    f" or set model.template to one that does: {_choices()}."
                )
            self._writes_system = other._writes_system = True
        other._system = system
        return other

    def of(self, case: Case) -> PromptBuilder:
        """Returns the builder of a case's prompts: this one, unless the case has its own system
        message or tools.

        Raises InputError if the template does not write a part that the case has.
        """
        builder = self if case.system is None else self.with_system(case.system)
        needed = {"schemas of tools"} if case.tools else set()
        needed |= {"calls" for message in case.messages if "tool_calls" in message}
        needed |= {"results" for message in case.messages if message["role"] == TOOL}
        return builder._with_tools(case.tools, needed) if needed else builder

    def _with_tools(self, tools: tuple[Mapping[str, Any], ...], needed: set[str]) -> PromptBuilder:
        """Returns a builder with these schemas. needed: parts of a conversation that the template
        must write.

        Arguments of calls are objects, or text for a template that refuses objects (DeepSeek's).
        """
        other = copy(self)
        if not self._tried:
            other._system, other._tools = None, _PROBE_TOOLS
            text, refusal = "", ""
            if self._template is None:
                other._refuse_endless([_PROBE_CHAT])
                for other._arguments_as_text in (False, True):
                    try:
                        text = str(other._chat(_PROBE_CHAT, tokenize=False))
                        # as Python writes an object, and no model was trained on
                        if f"'{_ARGUMENT}'" not in text:
                            break
                    except InputError as error:
                        refusal = refusal or str(error)
            lacks = {
                part: "" if text else refusal for word, part in _PARTS.items() if word not in text
            }
            self._tried[other._arguments_as_text] = lacks
        ((other._arguments_as_text, lacks),) = self._tried.items()
        if lacking := [
            part for part in dict.fromkeys(_PARTS.values()) if part in needed and part in lacks
        ]:
            named_as = (
                f"model.template={self._template}"
                if self._template
                else f"the template of {_name(self._tokenizer)}"
            )
            why = f" ({lacks[lacking[0]]})" if lacks[lacking[0]] else ""
            raise InputError(
                f"{named_as} does not write {' and '.join(lacking)}, so the model would not see"
                f" them{why}; expected a template with tools: leave model.template out for a model"
                " whose tokenizer has one, or give one as model.template=FILE.jinja."
            )
        other._system, other._tools = self._system, tools
        return other

    def prompt(self, case: Case, answers: Sequence[str]) -> list[int]:
        """Returns the token ids of the case's next turn. answers: the model's own to the turns
        before.

        The prompt of a recorded conversation has the recorded messages, and no answer of the
        model's own.
        """
        return self.of(case)._encode(self._list_next(case, len(answers), answers))

    def conversation(self, case: Case, answers: Sequence[str]) -> dict[str, Any]:
        """Returns what ``prompt`` writes as the fields of a request of OpenAI's chat completions.

        Arguments of calls are text in it, as of the API.
        """
        builder = copy(self.of(case))
        builder._arguments_as_text = True
        found: dict[str, Any] = {
            "messages": builder._with_system(self._list_next(case, len(answers), answers))
        }
        if builder._tools:
            found |= {"tools": list(builder._tools), "tool_choice": "none"}
        return found | ({"chat_template_kwargs": self._switch} if self._switch else {})

    def fits(self, case: Case, turn: int, context: int, most: int) -> bool:
        """Returns whether the prompt of a recorded turn is shorter than the context. Raises
        InputError of the template.

        most: [characters] that are tokenized.
        """
        text = self._write(self._list_next(case, turn, ()))
        size = len(text.encode(errors="surrogatepass")) + _ADDED  # a token has at least one byte
        return size < context or (len(text) <= most and len(self.encode(text)) < context)

    def _list_next(self, case: Case, turn: int, answers: Sequence[str]) -> list[Message]:
        if case.messages:
            return [dict(message) for message in case.messages[: find_cuts(case.messages)[turn]]]
        return _messages(case.turns[: turn + 1], answers)

    def ids(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Returns the token ids of the conversation, up to the start of the model's next answer.

        turns: the user's n + 1 messages. answers: the model's n earlier answers (``answer_text``).
        """
        return self._encode(_messages(turns, answers))

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        if self._template is None:
            return [int(token) for token in self._chat(messages, tokenize=True)]
        return self.encode(self._write(messages))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text that ``text`` wrote, with one BOS of template or tokenizer and
        without EOS.
        """
        if self._template is None:  # a chat template writes the special tokens itself
            return self.encode_bare(text)
        ids = list(self._tokenizer(text)["input_ids"])
        doubled = self._opens_texts and ids[:2] == [self._tokenizer.bos_token_id] * 2
        return ids[1 if doubled else 0 : -1 if self._closes_texts else None]

    def encode_bare(self, text: str) -> list[int]:
        """Returns the ids of a piece of text, without special tokens."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, turns: Sequence[str], answers: Sequence[str]) -> str:
        """Returns the conversation as text, before the tokenizer adds anything to it."""
        return self._write(_messages(turns, answers))

    def _write(self, messages: Sequence[Message]) -> str:
        if self._template is None:
            return str(self._chat(messages, tokenize=False))
        if self._template == RAW:
            return "\n".join(message["content"] for message in self._with_system(messages))
        return self._fschat(messages)

    def _fschat(self, messages: Sequence[Message]) -> str:
        """Appends messages to a fresh conversation, the last one None, as Spec-Bench does
        (eval.py).
        """
        from fastchat.conversation import get_conv_template

        conversation = get_conv_template(self._template)
        if self._system is not None:
            conversation.set_system_message(self._system)
        for message in messages:
            conversation.append_message(
                conversation.roles[message["role"] == ASSISTANT], message["content"]
            )
        conversation.append_message(conversation.roles[1], None)
        return conversation.get_prompt()

    def _with_system(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the conversation as a chat template reads it."""
        system = [{"role": SYSTEM, "content": self._system}] if self._system is not None else []
        return [
            *system,
            *(_with_text(each) if self._arguments_as_text else each for each in messages),
        ]

    def _chat(self, messages: Sequence[Message], tokenize: bool) -> Any:
        """Applies the chat template to the conversation; returns token ids or, without
        ``tokenize``, text.
        """
        from jinja2.exceptions import TemplateError

        messages = self._with_system(messages)
        try:
            # Without return_dict=False transformers 5 gives a dictionary, whose items are its keys.
            return self._tokenizer.apply_chat_template(
                messages,
                tools=[dict(tool) for tool in self._tools] or None,
                chat_template=self._chat_template,
                add_generation_prompt=True,
                tokenize=tokenize,
                return_dict=False,
                **self._switch,
            )
        except (TemplateError, *RAISED) as error:
            roles = [message["role"] for message in messages]
            shown = [*roles[:_ROLES_SHOWN], *(["..."] if len(roles) > _ROLES_SHOWN else [])]
            raise InputError(
                f"The chat template of {_name(self._tokenizer)} refused the conversation"
                f" ({', '.join(shown)}): {error}. Leave model.system out if it is set, or set"
                f" model.template to one of {_choices()}."
            ) from None

    def _bos_warning(self, probe: Sequence[int]) -> str:
        if not self._opens_texts or probe[0] == self._tokenizer.bos_token_id:
            return ""
        return (
            f"The chat template of {_name(self._tokenizer)} writes no start token, though its"
            f" tokenizer adds {self._tokenizer.bos_token!r} to plain text: prompts are as the"
            " template gives them, without it. If the model expects it, name a template with"
            " model.template."
        )


def read_template(path: str) -> str:
    """Reads a chat template in Jinja. Raises InputError for a file that is missing or empty."""
    fix = "give a Jinja template, as a tokenizer has it in chat_template.jinja."
    text = decode_text(read_file(Path(path).expanduser(), "model.template=", fix), path)
    if not text.strip():
        raise InputError(f"model.template={path}: is empty; {fix}")
    return text


def answer_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Returns the answer's text in a conversation: decoded without special tokens and stripped, as
    in Spec-Bench.

    ids: the committed token ids of one answer, including an EOS at the end.
    """
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=True, spaces_between_special_tokens=False)
    ).strip()


def thinking_marks(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Returns the ids of ``<think>`` and ``</think>``, or None if they are not tokens of the
    tokenizer.
    """
    marks = ["<think>", "</think>"]
    ids: Any = tokenizer.convert_tokens_to_ids(marks)
    return (
        (ids[0], ids[1])
        if None not in ids and tokenizer.convert_ids_to_tokens(ids) == marks
        else None
    )


def count_thinking(
    marks: tuple[int, int] | None, prompt: Sequence[int], ids: Sequence[int]
) -> int | None:
    """Counts the ids of an answer's thinking, including its end mark; None for an answer without
    thinking.

    The first end mark ends the thinking; a later one is part of the answer. If the prompt's last
    mark ends a thinking (a template that switches it off), an end mark counts only after a begin
    mark in the answer; if the prompt has no mark, the answer may omit its begin mark. An answer
    that stops before the end mark is thinking in full, if it or the prompt's end opened the
    thinking.
    """
    if marks is None:
        return None
    opened, closed = marks
    last = next((each for each in reversed(prompt) if each in marks), None)
    begin = ids.index(opened) if opened in ids else None
    start = begin if last == closed else 0
    if start is not None and closed in ids[start:]:
        return ids.index(closed, start) + 1
    return len(ids) if begin is not None or last == opened else None


def _messages(turns: Sequence[str], answers: Sequence[str]) -> list[Message]:
    """Returns the messages in order; answers are stripped, turns are unchanged."""
    if len(turns) != len(answers) + 1:
        raise ValueError(
            f"{len(turns)} turns with {len(answers)} answers: expected one turn more than answers"
        )
    messages = [{"role": USER, "content": turns[0]}]
    for answer, turn in zip(answers, turns[1:], strict=True):
        messages += [
            {"role": ASSISTANT, "content": answer.strip()},
            {"role": USER, "content": turn},
        ]
    return messages


def _with_text(message: Message) -> Message:
    """Returns a message whose calls have their arguments as text."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _fschat_names() -> list[str]:
    """Returns the templates that write a prompt; those of web services (``chatgpt``) have no style
    and cannot.
    """
    try:
        from fastchat.conversation import conv_templates
    except ImportError:
        raise InputError(
            "Templates such as model.template=vicuna_v1.1 come from fschat, which is not installed:"
            " pip install fschat, or set model.template=null for the tokenizer's own chat template."
        ) from None
    return sorted(
        name for name, template in conv_templates.items() if template.sep_style is not None
    )


def _choices() -> str:
    known = f"{RAW} (no template), vicuna_v1.1, llama-2"
    try:
        return (
            f"{known}, or another of the {len(_fschat_names())} in"
            " fastchat.conversation.conv_templates"
        )
    except InputError:
        return f"{known}, or any other of fschat (not installed: pip install fschat)"


def _space_run_warning(tokenizer: PreTrainedTokenizerBase) -> str:
    """Warns of a Llama tokenizer that was rebuilt from ``tokenizer.model`` with the wrong merges.

    SentencePiece leaves the last space of a run with the word that follows (``___ _b``); the
    rebuilt tokenizer takes the complete run (``____ b``), which gives other ids for indented code.
    Only Llama's class is checked: other families (Gemma) do take complete runs.
    """
    if "Llama" not in type(tokenizer).__name__:
        return ""
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("a    b")["input_ids"])
    if pieces[-2:] != ["▁▁▁▁", "b"]:
        return ""
    return (
        f"The tokenizer of {_name(tokenizer)} was rebuilt from tokenizer.model and splits runs of"
        " spaces otherwise than the model was trained with, so prompts with indented text differ:"
        " load it from a directory that has the model's tokenizer.json."
    )


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
