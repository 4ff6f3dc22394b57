"""Suffix arrays built in a thread of its own, one at a time, while requests are decoded."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from methods.parts.lookup.suffix_array import SuffixArray

log = logging.getLogger(__name__)


class Rebuilder:
    """``start`` a build, ``take`` its result later. The library that sorts does not hold the interpreter's lock."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[SuffixArray] | None = None

    def start(self, tokens: np.ndarray) -> None:
        """Begin to build; ``tokens`` must not be written to any more."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "suffix-array")
        self._pending = self._pool.submit(SuffixArray.build, tokens)

    def take(self) -> SuffixArray | None:
        """What was started last, once; waits for it. None if nothing was. Raises RuntimeError if the build failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        try:
            return pending.result()
        except Exception as error:
            raise RuntimeError(f"the suffix array could not be rebuilt in the background: {error}") from error

    def drop(self) -> None:
        """Wait for what was started and forget it: no build runs on. A failure is logged."""
        try:
            self.take()
        except RuntimeError as error:
            log.warning("%s", error)

    def close(self) -> None:
        """End the thread."""
        self.drop()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
