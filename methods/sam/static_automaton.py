"""The static automaton of SAM-Decoding (Hu et al. 2024): the suffix automaton of a corpus, packed to be read only.

Each state's edges stand together: the ``ranked`` most frequent continuations first, best first, then the rest by token.
So a draft tree reads the front, and a match scans the front and bisects the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from methods.parts.lookup import automaton_kernels as kernels
from methods.parts.lookup.corpus import FORMATS, read_built
from methods.parts.lookup.suffix_automaton import SuffixAutomaton
from specbench.models.compiled_code import njit
from specbench.types import InputError

LINK, LENGTH, FIRST, COUNT = range(4)  # columns of a packed state
TOKEN, PARENT, STATE, RANK, LEVEL = range(5)  # columns of a drafted row; RANK: of its next child


class Packed(NamedTuple):
    """text (n,), states (s, 4), offsets (s + 1,) of each state's edges, tokens and targets (m,): int32."""

    text: np.ndarray
    states: np.ndarray
    offsets: np.ndarray
    tokens: np.ndarray
    targets: np.ndarray


class StaticAutomaton:
    """arrays: the packed automaton. ranked: how many edges of a state stand in order of frequency."""

    def __init__(self, arrays: Packed, ranked: int) -> None:
        self.arrays, self.ranked = arrays, ranked

    def walk(self, state: int, length: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Match on: (state, length) of the longest suffix that occurs in the corpus."""
        return walk(self.arrays, self.ranked, state, length, np.asarray(tokens, np.int32))

    def following(self, state: int, count: int) -> list[int]:
        """The ``count`` tokens after the first occurrence of a state's strings, fewer at the corpus's end."""
        start = int(self.arrays.states[state, FIRST])
        return self.arrays.text[start : start + count].tolist()

    def tree(self, state: int, nodes: int, children: int) -> tuple[list[int], list[int]]:
        """(tokens, parents) of the ``nodes`` likeliest continuations; at most ``children`` a node and a level."""
        drafted, chances = np.empty((nodes + 1, 5), np.int32), np.empty((nodes + 1, 2))
        count = draft_tree(self.arrays, state, children, drafted, chances)
        return drafted[1 : count + 1, TOKEN].tolist(), drafted[1 : count + 1, PARENT].tolist()

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def save(self, path: Path, vocab: int) -> None:
        """Write one safetensors file. vocab: tokens of the tokenizer it was built with, checked when it is loaded."""
        about = {"format": FORMATS["suffix automaton"], "vocab": str(vocab), "ranked": str(self.ranked)}
        save_file(self.arrays._asdict(), path, about)

    @classmethod
    def load(cls, path: Path, vocab: int, key: str) -> StaticAutomaton:
        """Read a file of ``save``. Raises InputError naming ``key`` if it is none, or of another vocabulary."""
        about, held = read_built(path, vocab, key, "suffix automaton", Packed._fields)
        arrays = Packed(**held)
        if not about.get("ranked", "").isdecimal() or not _is_sound(arrays):
            raise InputError(f"{key}={path}: not a suffix automaton, or damaged; build one anew")
        if any(array.size and not 0 <= array.min() <= array.max() < vocab for array in (arrays.text, arrays.tokens)):
            raise InputError(f"{key}={path}: holds tokens beyond its vocabulary of {vocab}; build it anew")
        return cls(arrays, int(about["ranked"]))


def _is_sound(arrays: Packed) -> bool:
    """Whether a match can neither leave the arrays nor run in a circle."""
    text, states, offsets, tokens, targets = arrays
    if any(array.dtype != np.int32 for array in arrays) or states.ndim != 2 or states.shape[1] != 4 or not len(states):
        return False
    if any(array.ndim != 1 for array in (text, offsets, tokens, targets)) or len(offsets) != len(states) + 1:
        return False
    ends = offsets[0] == 0 and offsets[-1] == len(tokens) == len(targets) and bool((np.diff(offsets) >= 0).all())
    links, firsts = states[1:, LINK], states[:, FIRST]
    inside = bool(((links >= 0) & (links < len(states))).all() and ((targets > 0) & (targets < len(states))).all())
    if not ends or not inside:
        return False
    shorter = bool((states[links, LENGTH] < states[1:, LENGTH]).all())
    return shorter and bool(((firsts >= 0) & (firsts <= len(text))).all() and (states[1:, COUNT] > 0).all())


def build_automaton(documents: Iterable[np.ndarray], eos: int | None, ids: int, ranked: int) -> StaticAutomaton:
    """The automaton of the documents' tokens, one after the other.

    eos: ends each document that does not end with it; None: nothing does. ids: every id below becomes a document of its
    own, so that each token is a match. ranked: most children that a draft tree may take of a state.
    """
    ending = np.array([] if eos is None else [eos], np.int32)
    pieces: list[np.ndarray] = []
    for document in (*documents, *np.arange(ids, dtype=np.int32)[:, None]):
        pieces += [document, ending[: int(len(document) > 0 and document[-1] != eos)]]
    text = np.concatenate([np.zeros(0, np.int32), *pieces]).astype(np.int32)
    automaton = SuffixAutomaton(len(text))
    automaton.extend(text)
    count_occurrences(automaton.arrays.states[: automaton.arrays.meta[kernels.STATES]], len(text))
    return StaticAutomaton(_packed(automaton.arrays, text, ranked), ranked)


def _packed(arrays: kernels.Arrays, text: np.ndarray, ranked: int) -> Packed:
    states = arrays.states[: arrays.meta[kernels.STATES]]
    edges = arrays.edges[: arrays.meta[kernels.EDGES]]
    owners, targets = edges["owner"], edges["target"]
    order = np.lexsort((states["first"][targets], -states["count"][targets], owners))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(states)))])
    rank = np.arange(len(order)) - offsets[owners[order]]
    place = np.where(rank < ranked, rank, ranked + edges["token"][order])
    order = order[np.lexsort((place, owners[order]))]
    columns = np.stack([states[name] for name in ("link", "length", "first", "count")], axis=1)
    packed = (text, columns, offsets, edges["token"][order], targets[order])
    return Packed(*(np.ascontiguousarray(array, np.int32) for array in packed))


@njit()
def count_occurrences(states, tokens):
    """Fill the counts of a growing automaton of one text of that many tokens: how often each state's strings occur."""
    starts = np.zeros(tokens + 2, np.int64)
    for state in range(len(states)):
        starts[states[state].length + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(len(states), np.int32)
    for state in range(len(states)):
        length = states[state].length
        order[starts[length]] = state
        starts[length] += 1
        states[state].count = int(length == states[state].first)  # a clone is shorter than its place
    for place in range(len(states) - 1, 0, -1):
        state = order[place]
        states[states[state].link].count += states[state].count


@njit()
def _target(p, ranked, state, token):
    """The state that ``token`` leads to, or -1."""
    start, end = p.offsets[state], p.offsets[state + 1]
    front = min(start + ranked, end)
    for edge in range(start, front):
        if p.tokens[edge] == token:
            return p.targets[edge]
    low, high = front, end
    while low < high:
        middle = (low + high) // 2
        if p.tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return p.targets[low] if low < end and p.tokens[low] == token else np.int32(-1)


@njit()
def walk(p, ranked, state, length, tokens):
    """``StaticAutomaton.walk``."""
    for token in tokens:
        target = _target(p, ranked, state, token)
        while target < 0 and state != 0:
            state = p.states[state, LINK]
            length = p.states[state, LENGTH]
            target = _target(p, ranked, state, token)
        state, length = (target, length + 1) if target >= 0 else (0, 0)
    return state, length


@njit()
def draft_tree(p, state, children, drafted, chances):
    """Fill ``drafted`` from row 1 on, best first, at ties the earlier parent's child; returns the nodes.

    A row whose next child waits has its probability in ``chances[row, 1]``, else 0; its own is in ``chances[row, 0]``.
    """
    on_level = np.zeros(len(drafted) + 1, np.int64)
    drafted[0, STATE], drafted[0, LEVEL], chances[0, 0] = state, 0, 1.0
    _wait(p, 0, 0, children, drafted, chances)
    rows = 1
    while rows < len(drafted):
        above = np.argmax(chances[:rows, 1])
        if chances[above, 1] == 0.0:
            break
        level = drafted[above, LEVEL] + 1
        if on_level[level] == children:
            chances[above, 1] = 0.0
            continue
        on_level[level] += 1
        edge = p.offsets[drafted[above, STATE]] + drafted[above, RANK]
        drafted[rows, TOKEN], drafted[rows, PARENT], drafted[rows, STATE] = p.tokens[edge], above - 1, p.targets[edge]
        drafted[rows, LEVEL], chances[rows, 0] = level, chances[above, 1]
        _wait(p, above, drafted[above, RANK] + 1, children, drafted, chances)
        _wait(p, rows, 0, children, drafted, chances)
        rows += 1
    return rows - 1


@njit()
def _wait(p, row, rank, children, drafted, chances):
    """Let the state's edge of this rank wait as the row's next child."""
    chances[row, 1] = 0.0
    state = drafted[row, STATE]
    edge = p.offsets[state] + rank
    if rank < children and edge < p.offsets[state + 1]:
        drafted[row, RANK] = rank
        chances[row, 1] = chances[row, 0] * (p.states[p.targets[edge], COUNT] / p.states[state, COUNT])
