"""SAM-Decoding (Hu et al. 2024): copy what followed the longest match, found by suffix automata at
constant cost.

A dynamic automaton grows with the context, a static one is built from a corpus; the longer match
drafts (section 3). Where neither matches far enough an auxiliary drafter takes over, if there is
one: here Token Recycling. The static automaton is packed and read-only; each state's edges are
adjacent: the ``ranked`` most frequent continuations first, best first, then the rest by token. So a
draft tree reads the front, and a match scans the front and bisects the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from methods.parts.corpus import BuiltFile, Corpus
from methods.parts.parameters import Parameters, count, positive
from methods.parts.recycling import RecyclingMatrix
from methods.parts.suffix_automaton import EDGES, STATES, SuffixAutomaton
from methods.parts.tree_shape import TreeShape
from specbench.method import Drafter, Method
from specbench.models.compiled_code import njit
from specbench.models.facade import ModelCard, Target
from specbench.types import (
    EMPTY,
    MOST,
    Draft,
    InputError,
    Needs,
    Prefill,
    Step,
    require_count,
    require_nodes,
)

LINK, LENGTH, FIRST, COUNT = range(4)  # columns of a packed state
TOKEN, PARENT, STATE, RANK, LEVEL = range(5)  # columns of a drafted row; RANK: of its next child


class Packed(NamedTuple):
    """text (n,), states (s, 4), offsets (s + 1,) of each state's edges, tokens and targets (m,):
    int32.
    """

    text: np.ndarray
    states: np.ndarray
    offsets: np.ndarray
    tokens: np.ndarray
    targets: np.ndarray


class StaticAutomaton(BuiltFile):
    """The automaton of a corpus, packed and read-only.

    arrays: the packed automaton. ranked: how many edges of a state are in order of frequency.
    """

    kind, format, command = "suffix automaton", "suffix_automaton", "automaton"
    names = Packed._fields

    def __init__(self, arrays: Packed, ranked: int) -> None:
        self.arrays, self.ranked = arrays, ranked
        self.stored, self.labels = arrays._asdict(), {"ranked": str(ranked)}

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the options for the automaton's content and for the number of ranked children."""
        parser.add_argument(
            "--ranked", type=int, default=8, help="most children of a node in a draft tree"
        )
        parser.add_argument("--no-eos", action="store_true", help="put nothing between documents")
        parser.add_argument(
            "--no-ids", action="store_true", help="do not add every token of the vocabulary"
        )

    @classmethod
    def from_corpus(cls, corpus: Corpus, given: argparse.Namespace) -> tuple[StaticAutomaton, str]:
        """Raises InputError for options that the tokenizer does not allow."""
        require_count("--ranked", given.ranked)
        eos = None if given.no_eos else corpus.tokenizer.eos_token_id
        if eos is None and not given.no_eos:
            raise InputError(f"--tokenizer {given.tokenizer}: has no EOS token; give --no-eos")
        automaton = build_automaton(
            corpus.documents, eos, 0 if given.no_ids else len(corpus.tokenizer), given.ranked
        )
        text, states, _, edges, _ = automaton.arrays
        return automaton, f"{len(text)} tokens, {len(states)} states, {len(edges)} edges, "

    @classmethod
    def from_file(
        cls, path: Path, arrays: dict[str, np.ndarray], labels: dict[str, str], vocab: int
    ) -> StaticAutomaton:
        """Checks the arrays, so that no number in them can send a match out of bounds."""
        packed = Packed(**arrays)
        if not labels.get("ranked", "").isdecimal() or not _is_sound(packed):
            raise InputError("not a suffix automaton, or damaged; build one anew")
        if any(
            array.size and not 0 <= array.min() <= array.max() < vocab
            for array in (packed.text, packed.tokens)
        ):
            raise InputError(f"holds tokens beyond its vocabulary of {vocab}; build it anew")
        return cls(packed, int(labels["ranked"]))

    def walk(self, state: int, length: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Match on: (state, length) of the longest suffix that occurs in the corpus."""
        return walk(self.arrays, self.ranked, state, length, np.asarray(tokens, np.int32))

    def following(self, state: int, count: int) -> list[int]:
        """The ``count`` tokens after the first occurrence of a state's strings, fewer at the
        corpus's end.
        """
        start = int(self.arrays.states[state, FIRST])
        return self.arrays.text[start : start + count].tolist()

    def tree(self, state: int, nodes: int, children: int) -> tuple[list[int], list[int]]:
        """(tokens, parents) of the ``nodes`` likeliest continuations; at most ``children`` a node
        and a level.
        """
        drafted, chances = np.empty((nodes + 1, 5), np.int32), np.empty((nodes + 1, 2))
        count = draft_tree(self.arrays, state, children, drafted, chances)
        return drafted[1 : count + 1, TOKEN].tolist(), drafted[1 : count + 1, PARENT].tolist()


def _is_sound(arrays: Packed) -> bool:
    """Returns whether a match can neither leave the arrays nor run in a circle."""
    text, states, offsets, tokens, targets = arrays
    if (
        any(array.dtype != np.int32 for array in arrays)
        or states.ndim != 2
        or states.shape[1] != 4
        or not len(states)
    ):
        return False
    if (
        any(array.ndim != 1 for array in (text, offsets, tokens, targets))
        or len(offsets) != len(states) + 1
    ):
        return False
    ends = (
        offsets[0] == 0
        and offsets[-1] == len(tokens) == len(targets)
        and bool((np.diff(offsets) >= 0).all())
    )
    links, firsts = states[1:, LINK], states[:, FIRST]
    inside = bool(
        ((links >= 0) & (links < len(states))).all()
        and ((targets > 0) & (targets < len(states))).all()
    )
    if not ends or not inside:
        return False
    shorter = bool((states[links, LENGTH] < states[1:, LENGTH]).all())
    return shorter and bool(
        ((firsts >= 0) & (firsts <= len(text))).all() and (states[1:, COUNT] > 0).all()
    )


def build_automaton(
    documents: Iterable[np.ndarray], eos: int | None, ids: int, ranked: int
) -> StaticAutomaton:
    """The automaton of the documents' tokens, one after the other.

    eos: ends each document that does not end with it; None: nothing does. ids: every id below
    becomes a document of its own, so that each token is a match. ranked: most children that a draft
    tree may take of a state.
    """
    ending = np.array([] if eos is None else [eos], np.int32)
    pieces: list[np.ndarray] = []
    for document in (*documents, *np.arange(ids, dtype=np.int32)[:, None]):
        pieces += [document, ending[: int(len(document) > 0 and document[-1] != eos)]]
    text = np.concatenate([np.zeros(0, np.int32), *pieces]).astype(np.int32)
    automaton = SuffixAutomaton(len(text))
    automaton.extend(text)
    states = automaton.arrays.states[: automaton.arrays.meta[STATES]]
    edges = automaton.arrays.edges[: automaton.arrays.meta[EDGES]]
    count_occurrences(states, len(text))
    owners, targets = edges["owner"], edges["target"]
    order = np.lexsort((states["first"][targets], -states["count"][targets], owners))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(states)))])
    rank = np.arange(len(order)) - offsets[owners[order]]
    place = np.where(rank < ranked, rank, ranked + edges["token"][order])
    order = order[np.lexsort((place, owners[order]))]
    columns = np.stack([states[name] for name in ("link", "length", "first", "count")], axis=1)
    packed = (text, columns, offsets, edges["token"][order], targets[order])
    return StaticAutomaton(
        Packed(*(np.ascontiguousarray(array, np.int32) for array in packed)), ranked
    )


@njit(widen=True)
def count_occurrences(states, tokens):
    """Fill the counts of a growing automaton of one text of that many tokens: how often each
    state's strings occur.
    """
    starts = np.zeros(tokens + 2, np.int64)
    for state in range(len(states)):
        starts[states[state].length + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(len(states), np.int32)
    for state in range(len(states)):
        length = states[state].length
        order[starts[length]] = state
        starts[length] += 1
        # a clone is shorter than its place
        states[state].count = int(length == states[state].first)
    for place in range(len(states) - 1, 0, -1):
        state = order[place]
        states[states[state].link].count += states[state].count


@njit(widen=True)
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


@njit(widen=True)
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


@njit(widen=True)
def draft_tree(p, state, children, drafted, chances):
    """Fill ``drafted`` from row 1 on, best first, at ties the earlier parent's child; returns the
    nodes.

    A row whose next child waits has its probability in ``chances[row, 1]``, else 0; its own is in
    ``chances[row, 0]``.
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
        drafted[rows, TOKEN], drafted[rows, PARENT], drafted[rows, STATE] = (
            p.tokens[edge],
            above - 1,
            p.targets[edge],
        )
        drafted[rows, LEVEL], chances[rows, 0] = level, chances[above, 1]
        _wait(p, above, drafted[above, RANK] + 1, children, drafted, chances)
        _wait(p, rows, 0, children, drafted, chances)
        rows += 1
    return rows - 1


@njit(widen=True)
def _wait(p, row, rank, children, drafted, chances):
    """Let the state's edge of this rank wait as the row's next child."""
    chances[row, 1] = 0.0
    state = drafted[row, STATE]
    edge = p.offsets[state] + rank
    if rank < children and edge < p.offsets[state + 1]:
        drafted[row, RANK] = rank
        chances[row, 1] = chances[row, 0] * (
            p.states[p.targets[edge], COUNT] / p.states[state, COUNT]
        )


DYNAMIC, STATIC, AUXILIARY = 0, 1, 2
ROOM = 4096  # [tokens] of answer before the dynamic automaton must move


class _Matcher(Drafter):
    """Both automata have read the context without its root: a match is looked up for the text that
    ends in the root.
    """

    def __init__(self, method: SAM, prompt: Sequence[int]) -> None:
        self._method = method
        self._dynamic = SuffixAutomaton(len(prompt) + ROOM)
        self._state, self._matched = 0, 0  # of the static automaton
        self._take(prompt)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method, root = self._method, context[-1]
        self._take(context[len(self._dynamic) : -1])
        aided = method.shape is not None
        matched, end = self._dynamic.peek(root, method.n_predicts if aided else 0)
        state, corpus_matched = 0, 0
        if method.corpus is not None:
            state, corpus_matched = method.corpus.walk(self._state, self._matched, [root])
        corpus_matched -= method.len_bias
        longest = max(matched, corpus_matched)
        if method.matrix is not None and longest < method.len_threshold:
            found = method.matrix.draft(root, budget)
            return replace(found, source=[AUXILIARY] * len(found))
        most = (
            method.n_predicts if aided else min(method.n_predicts, 1 + int(method.alpha * longest))
        )
        count = min(budget, most - 1)  # the reference counts the root too
        if matched >= corpus_matched:
            tokens = context[end : min(end + count, len(context) - 1)]
            return Draft.chain(tokens, DYNAMIC) if tokens else EMPTY
        assert method.corpus is not None
        if aided:
            return Draft.chain(method.corpus.following(state, count), STATIC)
        tokens, parents = method.corpus.tree(state, count, method.children)
        return Draft(tokens, parents, source=[STATIC] * len(tokens))

    def observe(self, step: Step) -> None:
        if self._method.matrix is not None and step.fed is not None and step.topk is not None:
            self._method.matrix.learn(step.fed, step.topk)

    def _take(self, tokens: Sequence[int]) -> None:
        self._dynamic.extend(tokens)
        if self._method.corpus is not None:
            self._state, self._matched = self._method.corpus.walk(
                self._state, self._matched, tokens
            )


@dataclass(eq=False)
class SAM(Parameters, Method):
    """SAM-Decoding; conf/method/sam.yaml describes the parameters."""

    learned = ("matrix",)
    sources = ("dynamic", "static", "auxiliary")

    n_predicts: int = count(40, low=2)
    alpha: float = positive(4.0)
    children: int = count(8)
    static: str | None = None
    len_bias: int = count(0, low=0)
    auxiliary: Literal["none", "token_recycling"] = "none"
    len_threshold: int = count(5)
    tree: list[list[int]] | None = None
    k: int = count(8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.auxiliary == "none") != (self.tree is None):
            raise InputError(
                f"tree: {'not set' if self.tree is None else 'set'} with"
                f" auxiliary={self.auxiliary}; expected child counts with auxiliary=token_recycling"
                " only (method sam_token_recycling has both)"
            )
        self.shape = None if self.tree is None else TreeShape.from_counts(self.tree, self.k)
        self.matrix: RecyclingMatrix | None = None
        self.corpus: StaticAutomaton | None = None

    @property
    def needs(self) -> Needs:
        """Top-k of every row for the auxiliary; nothing without."""
        return Needs() if self.shape is None else Needs(node_topk=self.k, prompt_topk=self.k)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.corpus.path,) if self.corpus else ()

    def check(self, model: ModelCard) -> None:
        """Read the static automaton: it must be of the target's tokenizer and ranked for as many
        children.
        """
        if self.shape is not None:
            require_count("k", self.k, high=min(MOST, model.vocab_size))
        if not self.static:
            return
        self.corpus = StaticAutomaton.load(self.static, len(model.tokenizer), "static")
        if self.children > self.corpus.ranked:
            raise InputError(
                f"children={self.children}: {self.corpus.path} ranks {self.corpus.ranked} a state;"
                f" expected no more, or build it anew with --ranked {self.children}"
            )

    def bind(self, target: Target) -> None:
        """Compile, so that no request does; allocate the auxiliary's table."""
        automaton, corpus = SuffixAutomaton(), build_automaton([np.arange(2)], None, 0, 1)
        automaton.extend([0, 1])
        automaton.peek(0)
        corpus.tree(corpus.walk(0, 0, [0])[0], 1, 1)
        if self.shape is not None:
            require_nodes("tree", len(self.shape), target.max_nodes)
            self.matrix = RecyclingMatrix(
                self.shape, self.k, "last", target.vocab_size, target.device
            )

    def reset(self) -> None:
        """Forget what the auxiliary learned; an automaton of the context ends with its request."""
        if self.matrix is not None:
            self.matrix.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Match and append the prompt."""
        if self.matrix is not None and prefill.topk is not None:
            self.matrix.learn_prompt(prompt, prefill.topk)
        return _Matcher(self, prompt)

    def state_bytes(self) -> int:
        """Bytes of the static automaton and of the auxiliary's table."""
        return sum(each.nbytes() for each in (self.corpus, self.matrix) if each is not None)
