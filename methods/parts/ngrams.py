"""An index of where the n-grams of one growing sequence occurred; it takes O(1) a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Gram = tuple[int, ...]


class NgramIndex:
    """End positions of the n-grams (min_ngram <= n <= max_ngram) of a sequence, without those that
    end it.

    keep_first: remember each n-gram's earliest occurrence, else its latest.
    """

    def __init__(self, max_ngram: int, keep_first: bool, min_ngram: int = 1) -> None:
        self._max_ngram, self._min_ngram = max_ngram, min_ngram
        self._keep_first = keep_first
        self._ends: dict[Gram, int] = {}
        self._seen = 1  # the next end to enter

    def extend(self, sequence: Sequence[int], length: int | None = None) -> None:
        """Take in what ``sequence`` has grown by, up to ``length``; it must continue the one seen
        before.
        """
        length = len(sequence) if length is None else length
        if self._keep_first:
            for gram, end in self._grams(sequence, self._seen, length):
                self._ends.setdefault(gram, end)
        else:
            self._ends.update(self._grams(sequence, self._seen, length))
        self._seen = max(self._seen, length)

    def _grams(self, sequence: Sequence[int], start: int, stop: int) -> Iterator[tuple[Gram, int]]:
        """The n-grams that end at ``start`` to ``stop`` - 1, and where."""
        for end in range(start, stop):
            for begin in range(max(0, end - self._max_ngram), end - self._min_ngram + 1):
                yield tuple(sequence[begin:end]), end

    def find(self, ngram: Sequence[int]) -> int | None:
        """Position after the remembered occurrence of ``ngram``, or None.

        Example: after ``extend([5, 1, 9, 5, 1])``, ``find([5, 1])`` is 2, the place of the 9.
        """
        return self._ends.get(tuple(ngram))
