"""How often a drafter is right, learned while it drafts: the share of nodes accepted where their parent was.

A node belongs to a class by who drafted it, how much that drafter drafted, its depth, its rank among its siblings and
how sure its drafter was. Every
step tells the truth about each node whose parent is on the emitted path, whether it was fed to the target or not.
"""

from __future__ import annotations

import numpy as np

from methods.hybrid.merge_kernels import DEPTHS, LEVELS, RANKS, SIZES


class AcceptanceRates:
    """Rates of every class of ``members`` drafters; a class begins at its drafter's own score, or at ``prior``.

    strength: [observations] that the beginning is worth. seen, right: (classes,) nodes counted (``MergedTree.judge``).
    """

    def __init__(self, members: int, prior: float, strength: float) -> None:
        level = np.append((np.arange(LEVELS) + 0.5) / LEVELS, prior)
        self._beginning = strength * np.tile(level, members * SIZES * DEPTHS * RANKS)
        self._strength = strength
        self.seen = np.zeros(len(self._beginning))
        self.right = np.zeros(len(self._beginning))

    def clear(self) -> None:
        """Forget what was seen."""
        self.seen[:] = 0
        self.right[:] = 0

    @property
    def rates(self) -> np.ndarray:
        """(classes,) as they stand."""
        return (self._beginning + self.right) / (self._strength + self.seen)
