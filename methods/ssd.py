"""Spacelike speculative decoding, SSD (TitanML's Takeoff, a blog post): draft from all requests
served so far.

Finished requests, prompt and answer, go to one ring buffer; a suffix array of it, rebuilt now and
then, finds where the last tokens occurred before. The most frequent continuation there is the
draft.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from methods.parts.parameters import KEPT, Parameters, count
from methods.parts.suffix_array import END, MatchCounts, SuffixArray
from specbench.method import Drafter, Method
from specbench.models.facade import Target
from specbench.types import EMPTY, Draft, Prefill, require_count

log = logging.getLogger(__name__)

CACHE, RANDOM = 0, 1  # sources


class _Reader(Drafter):
    def __init__(self, method: Spacelike, seed: int) -> None:
        self._method = method
        self._array = method.array  # the request's own to its end, whatever is built meanwhile
        self._random = random.Random(seed)
        self._start = {
            "cached_tokens": float(len(method.tokens)),
            "indexed_tokens": float(len(method.array)),
            "stale_requests": float(method.finished - method.indexed),
        }
        self._counts = MatchCounts()
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
        self._counts.add(chain)
        if chain.matched:
            return chain.to_draft(CACHE)
        if method.unseen == "none":
            return EMPTY
        return Draft.chain(
            [self._random.randrange(method.vocab) for _ in range(length)], source=RANDOM
        )

    def finish(self, context: Sequence[int]) -> None:
        start = time.perf_counter()
        self._method.remember(context)
        self._rebuild_s = time.perf_counter() - start

    def stats(self) -> dict[str, float]:
        """At the request's start: cached_tokens, indexed_tokens of these in the array,
        stale_requests not in it.

        rebuild_ms: spent at the end. The others: see ``MatchCounts``.
        """
        return {**self._start, "rebuild_ms": 1000 * self._rebuild_s, **self._counts.stats()}


@dataclass(eq=False)
class Spacelike(Parameters, Method):
    """Spacelike decoding; conf/method/ssd.yaml describes the parameters."""

    learned = ("tokens",)
    sources = ("cache", "random")

    query_length: int = count(10)
    min_query: int = count(1)
    draft_length: int = count(10)
    max_matches: int = count(1000, high=KEPT)
    vote: Literal["whole", "prefix"] = "whole"
    rebuild_every: int = count(1, high=KEPT)
    rebuild: Literal["inline", "background"] = "inline"
    buffer_tokens: int = count(2**22, low=2, high=KEPT)
    unseen: Literal["none", "random"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("query_length", self.query_length, low=self.min_query)
        self.vocab = 0
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[SuffixArray] | None = None  # the build that was started last
        self.reset()

    def bind(self, target: Target) -> None:
        """Compile the queries before the clock runs."""
        self.vocab = target.vocab_size
        SuffixArray.build(np.array([1, 2, END], np.int32)).vote([1], 1, 1, 1).to_draft(CACHE)

    def reset(self) -> None:
        self.close()
        # of finished requests, the oldest first; replaced, never written to
        self.tokens = np.zeros(0, np.int32)
        self.array = SuffixArray.build(self.tokens)
        self.finished = self.indexed = self._building = 0

    def private(self) -> Method | None:
        """Return a copy with its own tokens; None with a background build, which one thread makes
        for one array.
        """
        return None if self.rebuild == "background" else super().private()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The request itself is in the buffer only when it has ended."""
        return _Reader(self, seed)

    def remember(self, context: Sequence[int]) -> None:
        """A request ended: into the buffer, and into the array when a build is due."""
        self.tokens = np.concatenate([self.tokens, np.array([*context, END], np.int32)])[
            -self.buffer_tokens :
        ]
        self.finished += 1
        if self.finished % self.rebuild_every:
            return
        if self.rebuild == "inline":
            self.array, self.indexed = SuffixArray.build(self.tokens), self.finished
            return
        built = self._take_built()
        if built is not None:
            self.array, self.indexed = built, self._building
        # sorting does not hold the interpreter's lock
        self._pool = self._pool or ThreadPoolExecutor(1, "suffix-array")
        self._pending, self._building = (
            self._pool.submit(SuffixArray.build, self.tokens),
            self.finished,
        )

    def _take_built(self) -> SuffixArray | None:
        """Waits for the pending build, if there is one, and returns its array. Raises RuntimeError
        if it failed.
        """
        pending, self._pending = self._pending, None
        try:
            return pending.result() if pending else None
        except Exception as error:
            raise RuntimeError(
                f"the suffix array could not be rebuilt in the background: {error}"
            ) from error

    def state_bytes(self) -> int:
        """Bytes of the buffer and of the suffix array with its own copy of it."""
        return self.tokens.nbytes + self.array.nbytes()

    def close(self) -> None:
        """End the thread that builds, after its pending build. A failure of that is logged."""
        try:
            self._take_built()
        except RuntimeError as error:
            log.warning("%s", error)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
