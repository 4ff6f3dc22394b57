"""A suffix array over token ids: every place of a text, sorted by what stands there (Manber and Myers 1990).

Built by libdivsufsort through pydivsufsort, queried by the kernels of ``suffix_kernels``. Both
arrays are read-only: an array is queried while another one is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydivsufsort import divsufsort

from methods.parts.lookup import suffix_kernels as kernels
from specbench.types import ROOT

CROSSING = np.zeros(0, np.int64)  # no borders: continuations run from one text into the next


@dataclass(frozen=True, slots=True)
class Tree:
    """The most frequent continuations as a tree: tokens, parents, counts (N,); counts are of the hits ``taken``.

    found: hits there were. matched: length of the suffix that was found, 0 if none was.
    """

    tokens: list[int]
    parents: list[int]
    counts: list[int]
    taken: int = 0
    found: int = 0
    matched: int = 0

    @property
    def scores(self) -> list[float]:
        """(N,) each node's count as a share of its parent's; the first level's of all hits."""
        above = [*self.counts, self.taken]  # the root's number is -1
        return [count / above[parent] for count, parent in zip(self.counts, self.parents, strict=True)]

    def part(self, nodes: Sequence[int]) -> Tree:
        """Only ``nodes``, in ascending order; with a node, its parent must be among them."""
        number = {node: place for place, node in enumerate(nodes)} | {ROOT: ROOT}
        return replace(
            self,
            tokens=[self.tokens[node] for node in nodes],
            parents=[number[self.parents[node]] for node in nodes],
            counts=[self.counts[node] for node in nodes],
        )


class MatchCounts:
    """Figures of one request's queries."""

    def __init__(self) -> None:
        self._steps = self._matched = self._tokens = self._found = 0

    def add(self, tree: Tree) -> None:
        """A step's query gave ``tree``."""
        self._steps += 1
        if tree.matched:
            self._matched += 1
            self._tokens += tree.matched
            self._found += tree.found

    def stats(self) -> dict[str, float]:
        """matched_steps: share of steps with a match; query_tokens, matches: means of these steps."""
        if not self._matched:
            return {"matched_steps": 0.0}
        return {
            "matched_steps": self._matched / self._steps,
            "query_tokens": self._tokens / self._matched,
            "matches": self._found / self._matched,
        }


class SuffixArray:
    """tokens: (n,) integers, ``END`` between texts; order: (n,) int32 or int64, the places in sorted order."""

    def __init__(self, tokens: np.ndarray, order: np.ndarray) -> None:
        self.tokens, self.order = tokens, order
        tokens.flags.writeable = order.flags.writeable = False

    @classmethod
    def build(cls, tokens: np.ndarray) -> SuffixArray:
        """Sort a copy of ``tokens``."""
        own = np.array(tokens)
        order = divsufsort(_dense(own)) if len(own) else np.zeros(0, np.int32)
        return cls(own, order.astype(np.int32 if len(own) < 2**31 else np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.tokens)

    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.tokens.nbytes + self.order.nbytes

    def find(self, pattern: Sequence[int]) -> tuple[int, int]:
        """[start, end) rows of the suffixes that begin with ``pattern``."""
        wanted = np.array(pattern, np.int64)
        start = kernels.bound(self.tokens, self.order, wanted, 0, 0)
        return start, kernels.bound(self.tokens, self.order, wanted, 1, start)

    def longest(self, tail: Sequence[int], shortest: int = 1) -> tuple[int, int, int]:
        """(length, start row, end row) of the longest suffix of ``tail`` that occurs; (0, 0, 0) below ``shortest``."""
        return kernels.longest(self.tokens, self.order, np.array(tail, np.int64), shortest)

    def continuations(self, pattern: Sequence[int], length: int) -> list[list[int]]:
        """At most ``length`` tokens behind each occurrence of ``pattern``, in sorted order."""
        rows = self.order[slice(*self.find(pattern))]
        return [self.tokens[place + len(pattern) :][:length].tolist() for place in rows]

    def tree(
        self,
        tail: Sequence[int],
        shortest: int,
        depth: int,
        room: int,
        most: int,
        draw: int | None = 0,
        borders: np.ndarray = CROSSING,
    ) -> Tree:
        """The ``room`` most frequent beginnings of what followed the longest suffix of ``tail`` that occurs.

        Order: count, then depth, then sorted order. depth: of the tree [tokens]. most: hits looked at; draw: which, a
        random number below 2**31, or None for the first ones in sorted order. borders: see ``suffix_kernels.look``.
        """
        first = draw is None
        tokens, parents, counts, *rest = kernels.grow_tree(
            self.tokens, self.order, borders, np.array(tail, np.int64), shortest, most, first, draw or 0, depth, room
        )
        return Tree(tokens.tolist(), parents.tolist(), counts.tolist(), *rest)

    def vote(
        self, tail: Sequence[int], shortest: int, length: int, most: int, draw: int = 0, whole: bool = True
    ) -> Tree:
        """The one continuation that is most frequent, as a whole or token by token; of equals the most recent."""
        tokens, counts, *rest = kernels.vote_chain(
            self.tokens, self.order, np.array(tail, np.int64), shortest, most, draw, length, whole
        )
        return Tree(tokens.tolist(), list(range(-1, len(tokens) - 1)), counts.tolist(), *rest)


def _dense(tokens: np.ndarray) -> np.ndarray:
    """The same order in the narrowest unsigned integers, as the library sorts bytes: two a token, rarely four."""
    least = int(tokens.min())
    present = np.zeros(int(tokens.max()) - least + 1, np.bool_)
    shifted = tokens.astype(np.int64) - least
    present[shifted] = True
    ranks = np.cumsum(present) - 1
    narrow = np.min_scalar_type(int(ranks[-1]))
    return ranks.astype(narrow)[shifted]


def cut_paths(tree: Tree, choices: int) -> list[int]:
    """Nodes of a tree that stay within ``choices`` under the rule of REST's code (see ``suffix_kernels.cut_paths``)."""
    kept = kernels.cut_paths(np.array(tree.tokens, np.int64), np.array(tree.parents, np.int64), choices)
    return np.flatnonzero(kept).tolist()
