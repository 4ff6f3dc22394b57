"""N-grams in one flat array: leaders below the root, and below each leader the followers that were
seen after it.

A row of the array is an n-gram, found by the hash of its owner and its tokens, and a place in the
list of its owner's n-grams. The list is in order of recency (Cacheback's tables, lookahead
decoding's pool) or of frequency (N-Grammys), so that a draft takes followers from its front. No
operation takes longer the more rows there are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from specbench.models.compiled_code import njit

NONE = -1
# Columns of a row, before its tokens. BUCKET: the first row of the hash value that equals this
# row's number. CHAIN: the next row of the same hash value, or the next free row. HEAD, TAIL, SIZE:
# of the list of the n-grams that it owns. NEXT, PREVIOUS: in the list of its owner.
BUCKET, CHAIN, OWNER, NEXT, PREVIOUS, HEAD, TAIL, SIZE, COUNT, TOKENS = range(10)
ROOT = 0  # the row that owns the leaders
FREE, USED = CHAIN, COUNT  # of the root: the first free row, and the number of rows in use or free
UNLIMITED = sys.maxsize


# Numbers of rows are made int64 where they are read: each function is then compiled for one type.


@njit(widen=True)
def _bucket(table, owner, text, start, length):
    code = owner
    for place in range(start, start + length):
        code = ((code + text[place] + 1) * 0x9E3779B1) & 0x7FFFFFFFFFFF
        code ^= code >> 16
    return code & (len(table) - 1)


@njit(widen=True)
def find(table, owner, text, start, length):
    """The row of an n-gram of ``owner``, or NONE. start, length: its place in ``text`` (T,)
    int32.
    """
    row = np.int64(table[_bucket(table, owner, text, start, length), BUCKET])
    while row != NONE:
        known = length if table[row, OWNER] == owner else NONE
        for place in range(known):
            if table[row, TOKENS + place] != text[start + place]:
                known = NONE
                break
        if known == length:
            break
        row = np.int64(table[row, CHAIN])
    return row


@njit(widen=True)
def new_row(table, owner, text, start, length):
    """Enter an n-gram that ``owner`` does not have; returns its row, which is in no list yet."""
    row = np.int64(table[ROOT, FREE])
    if row == NONE:
        row = np.int64(table[ROOT, USED])
        table[ROOT, USED] += 1
    else:
        table[ROOT, FREE] = table[row, CHAIN]
    table[row, OWNER], table[row, SIZE], table[row, COUNT] = owner, 0, 0
    table[row, NEXT] = table[row, PREVIOUS] = table[row, HEAD] = table[row, TAIL] = NONE
    for place in range(length):
        table[row, TOKENS + place] = text[start + place]
    bucket = _bucket(table, owner, text, start, length)
    table[row, CHAIN] = table[bucket, BUCKET]
    table[bucket, BUCKET] = row
    return row


@njit(widen=True)
def _join(table, owner, front, back):
    """Make ``back`` follow ``front`` in the owner's list; NONE is beyond its ends."""
    if front == NONE:
        table[owner, HEAD] = back
    else:
        table[front, NEXT] = back
    if back == NONE:
        table[owner, TAIL] = front
    else:
        table[back, PREVIOUS] = front


@njit(widen=True)
def move(table, row, back, out, into):
    """Take a row ``out`` of the list of its owner, and put it ``into`` the list, before ``back``;
    NONE: at the end.
    """
    owner = np.int64(table[row, OWNER])
    if out:
        _join(table, owner, np.int64(table[row, PREVIOUS]), np.int64(table[row, NEXT]))
        table[row, PREVIOUS] = table[row, NEXT] = NONE
        table[owner, SIZE] -= 1
    if into:
        _join(
            table,
            owner,
            np.int64(table[owner, TAIL] if back == NONE else table[back, PREVIOUS]),
            row,
        )
        _join(table, owner, row, back)
        table[owner, SIZE] += 1


