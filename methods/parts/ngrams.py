"""Tables of n-grams: an index of where each occurred in one growing sequence, and a table that learns and evicts.

The index takes O(1) a token; the table is Cacheback's (Ma, Gim, Zhong 2025), also lookahead decoding's pool.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

Gram = tuple[int, ...]
SLOT_BYTES = 104  # one entry of a Python dict of tuples: hash, key, value and index, at the usual fill
LINK_BYTES = 56  # what an OrderedDict adds an entry: a node of its list, and a pointer to it


class NgramIndex:
    """End positions of the n-grams (min_ngram <= n <= max_ngram) of a sequence, without those that end it.

    keep_first: remember each n-gram's earliest occurrence, else its latest. tail: of the latter only those that at
    least ``tail`` tokens follow; if none has, the earliest.
    """

    def __init__(self, max_ngram: int, keep_first: bool, tail: int = 1, min_ngram: int = 1) -> None:
        self._max_ngram, self._min_ngram = max_ngram, min_ngram
        self._keep_first = keep_first
        self._tail = tail
        self._ends: dict[Gram, int] = {}
        self._seen = self._full = 1  # the next end to enter: as an n-gram's first, as its latest

    def extend(self, sequence: Sequence[int], length: int | None = None) -> None:
        """Take in what ``sequence`` has grown by, up to ``length``; it must continue the one seen before."""
        length = len(sequence) if length is None else length
        if self._keep_first or self._tail > 1:
            for gram, end in self._grams(sequence, self._seen, length):
                self._ends.setdefault(gram, end)
            self._seen = max(self._seen, length)
        if not self._keep_first:
            full = length - self._tail + 1
            self._ends.update(self._grams(sequence, self._full, full))
            self._full = max(self._full, full)

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

    def find_longest(self, gram: Gram) -> int | None:
        """As ``find``, for the longest suffix of ``gram`` that is remembered."""
        found = None
        for n in range(1, len(gram) + 1):
            end = self._ends.get(gram[-n:])
            if end is None:  # then no longer one is
                break
            found = end
        return found


class LruTable:
    """leader -> followers, both by recency, least recent first: a dict keeps the order in which keys came (back)."""

    def __init__(self, leader_capacity: int, follower_capacity: int) -> None:
        self._leader_capacity, self._follower_capacity = leader_capacity, follower_capacity
        self._table: OrderedDict[Gram, dict[Gram, None]] = OrderedDict()
        self._followers = 0

    def put(self, leader: Gram, follower: Gram) -> None:
        """Make ``leader`` and ``follower`` most recent; what exceeds a capacity goes, least recent first."""
        followers = self._table.get(leader)
        if followers is None:
            if len(self._table) >= self._leader_capacity:
                self._followers -= len(self._table.popitem(last=False)[1])
            followers = self._table[leader] = {}
        else:
            self._table.move_to_end(leader)
        if follower in followers:
            del followers[follower]
        elif len(followers) >= self._follower_capacity:
            del followers[next(iter(followers))]
        else:
            self._followers += 1
        followers[follower] = None

    def recent(self, leader: Gram) -> Iterable[Gram]:
        """Followers, most recent first, to be read before the next ``put``; the leader becomes most recent."""
        followers = self._table.get(leader)
        if followers is None:
            return ()
        self._table.move_to_end(leader)
        return reversed(followers)

    def clear(self) -> None:
        """Forget everything."""
        self._table.clear()
        self._followers = 0

    def nbytes(self) -> int:
        """Bytes of keys and slots (an estimate: the interpreter's exact count would walk the whole table)."""
        if not self._table:
            return 0
        leader = next(iter(self._table))
        follower = next(iter(self._table[leader]))
        each_leader = sys.getsizeof(leader) + SLOT_BYTES + LINK_BYTES + sys.getsizeof({})
        return len(self._table) * each_leader + self._followers * (sys.getsizeof(follower) + SLOT_BYTES)


class ContextWindows:
    """The windows of ``width`` tokens of a growing context, put into a table: ``lead`` tokens lead, the rest follow."""

    def __init__(self, table: LruTable, lead: int, width: int) -> None:
        self._table, self._lead, self._width = table, lead, width
        self._tail: list[int] = []  # the last width - 1 tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """The context grows: put the windows that end at a new token, oldest first."""
        lead, width = self._lead, self._width
        context = [*self._tail, *tokens]
        for end in range(width, len(context) + 1):
            window = tuple(context[end - width : end])
            self._table.put(window[:lead], window[lead:])
        self._tail = context[1 - width :]
