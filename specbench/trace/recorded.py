"""A trace: conversations whose answers are recorded token by token, to be replayed without a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specbench.types import Case


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request. prompt: (T,) int32 ids read. ids: (n,) int32 ids emitted, EOS included. text: the answer."""

    prompt: np.ndarray
    ids: np.ndarray
    text: str

    @classmethod
    def of(cls, prompt: Sequence[int], ids: Sequence[int], text: str) -> RecordedTurn:
        """Packs lists of ids, because a chat log holds millions of tokens."""
        return cls(np.array(prompt, np.int32), np.array(ids, np.int32), text)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One conversation: the case, and its turns in order."""

    case: Case
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The contents of a recorded file.

    kind: records | answers | chat. origin: the file's path; sha256: of its bytes. ends: ids that end an answer.
    exact: of an answer file, the number of answers whose token count is the recorded one. model: the name of the model
    that answered, as the file has it; suite: the name of its suite, as its run has it. failed: conversations that were
    left out because one of their answers is missing or failed. repeated: lines that a later line of the same question
    replaces.
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
        """The number of answers."""
        return sum(len(each.turns) for each in self.conversations)

    def summary(self) -> str:
        """Describes the trace in one line for the log and the manifest."""
        tokens = sum(len(turn.ids) for each in self.conversations for turn in each.turns)
        line = f"{self.kind}: {len(self.conversations)} conversations, {self.turns} answers, {tokens} tokens"
        if self.exact is None:
            return line if self.kind == "records" else f"{line}, tokenised from text"
        return f"{line}; {self.exact} of {self.turns} answers have the recorded number of tokens"


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
