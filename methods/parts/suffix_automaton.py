"""A suffix automaton that grows with its text (Blumer et al. 1985; SAM-Decoding, Hu et al. 2024).

It matches as it grows: for each token it has the longest suffix of the text that also ended
earlier, at amortised constant cost. A state stands for the strings that end at the same places;
``length`` is the longest one's, ``link`` leads to the state of that string's longest suffix that
also ends at other places. State 0 is the empty string. There are at most 2 states and 3 edges a
token; edges are found by hash and listed per state. The core is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.models.compiled_code import njit

STATE = np.dtype(
    [(name, "i4") for name in ("link", "length", "head", "tail", "first", "last", "count")]
)
EDGE = np.dtype(
    [
        (name, "i4")
        for name in ("owner", "token", "target", "next", "previous", "group", "front", "mixed")
    ]
)
STATES, EDGES, LAST, MATCH, MATCHED, CLOCK, GROUPS, FREE, QUEUED = range(9)  # of meta
NONE = -1


class Arrays(NamedTuple):
    """The arrays of an automaton. Calls from Python pass them one by one, which numba takes four
    times as fast.

    states (n,) STATE, edges (m,) EDGE, slots (power of two,) int32 edge numbers by hash or NONE,
    meta (9,) int64. first, last: the clock, tokens appended so far, at a state's first occurrence
    and at its last counted one. head, tail: of its list of edges, sorted by their targets' counts;
    equals form a group, by ``last``, the latest first. front, mixed: of the group of that number
    its first edge, and 1 where a count that fell broke its order. Of meta, MATCH and MATCHED are a
    state and a length; with QUEUED groups have the order of ArcticInference's siblings.
    """

    states: np.ndarray
    edges: np.ndarray
    slots: np.ndarray
    meta: np.ndarray


@njit(widen=True)
def _slot(a, state, token):
    """The slot of this edge, or the free one where it belongs."""
    mask = len(a.slots) - 1
    slot = (state * 0x9E3779B1 + token * 0x85EBCA77) & 0x7FFFFFFFFFFF
    slot = (slot ^ (slot >> 15)) & mask
    while True:
        edge = a.slots[slot]
        if edge == NONE or (a.edges[edge].owner == state and a.edges[edge].token == token):
            return slot
        slot = (slot + 1) & mask


@njit(widen=True)
def find(a, state, token):
    """The edge of ``state`` by ``token``, or NONE."""
    return a.slots[_slot(a, state, token)]


@njit(widen=True)
def rehash(a):
    """Enter every edge into empty slots."""
    for edge in range(a.meta[EDGES]):
        a.slots[_slot(a, a.edges[edge].owner, a.edges[edge].token)] = edge


@njit(widen=True)
def _add_edge(a, state, token, target):
    """A new edge, first in its owner's list and in no group yet."""
    edge, a.meta[EDGES] = a.meta[EDGES], a.meta[EDGES] + 1
    a.edges[edge].owner, a.edges[edge].token, a.edges[edge].target, a.edges[edge].group = (
        state,
        token,
        target,
        NONE,
    )
    _join(a, state, edge, a.states[state].head)
    _join(a, state, NONE, edge)
    a.slots[_slot(a, state, token)] = edge
    return edge


@njit(widen=True)
def _new_group(a):
    group = a.meta[FREE]
    if group == NONE:
        a.meta[GROUPS] += 1
        return a.meta[GROUPS] - 1
    a.meta[FREE] = a.edges[group].front
    return group


@njit(widen=True)
def _join(a, owner, front, back):
    """Make ``back`` follow ``front`` in the owner's list; NONE is what lies beyond its ends."""
    if front == NONE:
        a.states[owner].head = back
    else:
        a.edges[front].next = back
    if back == NONE:
        a.states[owner].tail = front
    else:
        a.edges[back].previous = front


