"""Spacelike speculative decoding, SSD (TitanML's Takeoff, a blog post): draft from all requests served so far.

Finished requests, prompt and answer, go to one ring buffer; a suffix array of it, rebuilt now and then, finds where the
last tokens occurred before. The most frequent continuation there is the draft.
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

from methods.parts.parameters import Parameters, count
from methods.parts.suffix_array import END, MatchCounts, SuffixArray
from specbench.method import Drafter, Method
from specbench.models.facade import Target
from specbench.types import EMPTY, Draft, Prefill, require_count

log = logging.getLogger(__name__)

CACHE, RANDOM = 0, 1  # sources


class TokenRing:
    """A ring buffer of tokens.

    capacity: the most tokens stored [tokens]; memory is taken as they come.
    """

    def __init__(self, capacity: int) -> None:
        self._tokens = np.empty(capacity, np.int32)
        self.clear()

    def __len__(self) -> int:
        return min(self._written, len(self._tokens))

    def write(self, tokens: Sequence[int]) -> None:
        """Append; of more than fit, the last ones."""
        capacity = len(self._tokens)
        new = np.array(tokens[-capacity:], np.int32)
        start = (self._written + len(tokens) - len(new)) % capacity
        before = min(len(new), capacity - start)
        self._tokens[start : start + before] = new[:before]
        self._tokens[: len(new) - before] = new[before:]
        self._written += len(tokens)

    def snapshot(self) -> np.ndarray:
        """(len,) int32 copy, oldest first: where the ring wraps around, nothing is joined that did not follow."""
        seam = self._written % len(self._tokens) if self._written > len(self._tokens) else 0
        return np.concatenate([self._tokens[seam : len(self)], self._tokens[:seam]])

    def clear(self) -> None:
        """Forget everything."""
        self._written = 0

    def nbytes(self) -> int:
        """Bytes of the stored tokens."""
        return len(self) * self._tokens.itemsize


class Rebuilder:
    """``start`` a build, ``take`` its result later. The library that sorts does not hold the interpreter's lock."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[SuffixArray] | None = None

    def start(self, tokens: np.ndarray) -> None:
        """Begin to build; ``tokens`` must not be written to any more."""
        self._pool = self._pool or ThreadPoolExecutor(1, "suffix-array")
        self._pending = self._pool.submit(SuffixArray.build, tokens)

    def take(self) -> SuffixArray | None:
        """Waits for the build that was started last; returns it once, then None. Raises RuntimeError if it failed."""
        pending, self._pending = self._pending, None
        try:
            return pending.result() if pending else None
        except Exception as error:
            raise RuntimeError(f"the suffix array could not be rebuilt in the background: {error}") from error

    def close(self) -> None:
        """End the thread, and forget what was started: no build runs on. A failure is logged."""
        try:
            self.take()
        except RuntimeError as error:
            log.warning("%s", error)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


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
            return Draft(chain.tokens, chain.parents, source=[CACHE] * len(chain.tokens), score=chain.scores)
        if method.unseen == "none":
            return EMPTY
        return Draft.chain([self._random.randrange(method.vocab) for _ in range(length)], source=RANDOM)

    def finish(self, context: Sequence[int]) -> None:
        start = time.perf_counter()
        self._method.remember(context)
        self._rebuild_s = time.perf_counter() - start

    def stats(self) -> dict[str, float]:
        """At the request's start: cached_tokens, indexed_tokens of these in the array, stale_requests not in it.

        rebuild_ms: spent at the end. The others: see ``MatchCounts``.
        """
        return {**self._start, "rebuild_ms": 1000 * self._rebuild_s, **self._counts.stats()}


@dataclass(eq=False)
class Spacelike(Parameters, Method):
    """Spacelike decoding; conf/method/ssd.yaml describes the parameters."""

    learned = ("ring",)
    sources = ("cache", "random")

    query_length: int = 10
    min_query: int = count(1)
    draft_length: int = count(10)
    max_matches: int = count(1000)
    vote: Literal["whole", "prefix"] = "whole"
    rebuild_every: int = count(1)
    rebuild: Literal["inline", "background"] = "inline"
    buffer_tokens: int = count(2**22, low=2)
    unseen: Literal["none", "random"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("query_length", self.query_length, low=self.min_query)
        self.ring = TokenRing(self.buffer_tokens)
        self.vocab = 0
        self._rebuilder = Rebuilder()
        self.reset()

    def bind(self, target: Target) -> None:
        """Compile the queries before the clock runs."""
        self.vocab = target.vocab_size
        SuffixArray.build(np.array([1, 2, END], np.int32)).vote([1], 1, 1, 1)

    def reset(self) -> None:
        """Empty the buffer, the suffix array and what is being built."""
        self._rebuilder.close()
        self.ring.clear()
        self.array = SuffixArray.build(np.zeros(0, np.int32))
        self.finished = self.indexed = self._building = 0

    def private(self) -> Method | None:
        """See ``Method.private``; one thread builds one array."""
        return None if self.rebuild == "background" else super().private()

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
