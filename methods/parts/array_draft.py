"""Texts and drafts in arrays: those of compiled code, which a hybrid merges without a detour over Python's lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from specbench.method import Drafter
from specbench.types import EMPTY, Draft


class GrowingText:
    """stored: int32, of which the first ``length`` are the text's tokens; the next ``extend`` may replace it."""

    def __init__(self) -> None:
        self.stored, self.length = np.empty(0, np.int32), 0

    @property
    def tokens(self) -> np.ndarray:
        """(length,) int32, a view."""
        return self.stored[: self.length]

    def extend(self, tokens: np.ndarray | Sequence[int]) -> None:
        """Append tokens."""
        start, end = self.length, self.length + len(tokens)
        if end > len(self.stored):
            longer = np.empty(2 * end, np.int32)
            longer[:start] = self.tokens
            self.stored = longer
        self.stored[start:end] = tokens
        self.length = end

    def follow(self, context: Sequence[int]) -> None:
        """Append what ``context`` has grown by."""
        if len(context) > self.length:
            self.extend(context[self.length :])


TOKEN, PARENT, SOURCE = range(3)  # rows of the nodes


class ArrayDrafter(Drafter):
    """A drafter whose drafts are written to arrays, which may be another's, as its text. Subclasses implement ``fill``.

    nodes: (3, most) int64, tokens, parents and sources. score: (most,) float64, see ``Draft``; None without scores.
    text: of the context, as far as it is copied.
    """

    def __init__(self, most: int, scored: bool = False) -> None:
        self.nodes = np.empty((3, most), np.int64)
        self.score = np.empty(most) if scored else None
        self.text = GrowingText()

    @abstractmethod
    def fill(self, context: Sequence[int], budget: int) -> int:
        """As ``propose``: writes the draft to the arrays, and returns its number of nodes."""

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        return list_nodes(self.nodes, self.score, self.fill(context, budget))


def list_nodes(nodes: np.ndarray, score: np.ndarray | None, size: int) -> Draft:
    """Returns the draft of the first ``size`` nodes, in lists."""
    if not size:
        return EMPTY
    tokens, parents, source = nodes[:, :size].tolist()
    return Draft(tokens, parents, None, None, source, None if score is None else score[:size].tolist())