@njit(widen=True)
def _free(table, row, length):
    """Remove a row of that many tokens from its bucket, for other n-grams."""
    bucket, column = _bucket(table, np.int64(table[row, OWNER]), table[row], TOKENS, length), BUCKET
    while table[bucket, column] != row:
        bucket, column = np.int64(table[bucket, column]), CHAIN
    table[bucket, column] = table[row, CHAIN]
    table[row, CHAIN] = table[ROOT, FREE]
    table[ROOT, FREE] = row


@njit(widen=True)
def touch(table, owner, text, start, length, most, follow):
    """Make an n-gram the most recent of ``owner``, which keeps at most ``most``; returns its row.

    follow: the length of the n-grams below it, which go with the one that is dropped.
    """
    row = find(table, owner, text, start, length)
    known = row != NONE
    if not known:
        if table[owner, SIZE] >= most:
            gone = np.int64(table[owner, TAIL])
            move(table, gone, NONE, True, False)
            below = np.int64(table[gone, HEAD])
            while below != NONE:
                _free(table, below, follow)
                below = np.int64(table[below, NEXT])
            _free(table, gone, length)
        row = new_row(table, owner, text, start, length)
    back = np.int64(table[owner, HEAD])
    if back != row:
        move(table, row, back, known, True)
    return row


@njit(widen=True)
def has_room(table, rows):
    """Returns whether there is capacity for this number of new rows."""
    return table[ROOT, USED] + rows <= len(table)


@njit(widen=True)
def put(table, text, start, lead, width, stride, leaders, followers):
    """Make the windows of ``text`` from ``start`` on most recent: ``lead`` tokens lead, the rest
    follow.

    width, stride: of the windows. leaders, followers: the most leaders, and followers of a leader.
    Returns the place of the first window that was not entered, because the text ends in it or the
    table is full.
    """
    while start + width <= len(text) and has_room(table, 2):
        row = touch(table, ROOT, text, start, lead, leaders, width - lead)
        touch(table, row, text, start + lead, width - lead, followers, 0)
        start += stride
    return start


@njit(widen=True)
def recent(table, leader):
    """Find a leader and mark it as used last; returns the row of its most recent follower, or
    NONE.
    """
    row = find(table, ROOT, leader, 0, len(leader))
    if row == NONE:
        return row
    back = np.int64(table[ROOT, HEAD])
    if back != row:
        move(table, row, back, True, True)
    return np.int64(table[row, HEAD])


@njit(widen=True)
def count_windows(table, text, start, lead, width, most, by_tokens):
    """Count the windows of ``text`` from ``start`` on; a leader lists its ``most`` most frequent
    followers.

    by_tokens: equals are ordered by their tokens, not by their last occurrence, the latest first.
    Returns as ``put``.
    """
    while start + width <= len(text) and has_room(table, 2):
        owner = find(table, ROOT, text, start, lead)
        if owner == NONE:
            owner = new_row(table, ROOT, text, start, lead)
        row = find(table, owner, text, start + lead, width - lead)
        if row == NONE:
            row = new_row(table, owner, text, start + lead, width - lead)
        table[row, COUNT] += 1
        if table[row, PREVIOUS] != NONE or table[owner, HEAD] == row:
            move(table, row, NONE, True, False)
        back, place = np.int64(table[owner, HEAD]), 0
        while back != NONE and _precedes(table, back, row, by_tokens):
            back, place = np.int64(table[back, NEXT]), place + 1
        if place < most:
            move(table, row, back, False, True)
        if table[owner, SIZE] > most:
            move(table, np.int64(table[owner, TAIL]), NONE, True, False)
        start += 1
    return start


@njit(widen=True)
def _precedes(table, front, row, by_tokens):
    """Returns whether ``front`` stays before ``row``, which was counted last."""
    if table[front, COUNT] != table[row, COUNT] or not by_tokens:
        return table[front, COUNT] > table[row, COUNT]
    for place in range(TOKENS, table.shape[1]):
        if table[front, place] != table[row, place]:
            return table[front, place] < table[row, place]
    return False


@njit(widen=True)
def list_followers(table, leader, rows):
    """Fill (n, length) rows with the first followers in a leader's list; returns their number."""
    row, filled = find(table, ROOT, leader, 0, len(leader)), 0
    row = np.int64(table[row, HEAD]) if row != NONE else NONE
    while row != NONE and filled < len(rows):
        for place in range(rows.shape[1]):
            rows[filled, place] = table[row, TOKENS + place]
        row, filled = np.int64(table[row, NEXT]), filled + 1
    return filled


