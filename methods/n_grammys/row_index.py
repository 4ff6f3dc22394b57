"""An incremental index of context n-grams: which rows of w tokens followed this query before, and how often.

N-Grammys (Stewart et al. 2024), section 4.2 and appendix B.2. The one idea: a row's rank only ever rises, when it
occurs again, so each query's best rows are kept in order as the context grows, and nothing is counted twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

Row = tuple[int, ...]
Ties = Literal["recent", "lexicographic"]


class RowIndex:
    """For every query of q tokens the ``keep`` most frequent rows of w tokens that followed it; O(keep) a token.

    ties: rows that occurred as often are ordered by their latest occurrence, latest first, or by their token ids.
    """

    def __init__(self, query: int, width: int, keep: int, ties: Ties = "recent") -> None:
        self._query, self._width, self._keep = query, width, keep
        self._recent = ties == "recent"
        self._counts: dict[Row, int] = {}  # query and row together
        self._best: dict[Row, list[tuple[int, Row]]] = {}  # query -> (-count, row), best first
        self._read = 0

    def extend(self, sequence: Sequence[int]) -> None:
        """Take in what ``sequence`` has grown by; it must continue the one seen before."""
        span = self._query + self._width
        for end in range(max(self._read + 1, span), len(sequence) + 1):
            self._count(tuple(sequence[end - span : end]))
        self._read = max(self._read, len(sequence))

    def _count(self, gram: Row) -> None:
        count = self._counts.get(gram, 0) + 1
        self._counts[gram] = count
        row = gram[self._query :]
        best = self._best.setdefault(gram[: self._query], [])
        if count > 1 and (before := (1 - count, row)) in best:
            best.remove(before)
        place = bisect_left(best, (-count,) if self._recent else (-count, row))  # (-2,) < (-2, row): before its equals
        if place < self._keep:
            best.insert(place, (-count, row))
            del best[self._keep :]

    def find(self, sequence: Sequence[int]) -> list[Row]:
        """Rows that followed the last q tokens of ``sequence``, best first, at most ``keep``.

        Example, q=1, w=2: after ``extend([1, 2, 3, 1, 2, 4, 1])``, ``find`` of it is ``[(2, 4), (2, 3)]``.
        """
        return [row for _, row in self._best.get(tuple(sequence[-self._query :]), ())]
