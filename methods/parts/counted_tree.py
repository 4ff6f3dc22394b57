"""Continuations of a text as a draft tree, each node with the number of occurrences that go through it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from methods.parts.array_draft import ArrayDraft
from specbench.models.compiled_code import njit
from specbench.types import ROOT


@njit(widen=True)
def divide(counts, parents, taken, scores):
    """Fill the scores of a ``CountedTree``."""
    for node in range(len(counts)):
        scores[node] = counts[node] / (taken if parents[node] == ROOT else counts[parents[node]])


class CountedTree(NamedTuple):
    """The most frequent continuations.

    tokens, parents, counts: (N,) integers, parents before children. taken: occurrences of the matched text that are
    counted. found: occurrences that it has. matched: its length, 0 if no text was matched.
    """

    tokens: np.ndarray
    parents: np.ndarray
    counts: np.ndarray
    taken: int = 0
    found: int = 0
    matched: int = 0

    @property
    def scores(self) -> np.ndarray:
        """(N,) each node's probability given its parent: its count as a share of the parent's, or of ``taken``."""
        scores = np.empty(len(self.counts))
        divide(self.counts, self.parents, self.taken, scores)
        return scores

    def beats(self, other: CountedTree) -> bool:
        """Returns whether the nodes' probabilities given the matched text have the higher sum."""
        return sum(self.counts.tolist()) * other.taken > sum(other.counts.tolist()) * self.taken

    def part(self, nodes: np.ndarray) -> CountedTree:
        """Only ``nodes``, in ascending order; with a node, its parent must be among them."""
        number = np.full(len(self.tokens) + 1, ROOT)  # its last is the root's
        number[nodes] = np.arange(len(nodes))
        tokens, parents, counts = self.tokens[nodes], number[self.parents[nodes]], self.counts[nodes]
        return self._replace(tokens=tokens, parents=parents, counts=counts)

    def to_draft(self, source: int) -> ArrayDraft:
        """Returns the tree as a draft."""
        return ArrayDraft(self.tokens, self.parents, source, self.scores)
