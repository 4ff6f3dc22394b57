"""Static trees whose nodes are ranks: the child of rank r holds its parent token's candidate r (Token Recycling).

A tree is given by child counts, level by level, node by node; a node's children take ranks 0, 1, 2 ...
``[[2], [2, 1], [0, 0, 0]]``: the root has two children, the first of them two, the second one: five nodes. Parents
stand before children, level by level. Or it is given by its size: ``sized`` makes the reference's tree smaller, larger,
shallower or deeper.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specbench.types import ROOT, InputError

REFERENCE = (  # github.com/Luowaterbi/TokenRecycling, model/recycling/tree_template.py: 80 nodes on 6 levels
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)
SHARES = (49, 10, 6, 5, 3, 3, 2, 2)  # how many of its 80 nodes stand at or below the root's child of each rank

Path = tuple[int, ...]  # a node as the ranks on the way to it


def _paths(counts: Sequence[Sequence[int]]) -> list[Path]:
    """All nodes of child counts, level by level."""
    found: list[Path] = []
    above: list[Path] = [()]
    for level in counts:
        above = [(*path, rank) for path, count in zip(above, level, strict=True) for rank in range(count)]
        found += above
    return found


@dataclass(frozen=True, slots=True)
class TreeTemplate:
    """parents, ranks: (N,) of each node; levels: [start, end) of each level's nodes."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    levels: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def from_counts(cls, counts: Sequence[Sequence[int]], width: int, key: str = "tree") -> TreeTemplate:
        """Build from child counts. width: the most children a node may have. Raises InputError naming ``key``."""
        expected = 1
        for depth, level in enumerate(counts):
            if len(level) != expected:
                raise InputError(
                    f"{key}: level {depth} lists {len(level)} nodes; expected {expected}, one a node there"
                )
            if any(not 0 <= count <= width for count in level):
                raise InputError(f"{key}: level {depth} is {list(level)}; expected child counts from 0 to {width}")
            expected = sum(level)
        paths = _paths(counts)
        if not paths:
            raise InputError(f"{key}: no node; expected at least one child of the root")
        return cls._from_paths(paths)

    @classmethod
    def sized(cls, nodes: int, depth: int, width: int) -> TreeTemplate:
        """The reference's tree brought to ``nodes`` nodes on exactly ``depth`` levels.

        Taken in this order: the path of rank 0 down to ``depth``; the reference's nodes; all others. Within each the
        likely ones first: a node is worth the product of its ranks' ``SHARES``, the reference's own estimate of what a
        rank is worth (ranks beyond have share 1); of equal ones the shallower, then the lower ranks. A parent is worth
        more than its children and a rank no less than the next, so every beginning of that order is a tree. width: the
        most children a node may have. Raises InputError.
        """
        if nodes < depth or depth < 1:
            raise InputError(f"nodes={nodes}: expected at least depth={depth} nodes and 1 level, one node a level")
        known = set(_paths(REFERENCE))

        def order(path: Path) -> tuple[bool, bool, Fraction, int, Path]:
            shares = (SHARES[rank] if rank < len(SHARES) else 1 for rank in path)
            worth = Fraction(math.prod(shares), len(known) ** len(path))
            return any(path), path not in known, -worth, len(path), path

        waiting = [order((0,))]
        chosen: list[Path] = []
        while waiting and len(chosen) < nodes:
            path = heapq.heappop(waiting)[-1]
            chosen.append(path)
            if len(path) < depth:
                heapq.heappush(waiting, order((*path, 0)))
            if path[-1] + 1 < width:
                heapq.heappush(waiting, order((*path[:-1], path[-1] + 1)))
        if len(chosen) < nodes:
            raise InputError(f"nodes={nodes}: only {len(chosen)} fit on {depth} levels of {width} candidates a node")
        return cls._from_paths(chosen)

    @classmethod
    def _from_paths(cls, paths: Iterable[Path]) -> TreeTemplate:
        ordered = sorted(paths, key=lambda path: (len(path), path))
        place = {(): ROOT} | {path: node for node, path in enumerate(ordered)}
        lengths = [len(path) for path in ordered]
        starts = [lengths.index(level) for level in range(1, lengths[-1] + 1)]
        return cls(
            tuple(place[path[:-1]] for path in ordered),
            tuple(path[-1] for path in ordered),
            tuple(zip(starts, [*starts[1:], len(ordered)], strict=True)),
        )
