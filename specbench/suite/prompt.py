"""Prompts: the token ids that the target reads of a conversation, by a template around the turns and a tokenizer.

Spec-Bench writes the complete conversation as text before every turn, including its own stripped answers, and
tokenises it again; no token of an earlier turn is reused. The same is done here, so a prompt depends only on the text
of the turns and answers. The start-of-sequence token (BOS) is at the front once, also if both the template and the
tokenizer add it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.input import decode_text, read_file
from specbench.suite import trial
from specbench.types import Case, InputError, named

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raised by the expressions of a chat template, in addition to its own errors.
RAISED = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, SyntaxError)
MOST_TEMPLATE = 1 << 20  # [bytes]
# What a template needs to write more than loops over a conversation do: a call, a product, a filter, a name, a width.
_GROWS, _MOST_LOOPS = re.compile(r"[(*|]|\b(set|with|macro|call|filter)\b|(?<!\{)%(?!\})"), 3
_TRIED = (("Hello",), ("Hello", "And", "Why?"))  # turns of conversations that a template must write
TEMPLATES = (".jinja", ".jinja2")
_PROBE = "Answer as a test of system messages."  # which a template writes or leaves out
RAW = "raw"  # no template; shadows fschat's own "raw", which writes no separator between messages


class PromptBuilder:
    """Builds the prompts of one tokenizer under one template.

    template: a template of fschat (``vicuna_v1.1``, ``llama-2``), None for the tokenizer's own chat template, a file
    (``*.jinja``) of another one, or ``raw`` for turns and answers joined by newlines. system: replaces the template's
    system message; None keeps it. thinking: the chat template's switch; None leaves it unchanged. Raises InputError if
    the template does not exist or cannot be written out.

    The attribute ``warnings`` states where the tokenizer gives other prompts than the model was trained on.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None,
        system: str | None = None,
        thinking: bool | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = read_template(template) if template and template.endswith(TEMPLATES) else None
        template = None if self._chat_template else template
        self._template = template
        self._system = system
        self._writes_system = False  # once it was seen to
        plain, bos, eos = tokenizer("a")["input_ids"], tokenizer.bos_token_id, tokenizer.eos_token_id
        self._opens_texts = bos is not None and plain[:1] == [bos]
        # Some tokenizers close every text with EOS, after which a model would start anew instead of answering.
        self._closes_texts = eos is not None and plain[-1:] == [eos]
        if template is None and not (self._chat_template or getattr(tokenizer, "chat_template", None)):
            raise InputError(
                f"The tokenizer of {_name(tokenizer)} has no chat template and model.template is null, so there is no "
                "way to write a conversation. Set model.template to the one that the model was trained with: "
                f"{_choices()}."
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
            self._refuse_endless()
        if system is not None:
            with named(f"model.system={system}: "):
                self.with_system(system)
        probe = self.ids(["Hello"], [])  # a template that cannot be written out fails here, before a run starts
        self.warnings = tuple(filter(None, (self._bos_warning(probe), _space_run_warning(tokenizer))))

    def _refuse_endless(self) -> None:
        """Raises InputError for a chat template that does not end or fills the memory, which another process tries.

        That process is started, not forked: a lock that another thread has is never released in a fork. Any other error
        is left to the caller, who writes the text again.
        """
        template = self._chat_template or self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if isinstance(template, str) and template.count("for") <= _MOST_LOOPS and not _GROWS.search(template):
            return
        given = {
            "template": template,
            "chats": [self._messages(turns, ["Hi"] * (len(turns) - 1)) for turns in _TRIED],
            "names": {**self._tokenizer.special_tokens_map, **self._switch},
        }
        command = [sys.executable, "-P", trial.__file__]
        done = subprocess.run(command, input=json.dumps(given, default=str).encode(), capture_output=True, check=False)
        if done.returncode < 0 or done.returncode == trial.TOO_MUCH:  # a signal, such as of a stack that is full
            much = done.returncode not in (-signal.SIGXCPU, -signal.SIGKILL)
            took = "more memory than any conversation needs" if much else f"over {trial.LONGEST_CPU_S} s"
            raise InputError(
                f"The chat template of {_name(self._tokenizer)} takes {took} to write a short conversation; expected"
                f" one that ends: correct it, or set model.template to one of {_choices()}."
            )
        if done.returncode:
            raise RuntimeError(f"a chat template could not be tried: {done.stderr.decode(errors='replace')}")

    def _find_switch(self, thinking: bool) -> dict[str, Any]:
        """Finds the template's variable: ``enable_thinking`` (Qwen3, GLM) or ``thinking`` (DeepSeek, Granite)."""
        source = str(self._chat_template or getattr(self._tokenizer, "chat_template", None) or "")
        found = [] if self._template else re.findall(r"\b(?:enable_)?thinking\b", source)
        if not found:
            raise InputError(
                f"model.thinking={str(thinking).lower()}: the template of {_name(self._tokenizer)} has no switch "
                "(enable_thinking or thinking); leave it out, or name a template that has one with model.template."
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
                    f"the template of {_name(self._tokenizer)} does not write system messages, so the model would not"
                    " see them; remove them from the file (and model.system), or set model.template to one that does:"
                    f" {_choices()}."
                )
            self._writes_system = other._writes_system = True
        other._system = system
        return other

    def of(self, case: Case) -> PromptBuilder:
        """Returns the builder of a case's prompts: this one, unless the case has its own system message."""
        return self if case.system is None else self.with_system(case.system)

    def ids(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Returns the token ids of the conversation, up to the start of the model's next answer.

        turns: the user's n + 1 messages. answers: the model's n earlier answers (``answer_text``).
        """
        if self._template is None:
            return [int(token) for token in self._chat(turns, answers, tokenize=True)]
        return self.encode(self.text(turns, answers))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text that ``text`` wrote, with one BOS of template or tokenizer and without EOS."""
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
        if self._template is None:
            return str(self._chat(turns, answers, tokenize=False))
        if self._template == RAW:
            messages = [message for _, message in _messages(turns, answers)]
            return "\n".join(messages if self._system is None else [self._system, *messages])
        return self._fschat(turns, answers)

    def _fschat(self, turns: Sequence[str], answers: Sequence[str]) -> str:
        """Appends messages to a fresh conversation, the last one None, as Spec-Bench does (eval.py)."""
        from fastchat.conversation import get_conv_template

        conversation = get_conv_template(self._template)
        if self._system is not None:
            conversation.set_system_message(self._system)
        for is_answer, message in _messages(turns, answers):
            conversation.append_message(conversation.roles[is_answer], message)
        conversation.append_message(conversation.roles[1], None)
        return conversation.get_prompt()

    def _messages(self, turns: Sequence[str], answers: Sequence[str]) -> list[dict[str, str]]:
        """Returns the conversation as a chat template reads it."""
        messages = [{"role": "system", "content": self._system}] if self._system is not None else []
        for is_answer, message in _messages(turns, answers):
            messages.append({"role": "assistant" if is_answer else "user", "content": message})
        return messages

    def _chat(self, turns: Sequence[str], answers: Sequence[str], tokenize: bool) -> Any:
        """Applies the chat template to the conversation; returns token ids or, without ``tokenize``, text."""
        from jinja2.exceptions import TemplateError

        messages = self._messages(turns, answers)
        try:
            # Without return_dict=False transformers 5 gives a dictionary, whose items are its keys.
            return self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._chat_template,
                add_generation_prompt=True,
                tokenize=tokenize,
                return_dict=False,
                **self._switch,
            )
        except (TemplateError, *RAISED) as error:
            raise InputError(
                f"The chat template of {_name(self._tokenizer)} refused the conversation "
                f"({', '.join(message['role'] for message in messages)}): {error}. "
                f"Leave model.system out if it is set, or set model.template to one of {_choices()}."
            ) from None

    def _bos_warning(self, probe: Sequence[int]) -> str:
        if not self._opens_texts or probe[0] == self._tokenizer.bos_token_id:
            return ""
        return (
            f"The chat template of {_name(self._tokenizer)} writes no start token, though its tokenizer adds "
            f"{self._tokenizer.bos_token!r} to plain text: prompts are as the template gives them, without it. "
            "If the model expects it, name a template with model.template."
        )


def read_template(path: str) -> str:
    """Reads a chat template in Jinja. Raises InputError for a file that is missing or empty."""
    fix = "give a Jinja template, as a tokenizer has it in chat_template.jinja."
    text = decode_text(read_file(Path(path).expanduser(), "model.template=", fix, MOST_TEMPLATE), path)
    if not text.strip():
        raise InputError(f"model.template={path}: is empty; {fix}")
    return text


def answer_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Returns the answer's text in a conversation: decoded without special tokens and stripped, as in Spec-Bench.

    ids: the committed token ids of one answer, including an EOS at the end.
    """
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, spaces_between_special_tokens=False)).strip()


def thinking_marks(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Returns the ids of ``<think>`` and ``</think>``, or None if they are not tokens of the tokenizer."""
    marks = ["<think>", "</think>"]
    ids: Any = tokenizer.convert_tokens_to_ids(marks)
    return (ids[0], ids[1]) if None not in ids and tokenizer.convert_ids_to_tokens(ids) == marks else None


def count_thinking(marks: tuple[int, int] | None, prompt: Sequence[int], ids: Sequence[int]) -> int | None:
    """Counts the ids of an answer's thinking, including its end mark; None for an answer without thinking.

    The first end mark ends the thinking; a later one is part of the answer. If the prompt's last mark ends a thinking
    (a template that switches it off), an end mark counts only after a begin mark in the answer; if the prompt has no
    mark, the answer may omit its begin mark. An answer that stops before the end mark is thinking in full, if it or
    the prompt's end opened the thinking.
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


def _messages(turns: Sequence[str], answers: Sequence[str]) -> list[tuple[bool, str]]:
    """Returns (whether it is an answer, message) in order; answers are stripped, turns are unchanged."""
    if len(turns) != len(answers) + 1:
        raise ValueError(f"{len(turns)} turns with {len(answers)} answers: expected one turn more than answers")
    messages = [(False, turns[0])]
    for answer, turn in zip(answers, turns[1:], strict=True):
        messages += [(True, answer.strip()), (False, turn)]
    return messages


def _fschat_names() -> list[str]:
    """Returns the templates that write a prompt; those of web services (``chatgpt``) have no style and cannot."""
    try:
        from fastchat.conversation import conv_templates
    except ImportError:
        raise InputError(
            "Templates such as model.template=vicuna_v1.1 come from fschat, which is not installed: "
            "pip install fschat, or set model.template=null for the tokenizer's own chat template."
        ) from None
    return sorted(name for name, template in conv_templates.items() if template.sep_style is not None)


def _choices() -> str:
    known = f"{RAW} (no template), vicuna_v1.1, llama-2"
    try:
        return f"{known}, or another of the {len(_fschat_names())} in fastchat.conversation.conv_templates"
    except InputError:
        return f"{known}, or any other of fschat (not installed: pip install fschat)"


def _space_run_warning(tokenizer: PreTrainedTokenizerBase) -> str:
    """Warns of a Llama tokenizer that was rebuilt from ``tokenizer.model`` with the wrong merges.

    SentencePiece leaves the last space of a run with the word that follows (``___ _b``); the rebuilt tokenizer takes
    the complete run (``____ b``), which gives other ids for indented code. Only Llama's class is checked: other
    families (Gemma) do take complete runs.
    """
    if "Llama" not in type(tokenizer).__name__:
        return ""
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("a    b")["input_ids"])
    if pieces[-2:] != ["▁▁▁▁", "b"]:
        return ""
    return (
        f"The tokenizer of {_name(tokenizer)} was rebuilt from tokenizer.model and splits runs of spaces otherwise "
        "than the model was trained with, so prompts with indented text differ: load it from a directory that has "
        "the model's tokenizer.json."
    )


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
