"""Growing a draft tree whose nodes are whole n-grams, breadth first, within a budget (Cacheback section 3.2).

Level 1 leaves ``reserve`` tokens to the deeper levels; what it did not use and the reserve then go to level 2, spent
greedily on its first node. The reference attaches every n-gram as a chain of its own; ``merge`` shares prefixes, and
then only new tokens count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from methods.parts.trees.branches import Branches
from specbench.types import ROOT

Gram = tuple[int, ...]
End = tuple[int, Gram]  # a node that followers may hang from, and the LL tokens that end there
Query = Callable[[Gram, int], Iterable[tuple[int, Iterable[Gram]]]]
"""(leader, room [tokens]) -> of each table its number and the followers, best first, those beyond the room but one."""


class ChainedTree(Branches):
    """Branches that are followers, below the end of the context and of one another."""

    def __init__(self, tail: Gram, merge: bool = False) -> None:
        """tail: the last LL tokens of the context. merge: share prefixes."""
        super().__init__(merge)
        self._lead = len(tail)
        self._ends: list[End] = [(ROOT, tail)]

    def grow(self, query: Query, room: int, reserve: int) -> int:
        """Attach followers level by level; returns the room [tokens] that is left.

        A second call goes on from every node of the first: the frozen table after the dynamic one.
        """
        left = room - reserve
        frontier = list(self._ends)
        while True:
            attached, full, left = self._level(query, frontier, left)
            self._ends += attached
            frontier = attached
            if reserve > 0:
                left, reserve = left + reserve, 0
            elif full or not attached:
                return left

    def _level(self, query: Query, frontier: Sequence[End], left: int) -> tuple[list[End], bool, int]:
        """(ends attached, whether the room ran out, room left)."""
        attached: list[End] = []
        for node, tail in frontier:
            for source, followers in query(tail, left):
                for follower in followers:
                    under, fresh = self.shared(node, follower) if self.merge else (node, follower)
                    if len(fresh) > left:
                        return attached, True, left
                    if fresh:
                        left -= len(fresh)
                        attached.append((self.attach(under, fresh, source), (tail + follower)[-self._lead :]))
        return attached, False, left
