"""SuffixDecoding (Oliaro et al. 2024): draft the most frequent continuation in this request and
earlier answers.

Two suffix trees count how often every string occurred: a local one of the request's prompt and
answer, a global one of all answers. Every end of the context that a tree holds proposes its
likeliest continuation, the longer the match the more of it; the one with the highest sum of
estimated probabilities is the draft (section 4). A tree's nodes are stored as the states of a
suffix automaton, which has at most two a token whatever the depth; each state's edges are listed by
count, then by ``ties``, so that the likeliest continuation is the first. Probabilities are
fractions of counts and compared as such, since many are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from methods.parts.array_draft import ArrayDrafter, GrowingText, rate
from methods.parts.parameters import KEPT, Parameters, count, number, probability
from methods.parts.suffix_automaton import (
    NONE,
    QUEUED,
    Arrays,
    allocate,
    grow,
    has_room,
    make_room,
    match,
    nbytes,
)
from specbench.method import Drafter, Method
from specbench.models.compiled_code import njit
from specbench.models.facade import Target
from specbench.types import MOST, InputError, Prefill

TOKEN, PARENT, COUNT, STATE, LEVEL, WAITING, CHILD = range(7)  # columns of a drafted row
# WAITING: the edge that is its next child; CHILD: that one's count, 0 if none waits
MIXED = TOKEN  # of row 0: a group of which an edge waited though it was out of order, or NONE
ROUNDING = 1e-6  # added before a length is cut to an integer, as in the authors' code


class Limits(NamedTuple):
    """The limits of a draft: a match of m tokens drafts min(nodes, factor * m + offset) tokens.

    least: probability of a node given its match. depth: of the tree. tree: also other children than
    the likeliest.
    """

    nodes: int
    factor: float
    offset: float
    least: float
    depth: int
    tree: bool


class Text(GrowingText):
    """One of a tree's texts, with its place in the automaton."""

    def __init__(self) -> None:
        super().__init__()
        self.place = np.zeros(3, np.int64)


Ties = Literal["recent", "reference"]
# nodes of the best draft, and its score: the sum of their counts, over those of the match
Best = tuple[int, int, int]
NOTHING: Best = (0, 0, 1)


