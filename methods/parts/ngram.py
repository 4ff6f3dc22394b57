"""An incremental n-gram index over one growing sequence: where did this n-gram occur before? O(1) a token."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """End positions of the n-grams (1 <= n <= max_ngram) of a sequence, without those that end it.

    keep_first: remember each n-gram's earliest occurrence, else its latest.
    """

    def __init__(self, max_ngram: int, keep_first: bool) -> None:
        self._max_ngram = max_ngram
        self._keep_first = keep_first
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 1  # prefixes of up to this length are done; the n-grams that end the sequence wait

    def extend(self, sequence: Sequence[int]) -> None:
        """Take in what ``sequence`` has grown by; it must continue the one seen before."""
        for end in range(self._indexed, len(sequence)):
            for n in range(1, min(self._max_ngram, end) + 1):
                ngram = tuple(sequence[end - n : end])
                if self._keep_first:
                    self._ends.setdefault(ngram, end)
                else:
                    self._ends[ngram] = end
        self._indexed = max(self._indexed, len(sequence))

    def find(self, ngram: Sequence[int]) -> int | None:
        """Position after the remembered occurrence of ``ngram``, or None.

        Example: after ``extend([5, 1, 9, 5, 1])``, ``find([5, 1])`` is 2, the place of the 9.
        """
        return self._ends.get(tuple(ngram))
