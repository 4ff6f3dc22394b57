"""A trace: conversations whose answers are known token by token, to be replayed without a model."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.types import Case


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request. prompt: (T,) token ids read. ids: (n,) token ids emitted, EOS included. text: the answer."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """One conversation: the case, and its turns in order."""

    case: Case
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded file. kind: records | answers | chat. origin: its path; sha256: of its bytes.

    ends: ids that end an answer. turns, exact: answers in all, and those whose token count is the recorded one
    (None where the file records none: a chat log). model: who answered, as the file says.
    """

    kind: str
    origin: str
    sha256: str
    model: str
    conversations: tuple[Recorded, ...]
    ends: frozenset[int]
    turns: int
    exact: int | None

    def summary(self) -> str:
        """One line for the log and the manifest."""
        tokens = sum(len(turn.ids) for each in self.conversations for turn in each.turns)
        line = f"{self.kind}: {len(self.conversations)} conversations, {self.turns} answers, {tokens} tokens"
        if self.exact is None:
            return f"{line}, tokenised from text"
        return f"{line}; {self.exact} of {self.turns} answers have the recorded number of tokens"
