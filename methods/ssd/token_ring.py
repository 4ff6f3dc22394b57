"""A ring buffer of token ids: new ones overwrite the oldest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class TokenRing:
    """capacity: the most tokens held [tokens]; memory is taken as they come."""

    def __init__(self, capacity: int) -> None:
        self._held = np.empty(capacity, np.int32)
        self.clear()

    def __len__(self) -> int:
        return min(self._written, len(self._held))

    def write(self, tokens: Sequence[int]) -> None:
        """Append; of more than fit, the last ones."""
        capacity = len(self._held)
        new = np.array(tokens[-capacity:], np.int32)
        start = (self._written + len(tokens) - len(new)) % capacity
        before = min(len(new), capacity - start)
        self._held[start : start + before] = new[:before]
        self._held[: len(new) - before] = new[before:]
        self._written += len(tokens)

    def snapshot(self) -> np.ndarray:
        """(len,) int32 copy, oldest first: where the ring wraps around, nothing is joined that did not follow."""
        seam = self._written % len(self._held) if self._written > len(self._held) else 0
        return np.concatenate([self._held[seam : len(self)], self._held[:seam]])

    def clear(self) -> None:
        """Forget everything."""
        self._written = 0

    def nbytes(self) -> int:
        """Bytes of the tokens held."""
        return len(self) * self._held.itemsize
