"""Growing a draft tree whose nodes are whole n-grams, breadth first, within a budget (Cacheback section 3.2).

Level 1 leaves ``reserve`` tokens to the deeper levels; what it did not use and the reserve then go to level 2, spent
greedily on its first node. The reference attaches every n-gram as a chain of its own; ``merge`` shares prefixes, and
then only new tokens count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specbench.types import ROOT

Gram = tuple[int, ...]
Query = Callable[[Gram], list[tuple[Gram, int]]]  # leader -> followers with their source numbers, best first


@dataclass(slots=True)
class ChainedTree:
    """The growing draft. tail: the last LL tokens of the context. Nodes are numbered as in ``Draft``."""

    tail: Gram
    merge: bool = False
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)
    _tails: dict[int, Gram] = field(default_factory=dict)
    _queried: list[int] = field(default_factory=lambda: [ROOT])

    def grow(self, query: Query, room: int, reserve: int) -> int:
        """Attach followers level by level; returns the room [tokens] that is left.

        A second call goes on from every node of the first: the frozen table after the dynamic one.
        """
        self._tails.setdefault(ROOT, self.tail)
        left = room - reserve
        frontier = list(self._queried)
        while True:
            attached, full, left = self._level(query, frontier, left)
            self._queried += attached
            frontier = attached
            if reserve > 0:
                left, reserve = left + reserve, 0
            elif full or not attached:
                return left

    def _level(self, query: Query, frontier: Sequence[int], left: int) -> tuple[list[int], bool, int]:
        """(end nodes attached, whether the room ran out, room left)."""
        attached: list[int] = []
        for node in frontier:
            for follower, source in query(self._tails[node]):
                cost = self._cost(node, follower)
                if cost > left:
                    return attached, True, left
                end = self._attach(node, follower, source)
                left -= cost
                if cost and end not in attached:
                    attached.append(end)
        return attached, False, left

    def _cost(self, node: int, follower: Gram) -> int:
        """New tokens that ``follower`` adds below ``node``."""
        if not self.merge:
            return len(follower)
        for place, token in enumerate(follower):
            child = self._children.get((node, token))
            if child is None:
                return len(follower) - place
            node = child
        return 0

    def _attach(self, node: int, follower: Gram, source: int) -> int:
        tail = self._tails[node]
        for token in follower:
            child = self._children.get((node, token)) if self.merge else None
            if child is None:
                child = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.source.append(source)
                self._children[node, token] = child
            node = child
        self._tails[node] = (*tail, *follower)[-len(self.tail) :]
        return node
