"""SAM-Decoding (Hu et al. 2024): copy what followed the longest match, found by suffix automata at constant cost.

A dynamic automaton grows with the context, a static one is built from a corpus; the longer match drafts (section 3).
Where neither matches far enough an auxiliary drafter takes over, if there is one: here Token Recycling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from methods.parts.lookup.recycling import RecyclingMatrix
from methods.parts.lookup.suffix_automaton import SuffixAutomaton
from methods.parts.trees.tree_shape import TreeShape
from methods.sam.static_automaton import StaticAutomaton, build_automaton
from specbench.method import Drafter, Method
from specbench.models.facade import ModelCard, Target
from specbench.models.load import locate_file
from specbench.types import EMPTY, Draft, InputError, Needs, Prefill, Step, require_count, require_nodes

DYNAMIC, STATIC, AUXILIARY = 0, 1, 2
ROOM = 4096  # [tokens] of answer before the dynamic automaton must move


class _Matcher(Drafter):
    """Both automata hold the context without its root, which is what the root then extends a match of."""

    def __init__(self, method: SAM, prompt: Sequence[int]) -> None:
        self._method = method
        self._dynamic = SuffixAutomaton(len(prompt) + ROOM)
        self._state, self._matched = 0, 0  # of the static automaton
        self._take(prompt)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method, root = self._method, context[-1]
        self._take(context[len(self._dynamic) : -1])
        aided = method.tree is not None
        matched, end = self._dynamic.peek(root, method.n_predicts if aided else 0)
        state, corpus_matched = 0, 0
        if method.static is not None:
            state, corpus_matched = method.static.walk(self._state, self._matched, [root])
        corpus_matched -= method.len_bias
        longest = max(matched, corpus_matched)
        if method.auxiliary is not None and longest < method.len_threshold:
            found = method.auxiliary.draft(root)
            return replace(found, source=[AUXILIARY] * len(found))
        count = min(budget, method.length(longest))
        if matched >= corpus_matched:
            tokens = context[end : min(end + count, len(context) - 1)]
            return Draft.chain(tokens, DYNAMIC) if tokens else EMPTY
        assert method.static is not None
        if aided:
            return Draft.chain(method.static.following(state, count), STATIC)
        tokens, parents = method.static.tree(state, count, method.children)
        return Draft(tokens, parents, source=[STATIC] * len(tokens))

    def observe(self, step: Step) -> None:
        if self._method.auxiliary is not None and step.fed is not None and step.topk is not None:
            self._method.auxiliary.learn(step.fed, step.topk)

    def _take(self, tokens: Sequence[int]) -> None:
        self._dynamic.extend(tokens)
        if self._method.static is not None:
            self._state, self._matched = self._method.static.walk(self._state, self._matched, tokens)


class SAM(Method):
    """n_predicts: tokens of a draft, the root among them. alpha: without an auxiliary, a match of L tokens drafts at
    most int(alpha * L). children: of a node, and nodes of a level, in the static automaton's tree.

    static: file of an automaton built by specbench build automaton. len_bias: taken off its matches. auxiliary:
    token_recycling | none; it drafts where no match has len_threshold tokens. tree, k: of Token Recycling.
    """

    learned = ("auxiliary",)

    sources = ("dynamic", "static", "auxiliary")

    def __init__(
        self,
        n_predicts: int = 40,
        alpha: float = 4.0,
        children: int = 8,
        static: str | None = None,
        len_bias: int = 0,
        auxiliary: Literal["none", "token_recycling"] = "none",
        len_threshold: int = 5,
        tree: list[list[int]] | None = None,
        k: int = 8,
    ) -> None:
        require_count("n_predicts", n_predicts, low=2)
        require_count("children", children)
        require_count("len_bias", len_bias, low=0)
        require_count("len_threshold", len_threshold)
        require_count("k", k)
        if not 0 < alpha < float("inf"):
            raise InputError(f"alpha={alpha}: expected a number above 0")
        if (auxiliary == "none") != (tree is None):
            raise InputError(
                f"tree: {'not set' if tree is None else 'set'} with auxiliary={auxiliary}; expected child counts"
                " with auxiliary=token_recycling only (method sam_token_recycling has both)"
            )
        self.n_predicts, self.alpha, self.children = n_predicts, alpha, children
        self.len_bias, self.len_threshold = len_bias, len_threshold
        self.tree, self.k = None if tree is None else TreeShape.from_counts(tree, k), k
        self.auxiliary: RecyclingMatrix | None = None
        self.static: StaticAutomaton | None = None
        self._path = locate_file(static) if static else None

    @property
    def needs(self) -> Needs:
        """Top-k of every row for the auxiliary; nothing without."""
        return Needs() if self.tree is None else Needs(node_topk=self.k, prompt_topk=self.k)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The static automaton's file."""
        return (self._path,) if self._path else ()

    def check(self, model: ModelCard) -> None:
        """Read the static automaton: it must be of the target's tokenizer and ranked for as many children."""
        if self._path is None:
            return
        self.static = StaticAutomaton.load(Path(self._path), len(model.tokenizer), "static")
        if self.children > self.static.ranked:
            raise InputError(
                f"children={self.children}: {self._path} ranks {self.static.ranked} a state; expected no"
                f" more, or build it anew with --ranked {self.children}"
            )

    def bind(self, target: Target) -> None:
        """Compile, so that no request does; allocate the auxiliary's table."""
        automaton, corpus = SuffixAutomaton(), build_automaton([np.arange(2)], None, 0, 1)
        automaton.extend([0, 1])
        automaton.peek(0)
        corpus.tree(corpus.walk(0, 0, [0])[0], 1, 1)
        if self.tree is not None:
            require_nodes("tree", len(self.tree), target.max_nodes)
            self.auxiliary = RecyclingMatrix(self.tree, self.k, "last", target.vocab_size, target.device)

    def reset(self) -> None:
        """Forget what the auxiliary learned; an automaton of the context ends with its request."""
        if self.auxiliary is not None:
            self.auxiliary.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Match and append the prompt."""
        if self.auxiliary is not None and prefill.topk is not None:
            self.auxiliary.learn_prompt(prompt, prefill.topk)
        return _Matcher(self, prompt)

    def length(self, matched: int) -> int:
        """Most nodes to draft for a match; the reference counts the root too."""
        return (self.n_predicts if self.tree else min(self.n_predicts, 1 + int(self.alpha * matched))) - 1

    def state_bytes(self) -> int:
        """Bytes of the static automaton and of the auxiliary's table."""
        static = self.static.nbytes() if self.static is not None else 0
        return static + (self.auxiliary.nbytes() if self.auxiliary is not None else 0)
