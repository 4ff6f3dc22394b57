"""llama.cpp's ``ngram-map-k`` and ``ngram-map-k4v``: draft what followed an earlier occurrence of
the last n tokens.

Of each n-gram one place is kept, and how many tokens of its last draft were accepted: the next
draft is no longer. ``k4v`` counts the m-grams that followed, and drafts only where one of them is
frequent enough (github.com/ggml-org/llama.cpp, ``common/ngram-map.cpp`` and
``common/speculative.cpp``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from methods.parts.ngrams import Gram
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.types import EMPTY, Draft, Prefill, Step

SLOTS = 4  # m-grams that are counted after an n-gram
RATIO = 2  # how many times as often as the others together the most frequent one must have followed


@dataclass(slots=True)
class _Key:
    """What is known of an n-gram. hits: drafts requested after it. accepted: of the last draft, for
    each slot.

    counted: the place up to which ``followers``, the m-grams, are counted.
    """

    accepted: list[int]
    hits: int = 0
    counted: int = 0
    followers: Counter[Gram] = field(default_factory=Counter)


class _Lookup(Drafter):
    def __init__(self, method: NgramMap, prompt: int) -> None:
        self._method, self._prompt = method, prompt
        self._places: dict[Gram, int] = {}
        self._last = 0  # the last place that was looked at
        self._keys: dict[Gram, _Key] = {}
        self._used: tuple[_Key, int] | None = None

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method, count = self._method, len(context) - 1  # the server's context lacks the last token
        self._used = None
        if count < 2 * method.match + method.num_draft:
            return EMPTY
        self._take(context, count)
        gram = tuple(context[-method.match :])
        place = self._places.get(gram)
        if place is None:
            return EMPTY
        key = self._keys.setdefault(gram, _Key([method.num_draft] * SLOTS))
        key.hits += 1
        slot = self._frequent(context, gram, key, place) if method.counts else 0
        if slot is None:
            return EMPTY
        start, self._used = place + method.match, (key, slot)
        return Draft.chain(
            context[start : start + min(method.num_draft, key.accepted[slot], budget)], source=0
        )

    def observe(self, step: Step) -> None:
        if self._used:
            key, slot = self._used
            key.accepted[slot] = len(step.path)

    def _take(self, context: Sequence[int], count: int) -> None:
        """Keep places of n-grams that a complete draft follows: the prompt's from its end, then the
        answer's so.

        Places at the end of the prompt, with fewer tokens of it after them, are never kept.
        """
        n = self._method.match
        behind = n + self._method.num_draft + 1
        prompt = range(self._prompt - behind, self._last, -1)
        answer = range(count - behind, max(self._prompt, self._last), -1)
        for place in chain(prompt, answer):
            self._places.setdefault(tuple(context[place : place + n]), place)
        self._last = max(self._last, count - behind)

    def _frequent(self, context: Sequence[int], gram: Gram, key: _Key, place: int) -> int | None:
        """The slot of the m-gram that most often followed up to ``place``; None if others did too
        often.

        Counting starts again at the place where it ended, so what stands after ``place`` counts at
        every draft.
        """
        if key.hits < self._method.min_hits:
            return None
        n, m = len(gram), self._method.num_draft
        for start in range(key.counted, place + 1):
            if context[start] != gram[0] or tuple(context[start : start + n]) != gram:
                continue
            follower = tuple(context[start + n : start + n + m])
            if follower in key.followers or len(key.followers) < SLOTS:
                key.followers[follower] += 1
        key.counted = place
        counts = list(key.followers.values())
        best, others = max(counts), sum(counts) - max(counts)
        return None if others and best < RATIO * others else counts.index(best)


@dataclass(eq=False)
class NgramMap(Parameters, Method):
    """llama.cpp's ngram-map; conf/method/ngram_map_k.yaml describes the parameters."""

    sources = ("context",)

    match: int = count(12)
    num_draft: int = count(48)
    counts: bool = False
    min_hits: int = count(1)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Places and counts are the request's own: nothing outlives it."""
        return _Lookup(self, len(prompt))
