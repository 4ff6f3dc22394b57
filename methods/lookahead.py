"""Lookahead decoding (Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding").

In addition to the drafts, each forward carries a window of N-1 levels of Jacobi guesses, W columns wide. A column read
through the levels is an n-gram the target itself has made; n-grams are pooled by the token before them and verified as
drafts when that token is emitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from methods.parts.branches import branch_of
from methods.parts.gram_table import ContextWindows, GramTable
from methods.parts.lookahead_window import Window, hang_below, largest_window
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.models.facade import Target
from specbench.types import ROOT, Draft, Needs, Prefill, Step, require_nodes

POOL, WINDOW = 0, 1


class _Lookahead(Drafter):
    def __init__(self, method: Lookahead, prompt: Sequence[int], first: int, seed: int) -> None:
        self._method = method
        self._window = Window(method.ngram, method.window, prompt or [first], seed)
        self._fed = False
        self._context = ContextWindows(method.pool.put, method.ngram) if method.pool_from_prompt else None
        if self._context is not None:
            self._context.extend([*prompt, first])

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._fed = len(self._window.parents) <= budget
        window = self._window.tokens() if self._fed else []
        tokens: list[int] = []
        parents: list[int] = []
        if self._window.full:
            grams = self._method.query(context[-1])
            tokens, parents, _ = branch_of(grams, self._method.verification == "trie", budget - len(window))
        return Draft(
            window + tokens,
            self._window.parents[: len(window)] + hang_below(ROOT, parents, len(window)),
            passenger=[True] * len(window) + [False] * len(tokens),
            source=[WINDOW] * len(window) + [POOL] * len(tokens),
        )

    def observe(self, step: Step) -> None:
        if self._fed:
            assert step.topk is not None
            new = step.topk.ids[1:, 0][self._window.newest()].tolist()  # row 0 is the root
            grams = [token for key, gram in self._window.move(step.root, new) for token in (key, *gram)]
            self._method.pool.put(np.array(grams, np.int32), self._method.ngram)
        if self._context is not None:
            self._context.extend(step.emitted)


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
        # A fully matching n-gram without its last token, and the bonus after it, emit what the n-gram alone would:
        # this is how the bonus is dropped.
        self._verified = self.ngram - 1 if self.bonus == "kept" else self.ngram - 2
        self.pool = GramTable(1, self.ngram - 1, followers=self.guesses)

    @property
    def needs(self) -> Needs:
        """The best token of every row: the window's next level."""
        return Needs(node_topk=1, read_topk=True)

    def bind(self, target: Target) -> None:
        """Refuse a window and n-grams that do not fit a draft."""
        nodes = largest_window(self.ngram, self.window) + self.guesses * self._verified
        require_nodes(f"window={self.window}, ngram={self.ngram}, guesses={self.guesses}", nodes, target.max_nodes)
        self.pool.put(np.zeros(self.ngram, np.int32))  # compile, so that no request does
        branch_of(self.query(0), True, 1)
        self.pool.clear()

    def reset(self) -> None:
        """An empty pool."""
        self.pool.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The window is the request's own, its first level drawn from the prompt by ``seed``."""
        return _Lookahead(self, prompt, prefill.token, seed)

    def query(self, token: int) -> np.ndarray:
        """What is verified after ``token``, most recent first."""
        return self.pool.list_followers([token], self.guesses)[:, : self._verified]

    def state_bytes(self) -> int:
        """Bytes of the pool."""
        return self.pool.nbytes()
