"""A growing text in one array, which compiled code reads in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class GrowingText:
    """stored: int32, of which the first ``length`` are the text's tokens; the next ``extend`` may replace it."""

    def __init__(self) -> None:
        self.stored, self.length = np.empty(0, np.int32), 0

    @property
    def tokens(self) -> np.ndarray:
        """(length,) int32, a view."""
        return self.stored[: self.length]

    def extend(self, tokens: np.ndarray | Sequence[int]) -> None:
        """Append tokens."""
        start, end = self.length, self.length + len(tokens)
        if end > len(self.stored):
            longer = np.empty(2 * end, np.int32)
            longer[:start] = self.tokens
            self.stored = longer
        self.stored[start:end] = tokens
        self.length = end

    def follow(self, context: Sequence[int]) -> None:
        """Append what ``context`` has grown by."""
        if len(context) > self.length:
            self.extend(context[self.length :])
