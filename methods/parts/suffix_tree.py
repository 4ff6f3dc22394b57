"""The suffix tree of SuffixDecoding (Oliaro et al. 2024): how often every string of up to ``depth`` tokens occurred.

Its nodes are kept as the states of a suffix automaton, which has at most two a token whatever the depth; each state's
edges are listed by count, then by recency, so that the likeliest continuation is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from methods.parts import automaton_kernels as kernels
from methods.parts.suffix_automaton import allocate, nbytes, with_room

NONE = kernels.NONE
TOKEN, PARENT, STATE, WAITING, LEVEL = range(5)  # columns of a drafted row; WAITING: the edge that is its next child
NODE, CHILD = range(2)  # columns of its probabilities: its own, and its next child's (0: none waits)
ROUNDING = 1e-6  # added before a length is cut to an integer, as in the authors' code


class Limits(NamedTuple):
    """nodes, factor, offset: a match of m tokens drafts min(nodes, factor * m + offset) tokens. least: probability of a
    node given its match. depth: of the tree. tree: also other children than the likeliest.
    """

    nodes: int
    factor: float
    offset: float
    least: float
    depth: int
    tree: bool


class Continuation(NamedTuple):
    """tokens, parents (N,); probs (N,): given the match, in the order drafted, none rising; score: their sum."""

    tokens: list[int]
    parents: list[int]
    probs: list[float]
    score: float

    def given_parents(self) -> list[float]:
        """(N,) the probability of each node given its parent: its count over the parent's."""
        probs = self.probs
        above = (1.0 if parent < 0 else probs[parent] for parent in self.parents)
        return [prob / over for prob, over in zip(probs, above, strict=True)]


class Text:
    """One of a tree's texts, with its place in the automaton."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.place = np.zeros(3, np.int64)


class SuffixTree:
    """depth: longest string counted. tokens: the room [tokens] to begin with."""

    def __init__(self, depth: int, tokens: int = 1024) -> None:
        self.depth = depth
        self.texts: dict[Text, None] = {}
        self._arrays = allocate(tokens)
        self._gone = 0  # tokens of removed texts whose states are still there
        self._matches = np.empty((depth, 3), np.int32)

    def extend(self, text: Text, tokens: Sequence[int]) -> None:
        """Append to a text, a new one if the tree does not hold it."""
        self.texts.setdefault(text)
        text.tokens.extend(tokens)
        self._arrays = with_room(self._arrays, len(tokens))
        kernels.grow(self._arrays, np.asarray(tokens, np.int32), text.place, self.depth, 1)

    def remove(self, text: Text) -> None:
        """Take a text's occurrences away. States go when those of removed texts are the most."""
        del self.texts[text]
        text.place[:] = 0
        kernels.grow(self._arrays, np.asarray(text.tokens, np.int32), text.place, self.depth, -1)
        text.place[:] = 0
        self._gone += len(text.tokens)
        held = sum(len(kept.tokens) for kept in self.texts) if self._gone > len(text.tokens) else self._gone
        if self._gone > held:
            self._rebuild(held)

    def _rebuild(self, tokens: int) -> None:
        self._arrays, self._gone = allocate(2 * tokens), 0
        for text in self.texts:
            text.place[:] = 0
            kernels.grow(self._arrays, np.asarray(text.tokens, np.int32), text.place, self.depth, 1)

    def likeliest(self, text: Text, tokens: Sequence[int], limits: Limits) -> Continuation:
        """What most often followed an end of ``tokens``: the match with the best score, at ties the longest.

        tokens: at most ``depth``, ending as ``text`` does. A match is shorter than they are.
        """
        rows = kernels.match(self._arrays, text.place, np.asarray(tokens, np.int32), self._matches)
        drafted = np.empty((limits.nodes + 1, 5), np.int32)
        chances = np.empty((limits.nodes + 1, 2))
        states, edges = self._arrays.states, self._arrays.edges
        nodes, score = choose(states, edges, self._matches[:rows], limits, drafted, chances)
        kept = drafted[1 : nodes + 1].T
        return Continuation(kept[TOKEN].tolist(), kept[PARENT].tolist(), chances[1 : nodes + 1, NODE].tolist(), score)

    def nbytes(self) -> int:
        """Bytes of the automaton and of the texts."""
        return nbytes(self._arrays) + 8 * sum(len(text.tokens) for text in self.texts)


@njit(cache=True)
def choose(states, edges, matches, limits, drafted, chances):
    """(nodes, score) of the best match's draft, written to ``drafted`` from row 1 on. matches: the longest first."""
    best, best_state, best_room, best_levels = 0.0, 0, 0, 0
    for row in range(len(matches)):
        state, shortest, length = matches[row]
        while length >= shortest:
            room = int(max(0.0, min(float(limits.nodes), limits.factor * length + limits.offset + ROUNDING)))
            levels = limits.depth - length
            _, score = _draft(states, edges, state, room, levels, limits, drafted, chances)
            if score > best:
                best, best_state, best_room, best_levels = score, state, room, levels
            if levels >= room:  # the depth cut nothing, and shorter matches of the same state may draft no more
                break
            length -= 1
    return _draft(states, edges, best_state, best_room, best_levels, limits, drafted, chances)


@njit(cache=True)
def _draft(states, edges, state, room, levels, limits, drafted, chances):
    """(nodes, score) of the likeliest continuation of ``state``: best first; at ties the earlier parent's child."""
    drafted[0, STATE], drafted[0, LEVEL], chances[0, NODE] = state, 0, 1.0
    _wait(states, edges, 0, states[state].head, levels, limits.least, drafted, chances)
    rows, score = 1, 0.0
    while rows <= room:
        above = 0 if limits.tree else rows - 1
        for row in range(1, rows if limits.tree else 0):
            if chances[row, CHILD] > chances[above, CHILD]:
                above = row
        prob = chances[above, CHILD]
        if prob == 0.0:
            break
        edge = drafted[above, WAITING]
        drafted[rows, TOKEN], drafted[rows, PARENT] = edges[edge].token, above - 1
        drafted[rows, STATE], drafted[rows, LEVEL] = edges[edge].target, drafted[above, LEVEL] + 1
        chances[rows, NODE] = prob
        _wait(states, edges, above, edges[edge].next, levels, limits.least, drafted, chances)
        _wait(states, edges, rows, states[edges[edge].target].head, levels, limits.least, drafted, chances)
        rows += 1
        score += prob
    return rows - 1, score


@njit(cache=True)
def _wait(states, edges, row, edge, levels, least, drafted, chances):
    """Let an edge wait as the next child of a row, if it is likely and shallow enough."""
    chances[row, CHILD] = 0.0
    if edge == NONE or drafted[row, LEVEL] >= levels:
        return
    prob = chances[row, NODE] * states[edges[edge].target].count / states[drafted[row, STATE]].count
    if prob >= least:
        drafted[row, WAITING], chances[row, CHILD] = edge, prob
