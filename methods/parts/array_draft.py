"""Drafts in arrays: those of compiled code, which a hybrid merges without a detour over Python's lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.method import Drafter
from specbench.types import EMPTY, Draft


class ArrayDraft(NamedTuple):
    """A draft of N nodes, valid until its drafter's next one; the fields are those of ``Draft``.

    tokens, parents: (N,) integers. source: (N,) or one number for all nodes. score: (N,) float64 or None.
    """

    tokens: np.ndarray
    parents: np.ndarray
    source: np.ndarray | int
    score: np.ndarray | None = None

    def to_draft(self) -> Draft:
        """Returns the draft in lists."""
        tokens = self.tokens.tolist()
        if not tokens:
            return EMPTY
        source = [self.source] * len(tokens) if isinstance(self.source, int) else self.source.tolist()
        score = None if self.score is None else self.score.tolist()
        return Draft(tokens, self.parents.tolist(), source=source, score=score)


class ArrayDrafter(Drafter):
    """A drafter whose drafts are arrays. Subclasses implement ``draft``."""

    @abstractmethod
    def draft(self, context: Sequence[int], budget: int) -> ArrayDraft:
        """As ``propose``."""

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """See ``Drafter.propose``."""
        return self.draft(context, budget).to_draft()
