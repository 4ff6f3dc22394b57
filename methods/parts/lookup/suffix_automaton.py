"""A suffix automaton that grows with its text (Blumer et al. 1985; SAM-Decoding, Hu et al. 2024).

It matches as it grows: for each token it has the longest suffix of the text that also ended earlier, at amortised
constant cost. At most 2 states and 3 edges a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from methods.parts.lookup import automaton_kernels as kernels
from methods.parts.lookup.automaton_kernels import Arrays


def allocate(tokens: int) -> Arrays:
    """An empty automaton with room for texts of ``tokens`` tokens in all."""
    slots = 1 << (6 * tokens + 4).bit_length()  # at most half of them are taken
    arrays = Arrays(
        np.empty(2 * tokens + 2, kernels.STATE),
        np.empty(3 * tokens + 2, kernels.EDGE),
        np.full(slots, kernels.NONE, np.int32),
        np.zeros(9, np.int64),
    )
    arrays.states[0] = (kernels.NONE, 0, kernels.NONE, kernels.NONE, 0, 0, 0)
    arrays.meta[kernels.STATES], arrays.meta[kernels.FREE] = 1, kernels.NONE
    return arrays


def make_room(arrays: Arrays, tokens: int) -> Arrays:
    """The same automaton with room for ``tokens`` more; twice as much where it must move."""
    total = int(arrays.meta[kernels.CLOCK]) + tokens
    if 2 * total + 2 <= len(arrays.states):
        return arrays
    larger = allocate(2 * total)
    states, edges = int(arrays.meta[kernels.STATES]), int(arrays.meta[kernels.EDGES])
    larger.states[:states], larger.edges[:edges] = arrays.states[:states], arrays.edges[:edges]
    larger.meta[:] = arrays.meta
    kernels.rehash(larger)
    return larger


def nbytes(arrays: Arrays) -> int:
    """Bytes of the arrays, room to grow included."""
    return sum(array.nbytes for array in arrays)


class SuffixAutomaton:
    """One growing text. tokens: the room [tokens] to begin with."""

    def __init__(self, tokens: int = 1024) -> None:
        self.arrays = allocate(tokens)

    def extend(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append tokens; each is matched before it is appended."""
        self.arrays = make_room(self.arrays, len(tokens))
        kernels.extend(self.arrays, np.asarray(tokens, np.int32))

    def peek(self, token: int, copies: int = 0) -> tuple[int, int]:
        """(length, end): the longest suffix of the text and ``token`` that occurs, where it first ended; (0, 0): none.

        The token is not appended. end: tokens of the text up to there, so that ``text[end:]`` followed. copies: shorter
        suffixes are taken instead while fewer tokens than that followed (the length stays the longest's).
        Example: after ``extend([1, 2, 3, 1])``, ``peek(2)`` is (2, 2).
        """
        return kernels.peek(self.arrays, token, copies)

    def __len__(self) -> int:
        return int(self.arrays.meta[kernels.CLOCK])
