"""A suffix array over token ids: positions of a text, sorted by the tokens that follow (Manber and
Myers 1990).

It is built by libdivsufsort through pydivsufsort, and queried by compiled functions: the longest
suffix of a context that occurs, and what most often follows it. Suffixes that share their first
tokens are adjacent in the array, sorted by what follows. So a continuation is a run of neighbours,
and nothing here needs a hash table. Both arrays are read-only: an array is queried while another
one is built.

Names used throughout: tokens (n,) non-negative ids, or ``END`` where a text ends; order (n,) the
suffixes' places, sorted; window (hits, depth) what follows each hit, ``END`` from where nothing
does, hits in sorted order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from pydivsufsort import divsufsort

from methods.parts.array_draft import COUNT, PARENT, TOKEN, CountedTree
from specbench.models.compiled_code import njit

END = -1  # what follows the last token, and what separates texts; it sorts before every token


@njit(widen=True)
def token_at(tokens, place):
    """The token at ``place``, ``END`` outside of the array: no file can make a query read
    outside.
    """
    return np.int64(tokens[place]) if 0 <= place < len(tokens) else np.int64(END)


@njit(widen=True)
def compare(tokens, place, pattern):
    """-1, 0, 1: the suffix at ``place`` is below, begins with, or is above ``pattern``."""
    for offset in range(len(pattern)):
        token = token_at(tokens, place + offset)
        if token != pattern[offset]:
            return -1 if token < pattern[offset] else 1
    return 0


@njit(widen=True)
def bound(tokens, order, pattern, limit, low):
    """The first row from ``low`` on whose comparison with ``pattern`` is ``limit`` or more."""
    high = len(order)
    while low < high:
        middle = (low + high) >> 1
        if compare(tokens, order[middle], pattern) < limit:
            low = middle + 1
        else:
            high = middle
    return low


@njit(widen=True)
def longest(tokens, order, tail, shortest):
    """(length, first row, end row) of the longest suffix of ``tail`` that occurs; 0 if none of
    ``shortest``.

    A suffix occurs only if all shorter ones do, so the length is found by bisection.
    """
    best, start = 0, 0
    low, high = shortest, len(tail)
    while low <= high:
        # the shortest first: without it there is nothing to find
        length = (low + high) >> 1 if best else low
        pattern = tail[len(tail) - length :]
        row = bound(tokens, order, pattern, 0, 0)
        if row < len(order) and compare(tokens, order[row], pattern) == 0:
            best, start, low = length, row, length + 1
        else:
            high = length - 1
    if best == 0:
        return 0, 0, 0
    return best, start, bound(tokens, order, tail[len(tail) - best :], 1, start)


@njit(widen=True)
def take(order, start, end, skip, most, first, draw):
    """(hits,) where what follows begins, of at most ``most`` rows from ``start`` to ``end``: the
    first, or a share.

    A share takes every (count / most)-th row, from a phase that ``draw``, a random number below
    2**31, decides: every row is as likely as any other, and each continuation gets its part of the
    share to within one hit.
    """
    count = end - start
    taken = min(count, most)
    span = taken if first else count
    phase = (draw * span) >> 31
    places = np.empty(taken, np.int64)
    for hit in range(taken):
        row = hit if span == taken else (hit * span + phase) // taken
        places[hit] = np.int64(order[start + row]) + skip
    return places


@njit(widen=True)
def look(tokens, borders, places, depth):
    """The window: ``depth`` tokens from each place on, none after the end of the text that was
    matched.

    borders: where texts begin, and the end of the last; empty lets continuations run from one text
    into the next.
    """
    window = np.empty((len(places), depth), np.int32)
    for hit in range(len(places)):
        place = places[hit]
        stop = len(tokens)
        if len(borders):
            # of the text of the last matched token
            stop = borders[np.searchsorted(borders, place - 1, "right")]
        ended = False
        for offset in range(depth):
            token = END if ended or place + offset >= stop else token_at(tokens, place + offset)
            ended = token == END
            window[hit, offset] = token
    return window


@njit(widen=True)
def push_children(window, low, high, depth, parent, heap):
    """Push the distinct tokens at ``depth`` of the hits from ``low`` to ``high`` with how many hits
    have each.
    """
    while low < high:
        token = window[low, depth]
        if token == END:
            low += 1
            continue
        end, count = low + 1, 1
        while end < high and (window[end, depth] == token or window[end, depth] == END):
            count += window[end, depth] == token
            end += 1
        heapq.heappush(heap, (-count, depth + 1, low, end, parent))
        low = end


@njit(widen=True)
def grow_tree(tokens, order, borders, tail, shortest, most, first, draw, depth, room):
    """The ``room`` most frequent prefixes of the continuations: ties by depth, then by sorted
    order.

    most, first, draw: see ``take``; borders: see ``look``.
    Returns (nodes (3, N), hits taken, hits found, length matched); see ``CountedTree``.
    """
    nodes = np.empty((3, room), np.int64)
    length, start, end = longest(tokens, order, tail, shortest)
    places = take(order, start, end, length, most, first, draw)
    window = look(tokens, borders, places, depth)
    heap = [(0, 0, 0, 0, 0)]
    heap.pop()
    push_children(window, 0, len(window), 0, -1, heap)
    size = 0
    # a child is never more frequent than its parent: this is the order of all prefixes
    while heap and size < room:
        negative, level, low, high, parent = heapq.heappop(heap)
        nodes[TOKEN, size], nodes[PARENT, size], nodes[COUNT, size] = (
            window[low, level - 1],
            parent,
            -negative,
        )
        if level < depth:
            push_children(window, low, high, level, size, heap)
        size += 1
    return nodes[:, :size].copy(), len(places), end - start, length


@njit(widen=True)
def _within_choices(tokens, parents, choices):
    """Returns the nodes that stay if a node costs its path's number of distinct tokens, and all
    together ``choices``.

    The costliest goes first, of equals the last: a child costs no less than its parent, so the rest
    is a tree. (N,) bool.
    """
    count = len(tokens)
    costs, kept = np.empty(count, np.int64), np.ones(count, np.bool_)
    for node in range(count):
        costs[node] = 1
        above = parents[node]
        if above >= 0:
            costs[node] = costs[above] + 1
        while above >= 0:
            if tokens[above] == tokens[node]:
                costs[node] -= 1
                break
            above = parents[above]
    total = costs.sum()
    while total > choices:
        costliest = -1
        for node in range(count):
            if kept[node] and (costliest < 0 or costs[node] >= costs[costliest]):
                costliest = node
        kept[costliest] = False
        total -= costs[costliest]
    return kept


@njit(widen=True)
def shared(window, one, other, most):
    """Returns how many of the first ``most`` tokens two hits share; all of them if both end
    before.
    """
    for depth in range(most):
        if window[one, depth] != window[other, depth]:
            return depth
        if window[one, depth] == END:
            return most
    return most


@njit(widen=True)
def vote_whole(window, places):
    """A hit with the most frequent row of the window, of equals the most recent; -1 if nothing
    follows any hit.
    """
    winner, best, latest, low = -1, 0, -1, 0
    most = window.shape[1]
    while low < len(window):
        end, last = low + 1, places[low]
        while end < len(window) and shared(window, low, end, most) == most:
            last = max(last, places[end])
            end += 1
        if window[low, 0] != END and (end - low > best or (end - low == best and last > latest)):
            winner, best, latest = low, end - low, last
        low = end
    return winner


@njit(widen=True)
def vote_prefix(window, places):
    """A hit on the path that goes, token by token, where most hits go, of equals the most recent;
    -1 if none.
    """
    winner, start, stop = -1, 0, len(window)
    for depth in range(window.shape[1]):
        best, latest, low, first, last = 0, -1, start, start, start
        while low < stop:
            end, recent = low, -1
            while end < stop and window[end, depth] == window[low, depth]:
                recent = max(recent, places[end])
                end += 1
            if window[low, depth] != END and (
                end - low > best or (end - low == best and recent > latest)
            ):
                best, latest, first, last = end - low, recent, low, end
            low = end
        if best == 0:
            break
        winner, start, stop = first, first, last
    return winner


@njit(widen=True)
def vote_chain(tokens, order, tail, shortest, most, draw, length, whole):
    """The continuation that wins the vote, at most ``length`` tokens.

    Returns as ``grow_tree``; a count is of the hits that agree so far.
    """
    matched, start, end = longest(tokens, order, tail, shortest)
    places = take(order, start, end, matched, most, False, draw)
    window = look(tokens, np.empty(0, np.int64), places, length)
    winner = vote_whole(window, places) if whole else vote_prefix(window, places)
    size = 0
    while winner >= 0 and size < length and window[winner, size] != END:
        size += 1
    nodes = np.empty((3, size), np.int64)
    for place in range(size):
        nodes[TOKEN, place], nodes[PARENT, place], nodes[COUNT, place] = (
            window[winner, place],
            place - 1,
            0,
        )
    for hit in range(len(window) if size else 0):
        nodes[COUNT, : shared(window, winner, hit, size)] += 1
    return nodes, len(places), end - start, matched


CROSSING = np.zeros(0, np.int64)  # no borders: continuations run from one text into the next


class MatchCounts:
    """Figures of one request's queries."""

    def __init__(self) -> None:
        self._steps = self._matched = self._tokens = self._found = 0

    def add(self, tree: CountedTree) -> None:
        """A step's query gave ``tree``."""
        self._steps += 1
        if tree.matched:
            self._matched += 1
            self._tokens += tree.matched
            self._found += tree.found

    def stats(self) -> dict[str, float]:
        """matched_steps: share of steps with a match; query_tokens, matches: means of these
        steps.
        """
        if not self._matched:
            return {"matched_steps": 0.0}
        return {
            "matched_steps": self._matched / self._steps,
            "query_tokens": self._tokens / self._matched,
            "matches": self._found / self._matched,
        }


