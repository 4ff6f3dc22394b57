"""A static tree given by child counts: level by level, node by node, how many children; they take ranks 0, 1, 2 ...

``[[2], [2, 1], [0, 0, 0]]``: the root has two children, the first of them two, the second one: five nodes. Parents
stand before children, level by level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.types import ROOT, InputError


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
        parents: list[int] = []
        ranks: list[int] = []
        levels: list[tuple[int, int]] = []
        above = [ROOT]
        for depth, level in enumerate(counts):
            if len(level) != len(above):
                raise InputError(
                    f"{key}: level {depth} lists {len(level)} nodes; expected {len(above)}, one a node there"
                )
            if any(not 0 <= count <= width for count in level):
                raise InputError(f"{key}: level {depth} is {list(level)}; expected child counts from 0 to {width}")
            start = len(parents)
            for parent, count in zip(above, level, strict=True):
                parents += [parent] * count
                ranks += range(count)
            above = list(range(start, len(parents)))
            if above:
                levels.append((start, len(parents)))
        if not parents:
            raise InputError(f"{key}: no node; expected at least one child of the root")
        return cls(tuple(parents), tuple(ranks), tuple(levels))
