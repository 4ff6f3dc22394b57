"""The document: one generated conversation, the unit of the corpus and of the question suite."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

HELD_OUT_SHARE = 32


@dataclass(frozen=True)
class Document:
    """User turns and the answers to them; the answers follow from the turns without chance."""

    category: str
    turns: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def key(self) -> str:
        """Hash of the opening turn, which alone decides between training corpus and question suite."""
        return hashlib.sha256(self.turns[0].encode("utf-8")).hexdigest()

    @property
    def held_out(self) -> bool:
        """Whether the document is kept out of every training corpus: one in ``HELD_OUT_SHARE``, by hash.

        Splitting by hash rather than by seed makes it impossible for a prompt of the suite to be trained on, however
        long the corpus gets.
        """
        return int(self.key[:8], 16) % HELD_OUT_SHARE == 0

    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat messages."""
        pairs = zip(self.turns, self.answers, strict=True)
        return [
            {"role": role, "content": text}
            for turn, answer in pairs
            for role, text in (("user", turn), ("assistant", answer))
        ]
