"""Continuations of a text as a draft tree, each node with the number of occurrences that go through it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from methods.parts.array_draft import ArrayDraft
from specbench.models.compiled_code import njit
from specbench.types import ROOT

TOKEN, PARENT, COUNT = range(3)  # rows of the nodes


@njit(widen=True)
def rate(nodes, taken, source):
    """The nodes and scores of a draft of a ``CountedTree``."""
    drafted, scores = nodes.copy(), np.empty(nodes.shape[1])
    for node in range(len(scores)):
        parent = nodes[PARENT, node]
        scores[node] = nodes[COUNT, node] / (taken if parent == ROOT else nodes[COUNT, parent])
        drafted[COUNT, node] = source
    return drafted, scores


class CountedTree(NamedTuple):
    """The most frequent continuations.

    nodes: (3, N) int64, tokens, parents and counts, parents before children. taken: occurrences of the matched text
    that are counted. found: occurrences that it has. matched: its length, 0 if no text was matched.
    """

    nodes: np.ndarray
    taken: int = 0
    found: int = 0
    matched: int = 0

    def beats(self, other: CountedTree) -> bool:
        """Returns whether the nodes' probabilities given the matched text have the higher sum."""
        return sum(self.nodes[COUNT].tolist()) * other.taken > sum(other.nodes[COUNT].tolist()) * self.taken

    def part(self, nodes: np.ndarray) -> CountedTree:
        """Only ``nodes``, in ascending order; with a node, its parent must be among them."""
        number = np.full(self.nodes.shape[1] + 1, ROOT)  # its last is the root's
        number[nodes] = np.arange(len(nodes))
        kept = np.take(self.nodes, nodes, 1)
        kept[PARENT] = number[kept[PARENT]]
        return self._replace(nodes=kept)

    def to_draft(self, source: int) -> ArrayDraft:
        """Returns the tree as a draft; a node's score is its count as a share of its parent's, or of ``taken``."""
        return ArrayDraft(*rate(self.nodes, self.taken, source))
