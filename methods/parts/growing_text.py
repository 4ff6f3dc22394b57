"""A growing text in one array, which compiled code reads in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class GrowingText:
    """tokens: (n,) int32, a view that the next call replaces."""

    def __init__(self) -> None:
        self.tokens = self._stored = np.empty(0, np.int32)

    def extend(self, tokens: np.ndarray | Sequence[int]) -> None:
        """Append tokens."""
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        if end > len(self._stored):
            self._stored = np.empty(2 * end, np.int32)
            self._stored[:start] = self.tokens
        self._stored[start:end] = tokens
        self.tokens = self._stored[:end]
