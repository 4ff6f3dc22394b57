"""How often a drafter is right, learned while it drafts: the share of nodes accepted where their parent was.

A node belongs to a class by who drafted it, its depth, its rank among its siblings and how sure its drafter was. Every
step tells the truth about each node whose parent is on the emitted path, whether it was fed to the target or not.
"""

from __future__ import annotations

DEPTHS = 8  # deeper ones are one class
RANKS = 4
LEVELS = 8  # of a drafter's own score, 0 to 1


class AcceptanceRates:
    """Rates of every class of ``members`` drafters; a class begins at its drafter's own score, or at ``prior``.

    strength: [observations] that the beginning is worth.
    """

    def __init__(self, members: int, prior: float, strength: float) -> None:
        self._members, self._prior, self._strength = members, prior, strength
        self.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        count = self._members * DEPTHS * RANKS * (LEVELS + 1)
        self._seen = [0] * count
        self._right = [0] * count
        self.rates = [self._prior if level == LEVELS else (level + 0.5) / LEVELS for level in range(LEVELS + 1)] * (
            count // (LEVELS + 1)
        )

    @staticmethod
    def class_of(member: int, depth: int, rank: int, score: float | None) -> int:
        """Index into ``rates``. depth, rank: from 0. score: 0 to 1, None = the drafter has none."""
        level = LEVELS if score is None else min(int(score * LEVELS), LEVELS - 1)
        place = (member * DEPTHS + min(depth, DEPTHS - 1)) * RANKS + min(rank, RANKS - 1)
        return place * (LEVELS + 1) + level

    def learn(self, number: int, right: bool) -> None:
        """One node of class ``number``, its parent emitted, was right or not."""
        self._seen[number] += 1
        self._right[number] += right
        level = number % (LEVELS + 1)
        start = self._prior if level == LEVELS else (level + 0.5) / LEVELS
        weight = self._strength
        self.rates[number] = (start * weight + self._right[number]) / (weight + self._seen[number])