class SuffixTree:
    """The number of occurrences of every string of some texts.

    depth: longest string counted. tokens: the initial capacity [tokens]. ties: the order of
    children with equal counts.
    """

    def __init__(self, depth: int, tokens: int = 1024, ties: Ties = "recent") -> None:
        self.depth, self._ties = depth, ties
        self.texts: dict[Text, None] = {}
        # text and first token of what grew while no other text did
        self._stretches: list[tuple[Text, int]] = []
        self._allocate(tokens)
        self._gone = 0  # tokens of removed texts whose states are still there

    def _allocate(self, tokens: int) -> None:
        self._arrays = allocate(tokens)
        self._arrays.meta[QUEUED] = self._ties == "reference"

    def extend(self, text: Text, tokens: Sequence[int] | np.ndarray) -> None:
        """Append to a text, a new one if it is not in the tree."""
        self.note(text, tokens)
        self.count(text.place, tokens)

    def note(self, text: Text, tokens: Sequence[int] | np.ndarray) -> None:
        """Append to a text; the tokens are still to be counted."""
        self.texts.setdefault(text)
        if not self._stretches or self._stretches[-1][0] is not text:
            self._stretches.append((text, text.length))
        text.extend(tokens)

    def count(self, place: np.ndarray, tokens: Sequence[int] | np.ndarray) -> None:
        """Count the next tokens of the text with this place."""
        self._arrays = make_room(self._arrays, len(tokens))
        self._grow(np.asarray(tokens, np.int32), place, 1)

    def _grow(self, tokens: np.ndarray, place: np.ndarray, by: int) -> None:
        grow(*self._arrays, tokens, place, self.depth, by)

    def remove(self, text: Text) -> None:
        """Take a text's occurrences away. States go when those of removed texts are the most."""
        del self.texts[text]
        text.place[:] = 0
        self._grow(text.tokens, text.place, -1)
        text.place[:] = 0
        self._gone += text.length
        kept_tokens = (
            sum(kept.length for kept in self.texts) if self._gone > text.length else self._gone
        )
        if self._gone > kept_tokens:
            self._rebuild(kept_tokens)

    def _rebuild(self, tokens: int) -> None:
        """Grow the remaining texts again, in the order in which they grew."""
        self._allocate(2 * tokens)
        self._gone = 0
        self._stretches = [each for each in self._stretches if each[0] in self.texts]
        ends, pieces = {text: text.length for text in self.texts}, []
        for text, start in reversed(self._stretches):
            pieces.append((text, text.tokens[start : ends[text]]))
            ends[text], text.place[:] = start, 0
        for text, piece in reversed(pieces):
            self._grow(piece, text.place, 1)

    def draft(
        self,
        place: np.ndarray,
        new: int,
        limits: Limits,
        drafter: ArrayDrafter,
        source: int,
        best: Best = NOTHING,
    ) -> Best:
        """Count the last ``new`` tokens of the drafter's text, and write the likeliest follower of
        one of its ends.

        place: of the text in this tree. best: of another tree's draft, which stays unless this one
        has a better score.
        """
        text = drafter.text
        given = (
            place,
            text.stored,
            text.length,
            new,
            *limits,
            drafter.nodes,
            drafter.score,
            source,
            *best,
        )
        found: Best = draft(*self._arrays, *given)
        if found[0] < 0:
            self._arrays = make_room(self._arrays, new)
            found = draft(*self._arrays, *given)
        return found

    def nbytes(self) -> int:
        """Bytes of the automaton and of the texts."""
        return nbytes(self._arrays) + 4 * sum(text.length for text in self.texts)


@njit(widen=True)
def draft(
    states, edges, slots, meta, place, stored, length, new, nodes, factor, offset, least, depth,
    tree, drafted, shares, source, size, best, best_of,
):  # fmt: skip
    """Append and count the last ``new`` tokens of a text, then draft; see ``grow``, ``choose`` and
    ``rate``.

    -1 nodes if the automaton must grow.
    """
    if not has_room(states, meta, new):
        return -1, best, best_of
    grow(states, edges, slots, meta, stored[length - new : length], place, depth, 1)
    tokens = stored[max(0, length - depth) : length]
    found, total, of = choose(
        states,
        edges,
        slots,
        meta,
        place,
        tokens,
        nodes,
        factor,
        offset,
        least,
        depth,
        tree,
        drafted,
        best,
        best_of,
    )
    if found == 0:
        return size, best, best_of
    rate(drafted, found, of, source, shares)
    return found, total, of


@njit(widen=True)
def choose(
    states, edges, slots, meta, text, tokens, nodes, factor, offset, least, depth, tree, drafted,
    best, best_of
):  # fmt: skip
    """Write the draft with the best score, of equals that of the longest match, if its score is
    above a given one.

    A score is a sum of counts over the occurrences of the match: at first ``best`` over
    ``best_of``. A draft is at most its ``room``, which does not grow as matches get shorter.

    text, tokens: see ``match``. nodes to tree: see ``Limits``. drafted: (3, nodes) tokens, parents,
    counts. Returns its nodes, 0 if no score is above, and the best score's two numbers.
    """
    matches = np.empty((depth, 3), np.int32)
    # row 0: the match
    kept, tried, size = np.empty((nodes + 1, 7), np.int32), np.empty((nodes + 1, 7), np.int32), 0
    for row in range(match(Arrays(states, edges, slots, meta), text, tokens, matches)):
        state, shortest, length = np.int64(matches[row, 0]), matches[row, 1], matches[row, 2]
        while length >= shortest:
            room = int(max(0.0, min(float(nodes), factor * length + offset + ROUNDING)))
            if room * best_of <= best:
                break
            of, levels = np.int64(states[state].count), depth - length
            fewest = _fewest(of, least)
            count, total = _draft(states, edges, state, room, levels, fewest, tree, tried)
            while tried[0, MIXED] != NONE:
                _sort(states, edges, tried[0, MIXED])
                count, total = _draft(states, edges, state, room, levels, fewest, tree, tried)
            if total * best_of > best * of:
                best, best_of, size = total, of, count
                kept, tried = tried, kept
            # the depth cut nothing, and shorter matches of the same state may draft no more
            if levels >= room:
                break
            length -= 1
    for node in range(size):
        for column in range(3):
            drafted[column, node] = kept[node + 1, column]
    return size, best, best_of


