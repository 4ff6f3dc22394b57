"""An n-gram table that learns and evicts: leaders to followers, most recent first (Cacheback, Ma, Gim, Zhong 2025)."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence

Gram = tuple[int, ...]
SLOT_BYTES = 104  # one entry of a Python dict of tuples: hash, key, value and index, at the usual fill
LINK_BYTES = 56  # what an OrderedDict adds an entry: a node of its list, and a pointer to it


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

    def get(self, leader: Gram) -> list[Gram]:
        """Followers, most recent first; the leader becomes most recent, its followers' order stays."""
        return list(self.recent(leader))

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
        held = [*self._tail, *tokens]
        for end in range(width, len(held) + 1):
            window = tuple(held[end - width : end])
            self._table.put(window[:lead], window[lead:])
        self._tail = held[1 - width :]