class SuffixArray:
    """A text and its suffixes in sorted order.

    tokens: (n,) integers, ``END`` between texts; order: (n,) int32 or int64, the places in sorted
    order.
    """

    def __init__(self, tokens: np.ndarray, order: np.ndarray) -> None:
        self.tokens, self.order = tokens, order
        tokens.flags.writeable = order.flags.writeable = False

    @classmethod
    def build(cls, tokens: np.ndarray) -> SuffixArray:
        """Sort a copy of ``tokens``."""
        own = np.array(tokens)
        order = divsufsort(_dense(own)) if len(own) else np.zeros(0, np.int32)
        return cls(own, order.astype(np.int32 if len(own) < 2**31 else np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.tokens)

    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.tokens.nbytes + self.order.nbytes

    def tree(
        self,
        tail: Sequence[int],
        shortest: int,
        depth: int,
        room: int,
        most: int,
        draw: int | None = 0,
        borders: np.ndarray = CROSSING,
    ) -> CountedTree:
        """The ``room`` most frequent beginnings of what followed the longest suffix of ``tail``
        that occurs.

        Order: count, then depth, then sorted order. depth: of the tree [tokens]. most: hits looked
        at; draw: which, a random number below 2**31, or None for the first ones in sorted order.
        borders: see ``look``.
        """
        given = (np.array(tail, np.int64), shortest, most, draw is None, draw or 0, depth, room)
        return CountedTree(*grow_tree(self.tokens, self.order, borders, *given))

    def vote(
        self,
        tail: Sequence[int],
        shortest: int,
        length: int,
        most: int,
        draw: int = 0,
        whole: bool = True,
    ) -> CountedTree:
        """The one continuation that is most frequent, as a whole or token by token; of equals the
        most recent.
        """
        given = (np.array(tail, np.int64), shortest, most, draw, length, whole)
        return CountedTree(*vote_chain(self.tokens, self.order, *given))


def _dense(tokens: np.ndarray) -> np.ndarray:
    """The same order in the narrowest unsigned integers, as the library sorts bytes: two a token,
    rarely four.
    """
    least = int(tokens.min())
    present = np.zeros(int(tokens.max()) - least + 1, np.bool_)
    shifted = tokens.astype(np.int64) - least
    present[shifted] = True
    ranks = np.cumsum(present) - 1
    narrow = np.min_scalar_type(int(ranks[-1]))
    return ranks.astype(narrow)[shifted]


def cut_paths(tree: CountedTree, choices: int) -> np.ndarray:
    """Nodes of a tree that stay within ``choices`` under the rule of REST's code
    (``_within_choices``).
    """
    return np.flatnonzero(_within_choices(tree.nodes[TOKEN], tree.nodes[PARENT], choices))
