"""The window of lookahead decoding (Fu et al. 2024): levels of guesses whose columns become
n-grams.

The caller hangs the window's nodes below the root of a forward, the target's or the draft's, and
gives back what follows the newest level.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from methods.parts.ngrams import Gram
from specbench.types import ROOT


class Window:
    """The window of one request.

    levels: the oldest first; level 0 lacks its column 0, the root. parents: of the nodes, level by
    level.
    """

    def __init__(self, ngram: int, width: int, source: Sequence[int], seed: int) -> None:
        """ngram: tokens of an n-gram, key included. width: columns. source: what the first level is
        drawn from.
        """
        self._ngram = ngram
        first = width + ngram - 3  # every step of the fill phase drops one token of it
        self.levels = [random.Random(seed).choices(source, k=first)]
        self.parents = window_parents([first])

    @property
    def full(self) -> bool:
        """The fill phase is over: every step gives n-grams."""
        return len(self.levels) == self._ngram - 1

    def tokens(self) -> list[int]:
        """(n,) of its nodes."""
        return [token for level in self.levels for token in level]

    def newest(self) -> slice:
        """The newest level's nodes."""
        end = len(self.parents)
        return slice(end - len(self.levels[-1]), end)

    def move(self, root: int, new: list[int]) -> Iterable[tuple[int, Gram]]:
        """Take in what follows the newest level; the window moves on by ONE place, however much was
        accepted.

        The n-grams that this completes: (the token before, the others) of each column.
        """
        levels = self.levels
        if self.full:
            keys = (root, *levels[0])  # column 0 of level 0 is the root
            grams = zip(keys, zip(*levels[1:], new, strict=True), strict=True)
            self.levels = [levels[1][1:], *levels[2:], new]
            return grams
        # Level 0 has no column 0 of its own (it is the root), so the first new level keeps all of
        # its columns.
        fresh = new if len(levels) == 1 else new[1:]
        self.levels = [*(level[1:] for level in levels), fresh]
        self.parents = window_parents([len(level) for level in self.levels])
        return ()


def largest_window(ngram: int, window: int) -> int:
    """Most nodes that the window has, at any step of the fill phase or after it."""
    return max(
        window + ngram - 3 - filled + filled * (window + ngram - 2 - filled)
        for filled in range(ngram - 1)
    )


def window_parents(widths: Sequence[int]) -> list[int]:
    """Parents of a window's nodes, level by level; widths: tokens of each level, the root not among
    them.

    Level 0 is a chain from the root; the parent of (level l, column i) is (l-1, i), and (0, 0) is
    the root. ``window_parents([2, 3])`` -> ``[-1, 0, -1, 0, 1]``.
    """
    parents: list[int] = []
    above = range(ROOT, widths[0])
    for level, width in enumerate(widths):
        start = len(parents)
        parents += above[:width]
        if level:
            above = range(start, start + width)
    return parents


def list_chains(grams: Iterable[Gram], room: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of the n-grams as chains from the root, up to the first that does not fit
    ``room`` nodes.
    """
    tokens: list[int] = []
    parents: list[int] = []
    for gram in grams:
        if len(tokens) + len(gram) > room:
            break
        parents += [ROOT, *range(len(tokens), len(tokens) + len(gram) - 1)][: len(gram)]
        tokens += gram
    return tokens, parents


def hang_below(root: int, parents: Sequence[int], first: int) -> list[int]:
    """Parents of nodes that hang from the node ``root`` and are numbered from ``first`` on."""
    return [root if parent == ROOT else parent + first for parent in parents]
