"""Continuations of a text as a draft tree, each node with the number of occurrences that go through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.types import ROOT, Draft


@dataclass(frozen=True, slots=True)
class CountedTree:
    """The most frequent continuations.

    tokens, parents, counts: (N,), parents before children. taken: occurrences of the matched text that are counted.
    found: occurrences that it has. matched: its length, 0 if no text was matched.
    """

    tokens: list[int]
    parents: list[int]
    counts: list[int]
    taken: int = 0
    found: int = 0
    matched: int = 0

    @property
    def scores(self) -> list[float]:
        """(N,) each node's probability given its parent: its count as a share of the parent's, or of ``taken``."""
        above = [*self.counts, self.taken]  # the root's number is -1
        return [count / above[parent] for count, parent in zip(self.counts, self.parents, strict=True)]

    def beats(self, other: CountedTree) -> bool:
        """Returns whether the nodes' probabilities given the matched text have the higher sum."""
        return sum(self.counts) * other.taken > sum(other.counts) * self.taken

    def part(self, nodes: Sequence[int]) -> CountedTree:
        """Only ``nodes``, in ascending order; with a node, its parent must be among them."""
        number = {node: place for place, node in enumerate(nodes)} | {ROOT: ROOT}
        return replace(
            self,
            tokens=[self.tokens[node] for node in nodes],
            parents=[number[self.parents[node]] for node in nodes],
            counts=[self.counts[node] for node in nodes],
        )

    def to_draft(self, source: int) -> Draft:
        """Returns the tree as a draft."""
        return Draft(self.tokens, self.parents, source=[source] * len(self.tokens), score=self.scores)
