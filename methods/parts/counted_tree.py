"""Continuations of a text as a draft tree, each node with the number of occurrences that go through it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from methods.parts.array_draft import PARENT, SOURCE, list_nodes
from specbench.models.compiled_code import njit
from specbench.types import ROOT, Draft

COUNT = SOURCE  # a row of the nodes: their counts, until the draft has its source


@njit(widen=True)
def rate(nodes, size, taken, source, score):
    """Replace the counts of the first ``size`` nodes by their source; ``score`` has their shares of their parent's."""
    for node in range(size):
        parent = nodes[PARENT, node]
        score[node] = nodes[COUNT, node] / (taken if parent == ROOT else nodes[COUNT, parent])
    for node in range(size):
        nodes[SOURCE, node] = source


class CountedTree(NamedTuple):
    """The most frequent continuations.

    nodes: (3, N) int64, tokens, parents and counts, parents before children. taken: occurrences of the matched text
    that are counted. found: occurrences that it has. matched: its length, 0 if no text was matched.
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
        """Write the tree as a draft, see ``ArrayDrafter``; a score is a count as a share of the parent's, or ``taken``.

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
