"""Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding): copy what followed before.

The longest suffix of the context, at most ``max_ngram`` tokens, that occurred before; draft the tokens behind it.
Three rules differ in which occurrence is taken and what happens near the end (see docs/methods/pld.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from methods.parts.lookup.ngram import NgramIndex
from specbench.method import Drafter, Method
from specbench.types import EMPTY, Draft, Prefill, require_count

Rule = Literal["original", "hf", "recent"]


class _Lookup(Drafter):
    def __init__(self, max_ngram: int, num_draft: int, rule: Rule) -> None:
        self._max_ngram, self._num_draft, self._rule = max_ngram, num_draft, rule
        self._index = NgramIndex(max_ngram, keep_first=rule != "recent")

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._index.extend(context)
        length = len(context)
        for n in range(min(self._max_ngram, length - 1), 0, -1):
            start = self._index.find(context[length - n :])
            if start is None:
                continue
            end = min(start + self._num_draft, length)
            # The original drops a match with too short a tail and goes on to a shorter n-gram; its earliest match is
            # the only one to look at, since later ones have shorter tails still.
            if self._rule == "original" and (start + self._num_draft > length or start >= length - n):
                continue
            return Draft.chain(context[start : min(end, start + budget)], source=0)
        return EMPTY


class PromptLookup(Method):
    """max_ngram: longest suffix looked up. num_draft: tokens copied. rule: original | hf | recent."""

    sources = ("context",)

    def __init__(self, max_ngram: int = 3, num_draft: int = 10, rule: Rule = "original") -> None:
        require_count("max_ngram", max_ngram)
        require_count("num_draft", num_draft)
        self.max_ngram, self.num_draft, self.rule = max_ngram, num_draft, rule

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The index is the request's own: nothing outlives it."""
        return _Lookup(self.max_ngram, self.num_draft, self.rule)