@njit(widen=True)
def _rehash(table, lead, follow):
    """Enter all rows into empty buckets. lead, follow: tokens of a leader and of a follower."""
    free = np.int64(table[ROOT, FREE])
    while free != NONE:
        table[free, OWNER] = NONE
        free = np.int64(table[free, CHAIN])
    for row in range(1, np.int64(table[ROOT, USED])):
        owner = np.int64(table[row, OWNER])
        if owner != NONE:
            bucket = _bucket(table, owner, table[row], TOKENS, lead if owner == ROOT else follow)
            table[row, CHAIN] = table[bucket, BUCKET]
            table[bucket, BUCKET] = row


@njit(widen=True)
def _enter(table, grams):
    for row in range(len(grams)):
        new_row(table, ROOT, grams[row], 0, grams.shape[1])


def _allocate(rows: int, longest: int) -> np.ndarray:
    """An empty table with capacity for at least this number of rows. longest: [tokens] of an
    n-gram.
    """
    table = np.empty((1 << (rows - 1).bit_length(), TOKENS + longest), np.int32)
    table[:, BUCKET] = table[ROOT, CHAIN:] = NONE
    table[ROOT, [SIZE, USED]] = 0, 1
    return table


def index_grams(grams: np.ndarray) -> np.ndarray:
    """The rows of a table of (n, length) int32 n-grams, all different; the i-th is in row i + 1."""
    table = _allocate(len(grams) + 1, grams.shape[1])
    if len(grams):
        _enter(table, grams)
    return table


class GramTable:
    """Leaders of ``lead`` tokens, and for each its followers of ``follow`` tokens.

    leaders, followers: the most leaders, and followers of a leader; the least recent one is dropped
    first. rows: (power of two, TOKENS + the longer of both) int32.
    """

    def __init__(
        self, lead: int, follow: int, leaders: int = UNLIMITED, followers: int = UNLIMITED
    ) -> None:
        self.lead, self.width, self._capacities = lead, lead + follow, (leaders, followers)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.rows = _allocate(512, max(self.lead, self.width - self.lead))
        self.grow()  # also compiles it, so that no request does

    def put(self, text: np.ndarray, start: int = 0, stride: int = 1) -> int:
        """Make the windows of ``text`` from ``start`` on most recent, the first one first.

        text: (T,) int32. stride: of the windows. Returns the place of the first window that is not
        complete.
        """
        return self._enter(put, text, start, stride, *self._capacities)

    def count(self, text: np.ndarray, start: int, by_tokens: bool) -> int:
        """Count the windows of ``text`` (T,) int32 from ``start`` on; returns as ``put``.

        by_tokens: see ``count_windows``.
        """
        return self._enter(count_windows, text, start, self._capacities[1], by_tokens)

    def list_followers(self, leader: np.ndarray | Sequence[int], most: int) -> np.ndarray:
        """(n, follow) int32, the first of the listed followers of ``leader``."""
        rows = np.empty((most, self.width - self.lead), np.int32)
        return rows[: list_followers(self.rows, np.asarray(leader, np.int32), rows)]

    def nbytes(self) -> int:
        """Bytes of the rows that were used."""
        return (self.rows.item(USED) - 1) * self.rows[ROOT].nbytes

    def grow(self) -> None:
        """Double the capacity."""
        used, smaller = self.rows.item(USED), self.rows
        self.rows = _allocate(2 * len(smaller), smaller.shape[1] - TOKENS)
        self.rows[:used, CHAIN:] = smaller[:used, CHAIN:]
        _rehash(self.rows, self.lead, self.width - self.lead)

    def _enter(self, enter: Callable[..., int], text: np.ndarray, start: int, *given: int) -> int:
        """Call a compiled function that enters windows until the text ends."""
        while (
            start := enter(self.rows, text, start, self.lead, self.width, *given)
        ) + self.width <= len(text):
            self.grow()
        return start
