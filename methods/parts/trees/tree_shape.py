"""Trees whose shape is fixed before decoding: how many children each node gets, and the best shape for given rates.

Nodes stand level by level, siblings side by side, so any first part of a shape is a tree again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.target.tree import depths_of
from specbench.types import ROOT


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth. start: number of the first one.

    rows: of each node, the row of its parent among the inner nodes of the level above. ranks: of each node among its
    siblings, from 0. inner: places in this level of the nodes that have children. above: of each inner node, its
    parent's number among all inner nodes (``ROOT`` for none), which are numbered level by level.
    """

    start: int
    rows: tuple[int, ...]
    ranks: tuple[int, ...]
    inner: tuple[int, ...]
    above: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """parents: (N,) of the nodes, level by level. levels: of its depths. inner: node -> number among inner nodes."""

    parents: tuple[int, ...]
    levels: tuple[Level, ...]
    inner: dict[int, int]
    ranks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def of(cls, parents: Sequence[int]) -> TreeShape:
        """The shape with these parents, which stand level by level."""
        number: dict[int, int] = {}  # of each inner node
        for parent in parents:
            if parent != ROOT and parent not in number:
                number[parent] = len(number)
        ranks = [0] * len(parents)
        for node in range(1, len(parents)):
            ranks[node] = ranks[node - 1] + 1 if parents[node] == parents[node - 1] else 0
        depths = depths_of(parents)
        levels: list[Level] = []
        above = [ROOT]
        for depth in range(1, max(depths, default=0) + 1):
            nodes = [node for node, at in enumerate(depths) if at == depth]
            inner = [node for node in nodes if node in number]
            levels.append(
                Level(
                    nodes[0],
                    tuple(above.index(parents[node]) for node in nodes),
                    tuple(ranks[node] for node in nodes),
                    tuple(node - nodes[0] for node in inner),
                    tuple(number.get(parents[node], ROOT) for node in inner),
                )
            )
            above = inner
        return cls(tuple(parents), tuple(levels), number, tuple(ranks))


def expanded(widths: Sequence[int]) -> list[int]:
    """Parents of the tree in which every node of depth d has ``widths[d]`` children (the root has depth 0).

    ``expanded([2, 1])`` -> ``[-1, -1, 0, 1]``.
    """
    parents: list[int] = []
    level = [ROOT]
    for width in widths:
        start = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(start, len(parents)))
    return parents


def best_shape(nodes: int, depth: int, acceptance: Sequence[float]) -> tuple[list[int], float]:
    """Parents of the tree with the most expected tokens a step, and their number, the target's own token included.

    nodes, depth: at most. acceptance: at a node that was reached, the chance that its first, second, ... child is the
    one that is accepted (Sequoia's positional acceptance). Dynamic programming over (depth, children, nodes).
    """
    size = nodes + 1  # of a subtree, its own root included
    whole = np.full((depth + 1, size + 1), -np.inf)  # best subtree of exactly that many nodes, at most that deep
    whole[:, 1] = 1.0
    wide = np.zeros((depth + 1, size + 1), dtype=int)  # its children
    split = np.zeros((depth + 1, len(acceptance) + 1, size + 1), dtype=int)  # nodes before the last child's own
    for level in range(1, depth + 1):
        known = np.full(size + 1, -np.inf)
        known[1] = 1.0  # no child
        for child, chance in enumerate(acceptance, 1):
            below = whole[level - 1]
            subtree = np.multiply(chance, below, out=np.full(size + 1, -np.inf), where=np.isfinite(below))
            known, split[level, child] = _with_child(known, subtree)
            better = known > whole[level]
            whole[level, better], wide[level, better] = known[better], child
    best = int(np.argmax(whole[depth]))
    return _unfold(depth, best, wide, split), float(whole[depth, best])


def _with_child(known: np.ndarray, subtree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """max over y of known[y] + subtree[m - y], for every m; and the y of each."""
    size = len(known)
    index = np.arange(size)
    gap = index[None, :] - index[:, None]  # [y, m]
    total = known[:, None] + np.where(gap > 0, subtree[np.clip(gap, 0, None)], -np.inf)
    return total.max(0), total.argmax(0)


def _unfold(depth: int, size: int, wide: np.ndarray, split: np.ndarray) -> list[int]:
    """The tree behind the tables, level by level."""
    parents: list[int] = []
    waiting = deque([(ROOT, depth, size)])
    while waiting:
        node, level, left = waiting.popleft()
        sizes: list[int] = []
        for child in range(int(wide[level, left]), 0, -1):
            before = int(split[level, child, left])
            sizes.append(left - before)
            left = before
        for part in reversed(sizes):
            waiting.append((len(parents), level - 1, part))
            parents.append(node)
    return parents
