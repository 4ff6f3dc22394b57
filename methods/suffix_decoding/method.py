"""SuffixDecoding (Oliaro et al. 2024; code: ArcticInference): what most often followed, here and in all answers.

Two suffix trees count how often every string occurred: a local one of the request's prompt and answer, a global one of
all answers. Every end of the context that a tree holds proposes its likeliest continuation, the longer the match the
more of it; the one with the highest sum of estimated probabilities is the draft (section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from methods.suffix_decoding.suffix_tree import Limits, SuffixTree, Text, Ties
from specbench.method import Drafter, Method
from specbench.models.facade import Target
from specbench.types import EMPTY, Draft, InputError, Prefill, require_count

LOCAL, GLOBAL = 0, 1
ROOM = 4096  # [tokens] of answer before the local tree must move


class _Request(Drafter):
    def __init__(self, method: SuffixDecoding, prompt: Sequence[int]) -> None:
        self._limits, self._depth, self._answers = method.limits, method.limits.depth, method.answers
        self._local = SuffixTree(self._depth, len(prompt) + ROOM, method.ties)
        self._text, self._answer = Text(), Text()
        self._local.extend(self._text, prompt)
        self._taken = len(prompt)
        self._stats = {"cached_tokens": float(method.held)} if self._answers is not None else {}
        if self._answers is not None:
            method.admit(self._answer)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._take(context)
        limits = self._limits if budget >= self._limits.nodes else self._limits._replace(nodes=budget)
        recent = context[-self._depth :]
        best, source = self._local.likeliest(self._text, recent, limits), LOCAL
        if self._answers is not None:
            other = self._answers.likeliest(self._answer, recent, limits)
            if other.beats(best):
                best, source = other, GLOBAL
        if not best.tokens:
            return EMPTY
        return Draft(best.tokens, best.parents, source=[source] * len(best.tokens), score=best.given_parents())

    def finish(self, context: Sequence[int]) -> None:
        self._take(context)

    def stats(self) -> dict[str, float]:
        return self._stats

    def _take(self, context: Sequence[int]) -> None:
        new = context[self._taken :]
        self._taken = len(context)
        self._local.extend(self._text, new)
        if self._answers is not None and self._answer in self._answers.texts:  # not evicted meanwhile
            self._answers.extend(self._answer, new)


class SuffixDecoding(Method):
    """num_draft: most nodes of a draft. factor, offset: a match of m tokens drafts at most factor * m + offset.

    min_prob: least estimated probability of a node given its match. depth: longest string counted [tokens].
    shape: path (the likeliest child each time) | tree (best first). global_tree: whether answers are remembered.
    cached_requests: answers it holds; the oldest goes first. ties: of children with equal counts the one that occurred
    last (recent), or the first of the reference's list of siblings.
    """

    learned = ("answers",)

    sources = ("local", "global")

    def __init__(
        self,
        num_draft: int = 16,
        factor: float = 1.0,
        offset: float = 0.0,
        min_prob: float = 0.1,
        depth: int = 64,
        shape: Literal["path", "tree"] = "path",
        global_tree: bool = True,
        cached_requests: int = 100_000,
        ties: Ties = "recent",
    ) -> None:
        require_count("num_draft", num_draft)
        require_count("depth", depth, low=2)
        require_count("cached_requests", cached_requests)
        if not factor >= 0:
            raise InputError(f"factor={factor}: expected 0 or more, as longer matches may not draft less")
        if not 0 <= min_prob <= 1:
            raise InputError(f"min_prob={min_prob}: expected a probability, 0 to 1")
        if not factor * (depth - 1) + offset >= 1:
            raise InputError(
                f"offset={offset}: with factor={factor} and depth={depth} no match may draft a token; expected"
                f" factor * (depth - 1) + offset of at least 1"
            )
        self.limits = Limits(num_draft, float(factor), float(offset), float(min_prob), depth, shape == "tree")
        self.cached_requests, self.ties = cached_requests, ties
        self.answers = SuffixTree(depth, ties=ties) if global_tree else None

    def bind(self, target: Target) -> None:
        """Compile, so that no request does."""
        tree, text = SuffixTree(self.limits.depth, 1), Text()
        tree.extend(text, [0, 1, 0, 1, 0])
        tree.likeliest(text, [0, 1, 0], self.limits)
        tree.remove(text)

    def reset(self) -> None:
        """Forget all answers."""
        if self.answers is not None:
            self.answers = SuffixTree(self.limits.depth, ties=self.ties)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Count the prompt's strings in a tree of the request's own."""
        return _Request(self, [*prompt, prefill.token] if prefill.given else prompt)

    def admit(self, answer: Text) -> None:
        """Make an answer the newest of the global tree, and let the oldest go."""
        assert self.answers is not None
        self.answers.extend(answer, [])
        while len(self.answers.texts) > self.cached_requests:
            self.answers.remove(next(iter(self.answers.texts)))

    @property
    def held(self) -> int:
        """[tokens] of the answers in the global tree."""
        return sum(len(text.tokens) for text in self.answers.texts) if self.answers is not None else 0

    def state_bytes(self) -> int:
        """Bytes of the global tree."""
        return self.answers.nbytes() if self.answers is not None else 0
