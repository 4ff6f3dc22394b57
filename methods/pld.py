"""Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding): draft what
followed before.

The longest suffix of the context, of at most ``max_ngram`` tokens, that occurred before; draft the
tokens after it. The rules differ in which occurrence is taken and what happens near the end (see
docs/methods/pld.md); that of llama.cpp's n-gram cache drafts token by token, what most often
followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from methods.parts.ngrams import Gram, NgramIndex
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.types import EMPTY, Draft, InputError, Prefill, require_count

# Of llama.cpp's n-gram cache, for n-grams of 1 to 4 tokens: how often one must have occurred, and
# in how many percent of these its most frequent continuation must have followed.
LEAST_COUNT = (2, 2, 1, 1)
LEAST_PERCENT = (66, 50, 50, 50)


class _Lookup(Drafter):
    def __init__(self, method: PromptLookup) -> None:
        self._method = method
        first = method.rule in ("original", "hf")
        self._index = NgramIndex(method.max_ngram, keep_first=first, min_ngram=method.min_ngram)
        self._unseen = int(method.rule == "ngram_simple")  # tokens at the end that are not copied

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        end = len(context) - self._unseen
        self._index.extend(context, end)
        for n in range(min(method.max_ngram, len(context) - 1), method.min_ngram - 1, -1):
            start = self._index.find(context[len(context) - n :])
            if start is not None and self._allows(n, start, end):
                return Draft.chain(
                    context[start : min(start + min(method.num_draft, budget), end)], source=0
                )
        return EMPTY

    def _allows(self, n: int, start: int, end: int) -> bool:
        """Returns whether the tokens of a match of ``n`` from ``start`` on are copied.

        The original drops a match with too short a tail and tries a shorter n-gram; its earliest
        match is the only one to look at, since later ones have shorter tails still. llama.cpp's
        latest match needs a tail of n tokens, and does not look at the context's first token, nor
        at a context with no room for a whole draft.
        """
        method = self._method
        if method.rule == "original":
            return start + method.num_draft <= end and start < end - n
        if method.rule == "ngram_simple":
            return (
                start > n
                and min(method.num_draft, end - start) >= n
                and end > n + method.num_draft + 1
            )
        return True


class _Counts(Drafter):
    def __init__(self, method: PromptLookup) -> None:
        self._method = method
        self._followers: dict[Gram, dict[int, int]] = {}
        self._seen = 0

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        for place in range(self._seen, len(context)):  # what the context has grown by
            for n in range(method.min_ngram, min(method.max_ngram, place) + 1):
                followers = self._followers.setdefault(tuple(context[place - n : place]), {})
                followers[context[place]] = followers.get(context[place], 0) + 1
        self._seen = len(context)
        text = list(context[-method.max_ngram :])
        known = len(text)
        while len(text) - known < min(method.num_draft, budget):
            token = self._next(text)
            if token is None:
                break
            text.append(token)
        return Draft.chain(text[known:], source=0)

    def _next(self, text: Sequence[int]) -> int | None:
        """Returns the most frequent follower of the longest suffix with enough followers; of equals
        the first seen.
        """
        for n in range(min(self._method.max_ngram, len(text)), self._method.min_ngram - 1, -1):
            followers = self._followers.get(tuple(text[-n:]), {})
            total, most = sum(followers.values()), max(followers.values(), default=0)
            if total >= LEAST_COUNT[n - 1] and 100 * most >= LEAST_PERCENT[n - 1] * total:
                return max(followers, key=followers.__getitem__)
        return None


@dataclass(eq=False)
class PromptLookup(Parameters, Method):
    """Prompt lookup decoding; conf/method/pld.yaml describes the parameters."""

    sources = ("context",)

    max_ngram: int = count(3)
    num_draft: int = count(10)
    rule: Literal["original", "hf", "recent", "ngram_simple", "ngram_cache"] = "original"
    min_ngram: int = count(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("min_ngram", self.min_ngram, high=self.max_ngram)
        if self.rule == "ngram_cache" and self.max_ngram > len(LEAST_COUNT):
            raise InputError(
                f"max_ngram={self.max_ngram}: expected at most {len(LEAST_COUNT)} with"
                " rule=ngram_cache"
            )

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Index and counts are the request's own: nothing outlives it."""
        return _Counts(self) if self.rule == "ngram_cache" else _Lookup(self)
