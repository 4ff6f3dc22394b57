"""Lookahead decoding (Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using
Lookahead Decoding").

In addition to the drafts, each forward carries a window of N-1 levels of Jacobi guesses, W columns
wide. A column read through the levels is an n-gram the target itself has made; n-grams are pooled
by the token before them and verified as drafts when that token is emitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from methods.parts.array_draft import GrowingText
from methods.parts.branches import PARENT, SIZE, SOURCE, allocate_tree, spell
from methods.parts.gram_table import TOKENS, GramTable, list_followers
from methods.parts.lookahead_window import Window, largest_window
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.models.compiled_code import njit
from specbench.models.facade import Target
from specbench.types import ROOT, Draft, Needs, Prefill, Step, require_nodes

POOL, WINDOW = 0, 1


@njit(widen=True)
def draft_branch(tree, pool, token, guesses, verified, room, merge, first):
    """Fill a tree with what the pool has after ``token``, most recent first; returns its size.

    guesses: the most n-grams, ``verified`` tokens of each. room, merge: see ``spell``. first:
    number of the first node.
    """
    leader = np.full(1, token, np.int32)
    rows = np.empty((guesses, pool.shape[1] - TOKENS), np.int32)
    spell(tree, rows[: list_followers(pool, leader, rows), :verified], room, merge)
    size = np.int64(tree[ROOT, SIZE])
    for node in range(size):
        tree[node, PARENT] += first if tree[node, PARENT] != ROOT else 0
    return size


class _Lookahead(Drafter):
    def __init__(self, method: Lookahead, prompt: Sequence[int], first: int, seed: int) -> None:
        self._method = method
        self._window = Window(method.ngram, method.window, prompt or [first], seed)
        self._fed = False
        self._text, self._entered = GrowingText(), 0
        self._take([*prompt, first])

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._fed = len(self._window.parents) <= budget
        window, above = (self._window.tokens(), self._window.parents) if self._fed else ([], [])
        count, tokens, parents = len(window), list[int](), list[int]()
        if self._window.full:
            tokens, parents = self._method.draft(context[-1], budget - count, count)
        return Draft(
            window + tokens,
            above + parents,
            passenger=[True] * count + [False] * len(tokens),
            source=[WINDOW] * count + [POOL] * len(tokens),
        )

    def observe(self, step: Step) -> None:
        if self._fed:
            assert step.topk is not None
            new = step.topk.ids.numpy()[1:, 0][self._window.newest()].tolist()  # row 0 is the root
            grams = [
                token for key, gram in self._window.move(step.root, new) for token in (key, *gram)
            ]
            self._method.pool.put(np.array(grams, np.int32), 0, self._method.ngram)
        self._take(step.emitted)

    def _take(self, tokens: Sequence[int]) -> None:
        if self._method.pool_from_prompt:
            self._text.extend(tokens)
            self._entered = self._method.pool.put(self._text.tokens, self._entered)


@dataclass(eq=False)
class Lookahead(Parameters, Method):
    """Lookahead decoding; conf/method/lookahead.yaml describes the parameters."""

    learned = ("pool",)
    by_node = True
    sources = ("pool", "window")

    ngram: int = count(5, low=3)
    window: int = count(7)
    guesses: int = count(7)
    bonus: Literal["dropped", "kept"] = "dropped"
    verification: Literal["chains", "trie"] = "chains"
    pool_from_prompt: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # A fully matching n-gram without its last token, and the bonus after it, emit what the
        # n-gram alone would: this is how the bonus is dropped.
        self._verified = self.ngram - 1 if self.bonus == "kept" else self.ngram - 2
        self.pool = GramTable(1, self.ngram - 1, followers=self.guesses)
        self._tree = allocate_tree(self.guesses * self._verified)

    @property
    def needs(self) -> Needs:
        """The best token of every row: the window's next level."""
        return Needs(node_topk=1, read_topk=True)

    def bind(self, target: Target) -> None:
        nodes = largest_window(self.ngram, self.window) + self.guesses * self._verified
        require_nodes(
            f"window={self.window}, ngram={self.ngram}, guesses={self.guesses}",
            nodes,
            target.max_nodes,
        )
        self.pool.put(np.zeros(self.ngram, np.int32))  # compile, so that no request does
        self.draft(0, 1, 0)
        self.pool.clear()

    def reset(self) -> None:
        self.pool.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The window is the request's own, its first level drawn from the prompt by ``seed``."""
        return _Lookahead(self, prompt, prefill.token, seed)

    def draft(self, token: int, room: int, first: int) -> tuple[list[int], list[int]]:
        """Tokens and parents of what is verified after ``token``; see ``draft_branch``."""
        given = (self.guesses, self._verified, room, self.verification == "trie", first)
        size = draft_branch(self._tree, self.pool.rows, token, *given)
        tokens, parents = self._tree[:size, :SOURCE].T.tolist()
        return tokens, parents

    def state_bytes(self) -> int:
        return self.pool.nbytes()