@njit(widen=True)
def _add_state(a, length, first):
    state, a.meta[STATES] = a.meta[STATES], a.meta[STATES] + 1
    a.states[state].link, a.states[state].length, a.states[state].count = 0, length, 0
    a.states[state].first = a.states[state].last = first
    a.states[state].head = a.states[state].tail = NONE
    return state


@njit(widen=True)
def _clone(a, state, length):
    """A copy of ``state`` for its strings of up to ``length`` tokens; the copy becomes the state's
    link.
    """
    copy, a.meta[STATES] = a.meta[STATES], a.meta[STATES] + 1
    a.states[copy] = a.states[state]
    a.states[copy].length, a.states[copy].head, a.states[copy].tail = length, NONE, NONE
    edge, below, copied = a.states[state].tail, NONE, NONE
    while edge != NONE:  # from the last to the first, since each is put in front
        new = _add_edge(a, copy, a.edges[edge].token, a.edges[edge].target)
        group = a.edges[edge].group
        if group != NONE:
            copied = copied if group == below else _new_group(a)
            a.edges[new].group, a.edges[copied].front, a.edges[copied].mixed = (
                copied,
                new,
                a.edges[group].mixed,
            )
        below, edge = group, a.edges[edge].previous
    a.states[state].link = copy
    return copy


@njit(widen=True)
def _split(a, state, token, target):
    """The state of exactly the longest string of ``state`` followed by ``token``, cloned off
    ``target`` if need be.
    """
    length = a.states[state].length + 1
    if a.states[target].length == length:
        return target
    copy = _clone(a, target, length)
    edge = find(a, state, token)
    while edge != NONE and a.edges[edge].target == target:
        a.edges[edge].target = copy
        state = a.states[state].link
        edge = find(a, state, token) if state != NONE else NONE
    return copy


@njit(widen=True)
def append(a, last, token, end):
    """Grow the text whose state is ``last`` by ``token``, its token number ``end``; returns the
    text's new state.

    Several texts may grow in turn, each from its own ``last``; a new one starts from 0.
    """
    edge = find(a, last, token)
    if edge != NONE:  # another text has been here
        return _split(a, last, token, a.edges[edge].target)
    new = _add_state(a, a.states[last].length + 1, end)
    state = last
    while edge == NONE and state != NONE:
        _add_edge(a, state, token, new)
        state = a.states[state].link
        edge = find(a, state, token) if state != NONE else NONE
    if state != NONE:
        a.states[new].link = _split(a, state, token, a.edges[edge].target)
    return new


@njit(widen=True)
def advance(a, state, length, token):
    """(state, length) of the longest suffix of the matched string and ``token`` that occurs."""
    edge = find(a, state, token)
    while edge == NONE and state != 0:
        state = a.states[state].link
        length = a.states[state].length
        edge = find(a, state, token)
    return (a.edges[edge].target, length + 1) if edge != NONE else (0, 0)


@njit(widen=True)
def extend(states, edges, slots, meta, tokens):
    """Match, then append each token: the match is of the longest suffix that also ended earlier."""
    a = Arrays(states, edges, slots, meta)
    for token in tokens:
        a.meta[MATCH], a.meta[MATCHED] = advance(a, a.meta[MATCH], a.meta[MATCHED], token)
        a.meta[CLOCK] += 1
        a.meta[LAST] = append(a, a.meta[LAST], token, a.meta[CLOCK])


@njit(widen=True)
def peek(states, edges, slots, meta, token, copies):
    """(length, first): the match if ``token`` came next, and the tokens up to the end of its first
    occurrence.

    While fewer than ``copies`` tokens follow that, a shorter suffix's first occurrence is taken; 0:
    never.
    """
    a = Arrays(states, edges, slots, meta)
    state, length = advance(a, a.meta[MATCH], a.meta[MATCHED], token)
    while (
        state != 0 and a.states[state].link != 0 and a.meta[CLOCK] - a.states[state].first < copies
    ):
        state = a.states[state].link
    return length, a.states[state].first


