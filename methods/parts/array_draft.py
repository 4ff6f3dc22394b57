"""Drafts in arrays: those of compiled code, which a hybrid merges without a detour over Python's lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.method import Drafter
from specbench.types import EMPTY, Draft


class ArrayDraft(NamedTuple):
    """A draft of N nodes, valid until its drafter's next one.

    nodes: (3, N) integers, the tokens, parents and sources. score: (N,) float64, see ``Draft``.
    """

    nodes: np.ndarray
    score: np.ndarray | None = None

    def to_draft(self) -> Draft:
        """Returns the draft in lists."""
        tokens, parents, source = self.nodes.tolist()
        if not tokens:
            return EMPTY
        return Draft(tokens, parents, None, None, source, None if self.score is None else self.score.tolist())


class ArrayDrafter(Drafter):
    """A drafter whose drafts are arrays. Subclasses implement ``draft``."""

    @abstractmethod
    def draft(self, context: Sequence[int], budget: int) -> ArrayDraft:
        """As ``propose``."""

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """See ``Drafter.propose``."""
        return self.draft(context, budget).to_draft()
