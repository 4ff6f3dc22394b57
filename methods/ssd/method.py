"""Spacelike speculative decoding, SSD (TitanML's Takeoff, a blog post): draft from all requests served so far.

Finished requests, prompt and answer, go to one ring buffer; a suffix array of it, rebuilt now and then, finds where the
last tokens occurred before. The most frequent continuation there is the draft.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np

from methods.parts.lookup.suffix_array import SuffixArray
from methods.parts.lookup.suffix_kernels import END
from methods.ssd.rebuilder import Rebuilder
from methods.ssd.token_ring import TokenRing
from specbench.method import Drafter, Method
from specbench.target.facade import Target
from specbench.types import EMPTY, Draft, Prefill, require_count

CACHE, RANDOM = 0, 1


class _Reader(Drafter):
    def __init__(self, method: Spacelike, seed: int) -> None:
        self._method = method
        self._array = method.array  # the request's own to its end, whatever is built meanwhile
        self._random = random.Random(seed)
        self._start = {
            "cached_tokens": float(len(method.ring)),
            "indexed_tokens": float(len(method.array)),
            "stale_requests": float(method.finished - method.indexed),
        }
        self._steps = self._matched = self._tokens = self._found = 0
        self._rebuild_s = 0.0

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        length = min(budget, method.draft_length)
        chain = self._array.vote(
            context[-method.query_length :],
            method.min_query,
            length,
            method.max_matches,
            self._random.getrandbits(31),
            method.vote == "whole",
        )
        self._steps += 1
        if not chain.matched:
            return self._unseen(length)
        self._matched += 1
        self._tokens += chain.matched
        self._found += chain.found
        return Draft(chain.tokens, chain.parents, source=[CACHE] * len(chain.tokens), score=chain.scores)

    def _unseen(self, length: int) -> Draft:
        if self._method.unseen == "none":
            return EMPTY
        return Draft.chain([self._random.randrange(self._method.vocab) for _ in range(length)], source=RANDOM)

    def finish(self, context: Sequence[int]) -> None:
        start = time.perf_counter()
        self._method.remember(context)
        self._rebuild_s = time.perf_counter() - start

    def stats(self) -> dict[str, float]:
        """At the request's start: cached_tokens, indexed_tokens of these in the array, stale_requests not in it.

        matched_steps: share of steps with a match; query_tokens, matches: means of these. rebuild_ms: spent at the end.
        """
        figures = {**self._start, "rebuild_ms": 1000 * self._rebuild_s}
        figures["matched_steps"] = self._matched / self._steps if self._steps else 0.0
        if self._matched:
            figures["query_tokens"] = self._tokens / self._matched
            figures["matches"] = self._found / self._matched
        return figures


class Spacelike(Method):
    """query_length, min_query: suffixes looked up, longest first [tokens]. draft_length: tokens drafted.

    max_matches: occurrences that vote, an even share of more. vote: whole (continuations as a whole, the source's) |
    prefix (token by token). rebuild_every: finished requests between two builds of the suffix array. rebuild: inline
    (at the request's end) | background (in a thread; taken into use when the next build is due). buffer_tokens: the
    ring's size. unseen: none | random (tokens drafted where not even the last one was seen).
    """

    sources = ("cache", "random")

    def __init__(
        self,
        query_length: int = 10,
        min_query: int = 1,
        draft_length: int = 10,
        max_matches: int = 1000,
        vote: Literal["whole", "prefix"] = "whole",
        rebuild_every: int = 1,
        rebuild: Literal["inline", "background"] = "inline",
        buffer_tokens: int = 2**22,
        unseen: Literal["none", "random"] = "none",
    ) -> None:
        for name, value, low in (
            ("min_query", min_query, 1),
            ("query_length", query_length, min_query),
            ("draft_length", draft_length, 1),
            ("max_matches", max_matches, 1),
            ("rebuild_every", rebuild_every, 1),
            ("buffer_tokens", buffer_tokens, 2),
        ):
            require_count(name, value, low)
        self.query_length, self.min_query, self.draft_length = query_length, min_query, draft_length
        self.max_matches, self.vote, self.unseen = max_matches, vote, unseen
        self.rebuild_every, self.rebuild = rebuild_every, rebuild
        self.ring = TokenRing(buffer_tokens)
        self.vocab = 0
        self._rebuilder = Rebuilder()
        self.reset()

    def bind(self, target: Target) -> None:
        """Compile the queries before the clock runs."""
        self.vocab = target.vocab_size
        SuffixArray.build(np.array([1, 2, END], np.int32)).vote([1], 1, 1, 1)

    def reset(self) -> None:
        """Empty the buffer, the suffix array and what is being built."""
        self._rebuilder.drop()
        self.ring.clear()
        self.array = SuffixArray.build(np.zeros(0, np.int32))
        self.finished = self.indexed = self._building = 0

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The request itself is in the buffer only when it has ended."""
        return _Reader(self, seed)

    def remember(self, context: Sequence[int]) -> None:
        """A request ended: into the buffer, and into the array when a build is due."""
        self.ring.write([*context, END])
        self.finished += 1
        if self.finished % self.rebuild_every:
            return
        if self.rebuild == "inline":
            self.array, self.indexed = SuffixArray.build(self.ring.snapshot()), self.finished
            return
        built = self._rebuilder.take()
        if built is not None:
            self.array, self.indexed = built, self._building
        self._rebuilder.start(self.ring.snapshot())
        self._building = self.finished

    def state_bytes(self) -> int:
        """Bytes of the buffer and of the suffix array with its own copy of it."""
        return self.ring.nbytes() + self.array.nbytes()

    def close(self) -> None:
        """End the thread that builds."""
        self._rebuilder.close()
