"""Drafts in arrays: those of compiled code, which a hybrid merges without a detour over Python's lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from methods.parts.growing_text import GrowingText
from specbench.method import Drafter
from specbench.types import EMPTY, Draft

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