@njit(widen=True)
def _cut(a, state, length):
    """The state of the last ``length`` tokens of a string of ``state`` that has at least as
    many.
    """
    while state != 0 and a.states[a.states[state].link].length >= length:
        state = a.states[state].link
    return state


@njit(widen=True)
def _remove(a, edge):
    """Take an edge out of its owner's list and out of its group."""
    group, back = a.edges[edge].group, a.edges[edge].next
    if group != NONE and a.edges[group].front == edge:
        if back != NONE and a.edges[back].group == group:
            a.edges[group].front = back
        else:
            a.edges[group].front, a.meta[FREE] = a.meta[FREE], group
    _join(a, a.edges[edge].owner, a.edges[edge].previous, back)


@njit(widen=True)
def _settle(a, edge, by):
    """Move an edge whose count went up or down by one, or was 0 until now, to the front of the
    edges of that count.

    With QUEUED it moves behind them if its count went up and it was not the first of the edges that
    it leaves.
    """
    edges, group, owner = a.edges, a.edges[edge].group, a.edges[edge].owner
    count = a.states[edges[edge].target].count
    behind = (
        a.meta[QUEUED] and by > 0 and (group == NONE or count == 1 or edges[group].front != edge)
    )
    # to stand before, unless it joins a group
    back = NONE if group == NONE else edges[group].front if by > 0 else edge
    while by < 0 and back != NONE and edges[back].group == group:
        back = edges[back].next
    if back == edge:
        back = edges[edge].next
    _remove(a, edge)
    tail = a.states[owner].tail
    if group == NONE and tail != NONE and a.states[edges[tail].target].count == 0:
        back = edges[edges[tail].group].front
    near = back if by < 0 else tail if back == NONE else edges[back].previous
    if near != NONE and a.states[edges[near].target].count == count:
        group = edges[near].group
        front = edges[group].front
        late = a.states[edges[front].target].last > a.states[edges[edge].target].last
        mixed = not a.meta[QUEUED] and (edges[group].mixed or late)
        back = back if behind else front
    else:
        group, front, mixed, behind = _new_group(a), edge, False, False
    _join(a, owner, a.states[owner].tail if back == NONE else edges[back].previous, edge)
    _join(a, owner, edge, back)
    edges[edge].group, edges[group].front, edges[group].mixed = (
        group,
        front if behind else edge,
        mixed,
    )


@njit(widen=True)
def _count(a, state, length, token, depth, by):
    """Add ``by`` to every string of up to ``depth`` tokens that ends with this ``token`` of a text;
    returns its state.

    state: of the last ``length`` tokens before it.
    """
    state = _cut(a, state, length)
    new = _cut(a, a.edges[find(a, state, token)].target, min(length + 1, depth))
    ending = new
    while ending != 0:
        a.states[ending].count += by
        a.states[ending].last = a.meta[CLOCK] if by > 0 else a.states[ending].last
        ending = a.states[ending].link
    owner = _cut(a, state, min(length, depth - 1))
    while owner != 0:
        _settle(a, find(a, owner, token), by)
        owner = a.states[owner].link
    return new


@njit(widen=True)
def grow(states, edges, slots, meta, tokens, text, depth, by):
    """Append to one of several texts and count (by=1), or take counted tokens away again from its
    start on (by=-1).

    text (3,): its state, that of its last tokens, and how many these are, at most ``depth``.
    """
    a = Arrays(states, edges, slots, meta)
    for token in tokens:
        if by > 0:
            a.meta[CLOCK] += 1
            text[0] = append(a, text[0], token, a.meta[CLOCK])
        text[1] = _count(a, text[1], text[2], token, depth, by)
        text[2] = min(text[2] + 1, depth)


