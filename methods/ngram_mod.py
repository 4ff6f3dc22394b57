"""llama.cpp's ``ngram-mod``: one table from an n-gram to the token that last followed it, shared by
all requests.

A draft is read from the table token by token, each from the n tokens before it, and is proposed
only if it gets long. The table takes in a context every 32 tokens, and is emptied when drafts fail
in a row (github.com/ggml-org/llama.cpp, ``common/ngram-mod.cpp`` and ``common/speculative.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from methods.parts.ngrams import Gram
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.types import EMPTY, Draft, Prefill, Step, require_count

BEHIND = 32  # [tokens] that a context may grow by before the table takes them in
# n-grams, a quarter of the server's slots: the table is emptied when a request finds more
FULL = 1 << 20
# the table is emptied after this many drafts in a row with a smaller share accepted
LOW, STREAK = 0.25, 5


class _Lookup(Drafter):
    def __init__(self, method: NgramMod, prompt: Sequence[int]) -> None:
        self._method = method
        self._taken = self._proposed = self._failed = 0
        self._take(prompt, len(prompt))
        if len(method.table) > FULL:
            method.table.clear()

    def _take(self, context: Sequence[int], count: int) -> None:
        """Enter the n-grams of the first ``count`` tokens that something follows, from where the
        last call ended.
        """
        n, end = self._method.match, count - self._method.match
        for start in range(self._taken, end):
            self._method.table[tuple(context[start : start + n])] = context[start + n]
        self._taken = max(self._taken, end)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method, count = self._method, len(context) - 1  # the server's cache lacks the last token
        self._proposed = 0
        if count < method.match:
            return EMPTY
        if self._taken + BEHIND < count:
            self._take(context, count)
        text = list(context[-method.match :])
        while len(text) - method.match < method.num_draft:
            token = method.table.get(tuple(text[-method.match :]))
            if token is None:
                break
            text.append(token)
        drafted = text[method.match :][:budget]
        if len(text) - method.match < method.min_draft:
            return EMPTY
        self._proposed = len(drafted)
        return Draft.chain(drafted, source=0)

    def observe(self, step: Step) -> None:
        if not self._proposed:
            return
        self._failed = self._failed + 1 if len(step.path) < LOW * self._proposed else 0
        if self._failed == STREAK:
            self._method.table.clear()
            self._failed = self._taken = 0


@dataclass(eq=False)
class NgramMod(Parameters, Method):
    """llama.cpp's ngram-mod; conf/method/ngram_mod.yaml describes the parameters."""

    sources = ("table",)
    learned = ("table",)

    match: int = count(24)
    num_draft: int = count(64)
    min_draft: int = count(48, low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("min_draft", self.min_draft, low=0, high=self.num_draft)

    def reset(self) -> None:
        self.table: dict[Gram, int] = {}

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """The table takes in the prompt; what requests enter stays."""
        return _Lookup(self, prompt)

    def state_bytes(self) -> int:
        """Of a table of as many 32-bit ids: the n-gram's and the next one."""
        return 4 * (self.match + 1) * len(self.table)
