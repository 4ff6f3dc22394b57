"""A trace: conversations whose answers are recorded token by token, to be replayed without a model.

The text of an answer becomes tokens inside its conversation: the conversation is written out and tokenised whole, and
the prompt is cut off. Tokenised alone, an answer differs at its first token (a Llama tokenizer puts a space before
it); inside the conversation it comes out as it was generated, up to what stripping and decoding lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specbench.suite.prompt import PromptBuilder
from specbench.types import Case

_NEXT = "Next question"  # a turn behind the answer, so that the template writes the answer as a finished one


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request. prompt: (T,) int32 ids read. ids: (n,) int32 ids emitted, EOS included. text: the answer."""

    prompt: np.ndarray
    ids: np.ndarray
    text: str

    @classmethod
    def of(cls, prompt: Sequence[int], ids: Sequence[int], text: str) -> RecordedTurn:
        """From lists, packed: a chat log holds millions of tokens."""
        return cls(np.array(prompt, np.int32), np.array(ids, np.int32), text)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One conversation: the case, and its turns in order."""

    case: Case
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded file. kind: records | answers | chat. origin: its path; sha256: of its bytes.

    ends: ids that end an answer. exact: of an answer file, the answers whose token count is the recorded one. model:
    who answered, as the file says; suite: to what, as its run says. failed: conversations that were left out because an
    answer of theirs is missing or failed. repeated: lines that a later line of the same question replaces.
    """

    kind: str
    origin: str
    sha256: str
    conversations: tuple[Recorded, ...]
    ends: frozenset[int]
    exact: int | None = None
    model: str = ""
    suite: str = ""
    failed: int = 0
    repeated: int = 0

    @property
    def turns(self) -> int:
        """Answers in all."""
        return sum(len(each.turns) for each in self.conversations)

    def summary(self) -> str:
        """One line for the log and the manifest."""
        tokens = sum(len(turn.ids) for each in self.conversations for turn in each.turns)
        line = f"{self.kind}: {len(self.conversations)} conversations, {self.turns} answers, {tokens} tokens"
        if self.exact is None:
            return line if self.kind == "records" else f"{line}, tokenised from text"
        return f"{line}; {self.exact} of {self.turns} answers have the recorded number of tokens"


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def conversation_ids(
    builder: PromptBuilder, turns: Sequence[str], answers: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prompt ids, answer ids) of the conversation's last answer; no EOS is added.

    turns: the user's n messages; answers: the n answers.
    """
    prompt = builder.ids(turns, answers[:-1])
    before = builder.text(turns, answers[:-1])
    answer = answers[-1].strip()
    whole = builder.text([*turns, _NEXT], answers)
    at = whole.find(answer, len(before)) if whole.startswith(before) else -1
    lead = whole[len(before) : at] if at >= 0 else ""  # a template may rewrite finished answers (cut their reasoning)
    ids = builder.encode(before + lead + answer)
    if ids[: len(prompt)] != prompt:  # the template's end and the answer's beginning make one token together
        ids = [*prompt, *builder.encode_bare(answer)]
    return tuple(prompt), tuple(ids[len(prompt) :])