@njit(widen=True)
def match(a, text, tokens, matches):
    """Finds the suffixes of ``tokens``, the longest first, up to one token less than all; returns
    the rows filled.

    text: as in ``grow``, of a text that ends as ``tokens`` do. matches (rows, 3): a state, and its
    shortest and longest such end. Lengths beyond the text's own are tried upwards until one does
    not occur.
    """
    longest = len(tokens) - 1
    own = reach = min(text[2], longest)
    while reach < longest and _walk(a, tokens[len(tokens) - reach - 1 :]) != NONE:
        reach += 1
    for row in range(reach - own):
        matches[row, 0] = _walk(a, tokens[len(tokens) - reach + row :])
        matches[row, 1] = matches[row, 2] = reach - row
    state, rows = _cut(a, text[1], own), reach - own
    while state != 0:
        shortest = a.states[a.states[state].link].length + 1
        matches[rows, 0], matches[rows, 1], matches[rows, 2] = state, shortest, own
        own, state, rows = shortest - 1, a.states[state].link, rows + 1
    return rows


@njit(widen=True)
def _walk(a, tokens):
    """The state of a string, NONE if it does not occur (any more)."""
    state = 0
    for token in tokens:
        edge = find(a, state, token)
        if edge == NONE or a.states[a.edges[edge].target].count == 0:
            return NONE
        state = a.edges[edge].target
    return state


def allocate(tokens: int) -> Arrays:
    """An empty automaton with capacity for texts of ``tokens`` tokens in all."""
    slots = 1 << (6 * tokens + 4).bit_length()  # at most half of them are taken
    arrays = Arrays(
        np.empty(2 * tokens + 2, STATE),
        np.empty(3 * tokens + 2, EDGE),
        np.full(slots, NONE, np.int32),
        np.zeros(9, np.int64),
    )
    arrays.states[0] = (NONE, 0, NONE, NONE, 0, 0, 0)
    arrays.meta[STATES], arrays.meta[FREE] = 1, NONE
    return arrays


@njit(widen=True)
def has_room(states, meta, tokens):
    """Returns whether an automaton has capacity for this number of tokens more."""
    return 2 * (meta[CLOCK] + tokens) + 2 <= len(states)


def make_room(arrays: Arrays, tokens: int) -> Arrays:
    """The same automaton with capacity for ``tokens`` more; if it must be copied, for twice as
    many.
    """
    if has_room(arrays.states, arrays.meta, tokens):
        return arrays
    larger = allocate(2 * (int(arrays.meta[CLOCK]) + tokens))
    states, edges = int(arrays.meta[STATES]), int(arrays.meta[EDGES])
    larger.states[:states], larger.edges[:edges] = arrays.states[:states], arrays.edges[:edges]
    larger.meta[:] = arrays.meta
    rehash(larger)
    return larger


def nbytes(arrays: Arrays) -> int:
    """Bytes of the arrays, including unused capacity."""
    return sum(array.nbytes for array in arrays)


class SuffixAutomaton:
    """One growing text. tokens: the initial capacity [tokens]."""

    def __init__(self, tokens: int = 1024) -> None:
        self.arrays = allocate(tokens)

    def extend(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append tokens; each is matched before it is appended."""
        self.arrays = make_room(self.arrays, len(tokens))
        extend(*self.arrays, np.asarray(tokens, np.int32))

    def peek(self, token: int, copies: int = 0) -> tuple[int, int]:
        """(length, end): the longest suffix of the text and ``token`` that occurs, where it first
        ended; (0, 0): none.

        The token is not appended. end: tokens of the text up to there, so that ``text[end:]``
        followed. copies: shorter suffixes are taken instead while fewer tokens than that followed
        (the length stays the longest's). Example: after ``extend([1, 2, 3, 1])``, ``peek(2)`` is
        (2, 2).
        """
        found: tuple[int, int] = peek(*self.arrays, token, copies)
        return found

    def __len__(self) -> int:
        return int(self.arrays.meta[CLOCK])
