"""Sequoia's token tree (Chen et al. 2024): the shape with the most expected tokens, children
without replacement.

How likely the first, second, ... child of a node is the one accepted hardly depends on the node;
with these rates, measured beforehand, dynamic programming finds the best tree of a size. Siblings
differ, so no trial is wasted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from methods.parts.fixed_tree import FixedTreeMethod
from methods.parts.parameters import count
from methods.parts.tree_shape import TreeShape
from specbench.types import ROOT, InputError, require_count

MOST_WORK = 1 << 28  # steps of ``find_best_shape``, some ten seconds


@dataclass(eq=False)
class Sequoia(FixedTreeMethod):
    """Sequoia's tree; conf/method/sequoia.yaml describes the parameters."""

    acceptance: list[float]
    nodes: int = count(64)
    depth: int = count(8)

    def __post_init__(self) -> None:
        super().__post_init__()
        acceptance = self.acceptance
        if not acceptance or min(acceptance) < 0 or not 0 < sum(acceptance) <= 1.001:
            raise InputError(
                f"acceptance={acceptance}: expected chances of a node's first, second, ... child,"
                " at least 0 each, together more than 0 and at most 1"
            )
        work = self.nodes**2 * min(self.depth, self.nodes) * len(acceptance)
        require_count("nodes ** 2 * depth * acceptances", work, high=MOST_WORK)
        parents, _ = find_best_shape(self.nodes, min(self.depth, self.nodes), acceptance)
        self.chances = acceptance
        self.plant(TreeShape.of(parents), f"nodes={self.nodes}")


def find_best_shape(nodes: int, depth: int, acceptance: Sequence[float]) -> tuple[list[int], float]:
    """Parents of the tree with the most expected tokens a step, and their number, the target's own
    token included.

    nodes, depth: at most. acceptance: at a node that was reached, the chance that its first,
    second, ... child is the one that is accepted (Sequoia's positional acceptance). Dynamic
    programming over (depth, children, nodes).
    """
    size = nodes + 1  # of a subtree, its own root included
    # best subtree of exactly that many nodes, at most that deep
    whole = np.full((depth + 1, size + 1), -np.inf)
    whole[:, 1] = 1.0
    wide = np.zeros((depth + 1, size + 1), dtype=int)  # its children
    # nodes before the last child's own
    split = np.zeros((depth + 1, len(acceptance) + 1, size + 1), dtype=int)
    gap = np.arange(size + 1)[None, :] - np.arange(size + 1)[:, None]  # [y, m]
    for level in range(1, depth + 1):
        known = np.full(size + 1, -np.inf)
        known[1] = 1.0  # no child
        for child, chance in enumerate(acceptance, 1):
            below = whole[level - 1]
            subtree = np.multiply(
                chance, below, out=np.full(size + 1, -np.inf), where=np.isfinite(below)
            )
            # The most that y nodes without this child and m - y with it are worth, for every m; and
            # that y.
            total = known[:, None] + np.where(gap > 0, subtree[np.clip(gap, 0, None)], -np.inf)
            known, split[level, child] = total.max(0), total.argmax(0)
            better = known > whole[level]
            whole[level, better], wide[level, better] = known[better], child
    best = int(np.argmax(whole[depth]))
    return _unfold(depth, best, wide, split), float(whole[depth, best])


def _unfold(depth: int, size: int, wide: np.ndarray, split: np.ndarray) -> list[int]:
    """The parents of the tree that the tables describe, level by level."""
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