@njit(widen=True)
def _fewest(of, least):
    """The smallest count, 1 or more, that over ``of`` is ``least`` or more; rounded as 1 / 10 is, a
    tenth is 0.1.
    """
    count = max(1, int(least * of) - 1)
    while count / of < least:
        count += 1
    return count


@njit(widen=True)
def _draft(states, edges, state, room, levels, least, tree, drafted):
    """(nodes, sum of their counts) of a state's likeliest continuation, best first; at ties the
    earlier parent's.

    least: smallest count of a node. tree: also other children than the first.
    """
    drafted[0, STATE], drafted[0, LEVEL], drafted[0, COUNT], drafted[0, MIXED] = (
        state,
        0,
        states[state].count,
        NONE,
    )
    _wait(states, edges, 0, states[state].head, levels, least, drafted)
    rows, total = 1, np.int64(0)
    while rows <= room:
        above = 0 if tree else rows - 1
        for row in range(1, rows if tree else 0):
            if drafted[row, CHILD] > drafted[above, CHILD]:
                above = row
        count = drafted[above, CHILD]
        if count == 0:
            break
        edge = drafted[above, WAITING]
        drafted[rows, TOKEN], drafted[rows, PARENT] = edges[edge].token, above - 1
        drafted[rows, STATE], drafted[rows, LEVEL] = edges[edge].target, drafted[above, LEVEL] + 1
        drafted[rows, COUNT] = count
        _wait(states, edges, above, edges[edge].next, levels, least, drafted)
        _wait(states, edges, rows, states[edges[edge].target].head, levels, least, drafted)
        rows += 1
        total += count
    return rows - 1, total


@njit(widen=True)
def _wait(states, edges, row, edge, levels, least, drafted):
    """Let an edge wait as the next child of a row, if it is likely and shallow enough."""
    drafted[row, CHILD] = 0
    if edge == NONE or drafted[row, LEVEL] >= levels:
        return
    count = states[edges[edge].target].count
    if count >= least:
        drafted[row, WAITING], drafted[row, CHILD] = edge, count
        if edges[edges[edge].group].mixed:
            drafted[0, MIXED] = edges[edge].group


@njit(widen=True)
def _sort(states, edges, group):
    """Put a group of edges in order, the one that occurred last first."""
    edge = edges[group].front
    owner, front, back, size = edges[edge].owner, edges[edge].previous, edge, 0
    while back != NONE and edges[back].group == group:
        back, size = edges[back].next, size + 1
    keys = np.empty(size, np.int64)
    for place in range(size):
        keys[place] = np.int64(states[edges[edge].target].last) << 32 | edge
        edge = edges[edge].next
    gap = size // 2
    while gap:  # Shell's order of comparisons: numba would compile its own sort for seconds
        for place in range(gap, size):
            key = keys[place]
            while place >= gap and keys[place - gap] > key:
                keys[place], place = keys[place - gap], place - gap
            keys[place] = key
        gap //= 2
    for key in keys:  # each is put before those it is later than
        edge = key & 0xFFFFFFFF
        edges[edge].next = back
        if back == NONE:
            states[owner].tail = edge
        else:
            edges[back].previous = edge
        back = edge
    edges[edge].previous, edges[group].front, edges[group].mixed = front, edge, 0
    if front == NONE:
        states[owner].head = edge
    else:
        edges[front].next = edge


