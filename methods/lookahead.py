"""Lookahead decoding (Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding").

Beside the drafts, each forward carries a window of N-1 levels of Jacobi guesses, W columns wide. A column read through
the levels is an n-gram the target itself has made; n-grams are pooled by the token before them and verified as drafts
when that token is emitted again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from methods.parts.lru_table import Gram, LruTable
from specbench.method import Drafter, Method
from specbench.target.facade import Target
from specbench.types import ROOT, Draft, InputError, Needs, Prefill, Step

POOL, WINDOW = 0, 1
Branch = tuple[list[int], list[int]]  # tokens and parents of the nodes to verify


class _Lookahead(Drafter):
    def __init__(self, method: Lookahead, prompt: Sequence[int], first: int, seed: int) -> None:
        self._method = method
        width = method.window + method.ngram - 3  # every step of the fill phase drops one token of it
        self._levels = [random.Random(seed).choices(prompt or [first], k=width)]
        self._parents = window_parents([width])
        self._fed = False
        self._tail: list[int] = []
        if method.pool_from_prompt:
            self._slide([*prompt, first])

    @property
    def _full(self) -> bool:
        return len(self._levels) == self._method.ngram - 1

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._fed = len(self._parents) <= budget
        window = [token for level in self._levels for token in level] if self._fed else []
        grams = self._method.query(context[-1]) if self._full else []
        branch = trie_branch if self._method.verification == "trie" else chain_branch
        tokens, parents = branch(grams, len(window), budget - len(window))
        return Draft(
            window + tokens,
            self._parents[: len(window)] + parents,
            passenger=[True] * len(window) + [False] * len(tokens),
            source=[WINDOW] * len(window) + [POOL] * len(tokens),
        )

    def observe(self, step: Step) -> None:
        if self._fed:
            assert step.topk is not None
            start = 1 + sum(len(level) for level in self._levels[:-1])
            self._move(step.root, step.topk.ids[start : start + len(self._levels[-1]), 0].tolist())
        if self._method.pool_from_prompt:
            self._slide(step.emitted)

    def _move(self, root: int, new: list[int]) -> None:
        """Take in what follows the newest level; the window moves on by ONE place, however much was accepted."""
        levels = self._levels
        if self._full:
            keys = (root, *levels[0])  # column 0 of level 0 is the root
            for key, gram in zip(keys, zip(*levels[1:], new, strict=True), strict=True):
                self._method.pool.put((key,), gram)
            self._levels = [levels[1][1:], *levels[2:], new]
            return
        # Level 0 has no column 0 of its own (it is the root), so the first new level keeps all of its columns.
        fresh = new if len(levels) == 1 else new[1:]
        self._levels = [*(level[1:] for level in levels), fresh]
        self._parents = window_parents([len(level) for level in self._levels])

    def _slide(self, tokens: Sequence[int]) -> None:
        """Pool the n-grams of the context that end at a new token."""
        size = self._method.ngram
        held = [*self._tail, *tokens]
        for end in range(size, len(held) + 1):
            key, *gram = held[end - size : end]
            self._method.pool.put((key,), tuple(gram))
        self._tail = held[-(size - 1) :]


class Lookahead(Method):
    """ngram N: of a pooled n-gram, its key included. window W: columns. guesses G: n-grams kept and verified a key.

    bonus: dropped (at most N-1 tokens a step) | kept (N). verification: chains (an n-gram each) | trie (shared
    prefixes). pool_from_prompt: the n-grams of prompt and answer are pooled too.
    """

    sources = ("pool", "window")

    def __init__(
        self,
        ngram: int = 5,
        window: int = 7,
        guesses: int = 7,
        bonus: Literal["dropped", "kept"] = "dropped",
        verification: Literal["chains", "trie"] = "chains",
        pool_from_prompt: bool = False,
    ) -> None:
        for name, value, low in (("ngram", ngram, 3), ("window", window, 1), ("guesses", guesses, 1)):
            if value < low:
                raise InputError(f"{name}={value}: expected a whole number of at least {low}")
        self.ngram, self.window, self.guesses = ngram, window, guesses
        self.bonus, self.verification, self.pool_from_prompt = bonus, verification, pool_from_prompt
        # A fully matching n-gram without its last token, and the bonus behind it, emit what the n-gram alone would:
        # this is how the bonus is dropped.
        self._verified = ngram - 1 if bonus == "kept" else ngram - 2
        self.pool = LruTable(sys.maxsize, guesses)

    @property
    def needs(self) -> Needs:
        """The best token of every row: the window's next level."""
        return Needs(node_topk=1)

    def bind(self, target: Target) -> None:
        """Refuse a window and n-grams that do not fit a draft."""
        nodes = largest_window(self.ngram, self.window) + self.guesses * self._verified
        if nodes > target.max_nodes:
            raise InputError(
                f"window={self.window}: with ngram={self.ngram} and guesses={self.guesses} a draft has"
                f" up to {nodes} nodes; expected at most engine.max_nodes={target.max_nodes}:"
                f" lower one of them, or set engine.max_nodes={nodes}"
            )

    def reset(self) -> None:
        """An empty pool."""
        self.pool.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The window is the request's own, its first level drawn from the prompt by ``seed``."""
        return _Lookahead(self, prompt, prefill.token, seed)

    def query(self, token: int) -> list[Gram]:
        """What is verified behind ``token``, most recent first."""
        return [gram[: self._verified] for gram in self.pool.get((token,))]

    def state_bytes(self) -> int:
        """Bytes of the pool."""
        return self.pool.nbytes()


def largest_window(ngram: int, window: int) -> int:
    """Most nodes that the window has, at any step of the fill phase or after it."""
    return max(window + ngram - 3 - filled + filled * (window + ngram - 2 - filled) for filled in range(ngram - 1))


def window_parents(widths: Sequence[int]) -> list[int]:
    """Parents of a window's nodes, level by level; widths: tokens of each level, the root not among them.

    Level 0 is a chain from the root; the parent of (level l, column i) is (l-1, i), and (0, 0) is the root.
    ``window_parents([2, 3])`` -> ``[-1, 0, -1, 0, 1]``.
    """
    parents: list[int] = []
    above = range(ROOT, widths[0])
    for level, width in enumerate(widths):
        start = len(parents)
        parents += above[:width]
        if level:
            above = range(start, start + width)
    return parents


def chain_branch(grams: Iterable[Gram], first: int, room: int) -> Branch:
    """Every n-gram as a chain from the root. first: number of the first node. room: [nodes]."""
    tokens: list[int] = []
    parents: list[int] = []
    for gram in grams:
        if len(tokens) + len(gram) > room:
            break
        start = first + len(tokens)
        tokens += gram
        parents += [ROOT, *range(start, start + len(gram) - 1)]
    return tokens, parents


def trie_branch(grams: Iterable[Gram], first: int, room: int) -> Branch:
    """The n-grams with shared prefixes held once; the rest as ``chain_branch``."""
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    for gram in grams:
        node = ROOT
        for token in gram:
            child = children.get((node, token))
            if child is None:
                if len(tokens) >= room:
                    return tokens, parents
                child = children[node, token] = first + len(tokens)
                tokens.append(token)
                parents.append(node)
            node = child
    return tokens, parents
