"""Vanilla autoregressive decoding: the shared loop with an empty draft, the denominator of every
speedup.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbench.method import Drafter, Method
from specbench.types import EMPTY, Draft, Prefill


class _NoDraft(Drafter):
    def propose(self, context: Sequence[int], budget: int) -> Draft:
        return EMPTY


class Vanilla(Method):
    """One token a forward."""

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return _NoDraft()