LOCAL, GLOBAL = 0, 1
ROOM = 4096  # [tokens] of answer before the local tree must move


class _Request(ArrayDrafter):
    def __init__(self, method: SuffixDecoding, prompt: Sequence[int]) -> None:
        super().__init__(method.limits.nodes, scored=True)
        self._limits, self._answers = method.limits, method.answers
        self._local = SuffixTree(method.limits.depth, len(prompt) + ROOM, method.ties)
        self._place = np.zeros(3, np.int64)  # of the context in it
        self._local.count(self._place, prompt)
        self.text.extend(prompt)
        self._counted = len(prompt)  # tokens of the context
        self._answer = Text()
        self._stats: dict[str, float] = {}
        if self._answers is not None:
            texts = self._answers.texts
            self._stats = {"cached_tokens": float(sum(text.length for text in texts))}
            self._answers.extend(self._answer, [])  # the newest; the oldest go
            while len(texts) > method.cached_requests:
                self._answers.remove(next(iter(texts)))

    def fill(self, context: Sequence[int], budget: int) -> int:
        limits = (
            self._limits if budget >= self._limits.nodes else self._limits._replace(nodes=budget)
        )
        self.text.follow(context)
        start, self._counted, answers = self._counted, len(context), self._answers
        new = self._counted - start
        best = self._local.draft(self._place, new, limits, self, LOCAL)
        if answers is not None:
            if self._answer not in answers.texts:  # evicted meanwhile
                new = 0
            elif new:
                answers.note(self._answer, context[start:])
            best = answers.draft(self._answer.place, new, limits, self, GLOBAL, best)
        return best[0]

    def finish(self, context: Sequence[int]) -> None:
        if self._answers is not None and self._answer in self._answers.texts:
            self._answers.extend(self._answer, context[self._counted :])

    def stats(self) -> dict[str, float]:
        return self._stats


@dataclass(eq=False)
class SuffixDecoding(Parameters, Method):
    """SuffixDecoding; conf/method/suffix_decoding.yaml describes the parameters."""

    learned = ("answers",)
    sources = ("local", "global")

    num_draft: int = count(16)
    factor: float = number(
        1.0, lambda value: 0 <= value <= MOST, f"0 to {MOST}, as longer matches may not draft less"
    )
    offset: float = number(0.0, lambda value: abs(value) <= MOST, f"-{MOST} to {MOST}")
    min_prob: float = probability(0.1)
    depth: int = count(64, low=2)
    shape: Literal["path", "tree"] = "path"
    global_tree: bool = True
    cached_requests: int = count(100_000, high=KEPT)
    ties: Ties = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        factor, offset, min_prob, depth = self.factor, self.offset, self.min_prob, self.depth
        if not factor * (depth - 1) + offset >= 1:
            raise InputError(
                f"offset={offset}: with factor={factor} and depth={depth} no match may draft a"
                " token; expected factor * (depth - 1) + offset of at least 1"
            )
        tree = self.shape == "tree"
        self.limits = Limits(
            self.num_draft, float(factor), float(offset), float(min_prob), depth, tree
        )
        self.answers = SuffixTree(depth, ties=self.ties) if self.global_tree else None

    def bind(self, target: Target) -> None:
        """Compile, so that no request does."""
        SuffixTree(self.limits.depth, 1).extend(Text(), [0, 1, 0, 1, 0])
        self.begin([0, 1, 0, 1], Prefill(0), 0).propose([0, 1, 0, 1, 0], 1)
        self.reset()

    def reset(self) -> None:
        if self.answers is not None:
            self.answers = SuffixTree(self.limits.depth, ties=self.ties)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Count the prompt's strings in a tree of the request's own."""
        return _Request(self, [*prompt, prefill.token] if prefill.given else prompt)

    def state_bytes(self) -> int:
        return self.answers.nbytes() if self.answers is not None else 0
