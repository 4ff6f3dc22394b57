"""Texts and drafts in arrays: those of compiled code, which a hybrid merges without a detour over
Python's lists.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.method import Drafter
from specbench.models.compiled_code import njit
from specbench.types import EMPTY, ROOT, Draft


class GrowingText:
    """stored: int32, of which the first ``length`` are the text's tokens; the next ``extend`` may
    replace it.
    """

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
    """A drafter whose drafts are written to arrays, which may be another's, as its text. Subclasses
    implement ``fill``.

    nodes: (3, most) int64, tokens, parents and sources. score: (most,) float64, see ``Draft``; None
    without scores. text: of the context, as far as it is copied.
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
    return Draft(
        tokens, parents, None, None, source, None if score is None else score[:size].tolist()
    )


COUNT = SOURCE  # a row of the nodes: their counts, until the draft has its source


@njit(widen=True)
def rate(nodes, size, taken, source, score):
    """Replace the counts of the first ``size`` nodes by their source; ``score`` has their shares of
    their parent's.
    """
    for node in range(size):
        parent = nodes[PARENT, node]
        score[node] = nodes[COUNT, node] / (taken if parent == ROOT else nodes[COUNT, parent])
    for node in range(size):
        nodes[SOURCE, node] = source


class CountedTree(NamedTuple):
    """The most frequent continuations.

    nodes: (3, N) int64, tokens, parents and counts, parents before children. taken: occurrences of
    the matched text that are counted. found: occurrences that it has. matched: its length, 0 if no
    text was matched.
    """

    nodes: np.ndarray
    taken: int = 0
    found: int = 0
    matched: int = 0

    def part(self, nodes: np.ndarray) -> CountedTree:
        """Only ``nodes``, in ascending order; with a node, its parent must be among them."""
        number = np.full(self.nodes.shape[1] + 1, ROOT)  # its last is the root's
        number[nodes] = np.arange(len(nodes))
        kept = np.take(self.nodes, nodes, 1)
        kept[PARENT] = number[kept[PARENT]]
        return self._replace(nodes=kept)

    def write(self, source: int, nodes: np.ndarray, score: np.ndarray | None) -> int:
        """Write the tree as a draft, see ``ArrayDrafter``; a score is a count as a share of the
        parent's, or ``taken``.

        Returns the number of nodes.
        """
        size = self.nodes.shape[1]
        nodes[:, :size] = self.nodes
        rate(nodes, size, self.taken, source, score)
        return size

    def to_draft(self, source: int) -> Draft:
        """Returns the tree as a draft."""
        nodes, score = np.empty_like(self.nodes), np.empty(self.nodes.shape[1])
        return list_nodes(nodes, score, self.write(source, nodes, score))
