"""Speculative sampling with a draft model (Leviathan et al. 2023; Chen et al. 2023): a small model drafts a chain.

The draft proposes its argmax tokens, so the chain is deterministic and the walker's sample-and-match is exact at every
temperature (docs/methods/speculative_sampling.md says what that costs at T > 0). Draft length: fixed, or the heuristic
of Hugging Face's assisted generation that Spec-Bench's SpS row uses: +2 when all were accepted, else -1, at least 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from methods.parts.draft_lm import DraftLM, DraftRequest, read_draft_card
from specbench.method import Drafter, Method
from specbench.target.cache import SlotCache
from specbench.target.facade import ModelCard, Target
from specbench.types import Draft, InputError, Prefill, Step

Schedule = Literal["fixed", "heuristic"]


class _DraftModel(Drafter):
    def __init__(self, method: SpeculativeSampling, request: DraftRequest) -> None:
        self._method, self._request = method, request
        self._length, self._schedule, self._eos = method.length, method.schedule, method.eos
        self._settled = 0
        self._proposed = 0
        self._lengths: list[int] = []

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        count = min(self._length, budget)
        self._request.reserve(len(context) + count)
        row = self._request.feed(context, self._settled)
        self._settled = len(context)
        tokens = [int(row.argmax())]
        while len(tokens) < count and tokens[-1] not in self._eos:
            tokens.append(int(self._request.step(tokens[-1]).argmax()))
        self._proposed = len(tokens)
        self._lengths.append(len(tokens))
        return Draft.chain(tokens, source=0)

    def observe(self, step: Step) -> None:
        if self._schedule == "heuristic":
            matched = len(step.path) == self._proposed
            self._length = self._length + 2 if matched else max(1, self._length - 1)

    def finish(self, context: Sequence[int]) -> None:
        self._method.free.append(self._request.cache)

    def stats(self) -> dict[str, float]:
        return {"mean_draft_length": sum(self._lengths) / len(self._lengths)} if self._lengths else {}


class SpeculativeSampling(Method):
    """draft: hub id or folder of the draft model. length: tokens drafted at first. schedule: fixed | heuristic.

    dtype, device: of the draft; default the target's.
    """

    sources = ("draft model",)

    def __init__(
        self,
        draft: str | None,
        length: int = 5,
        schedule: Schedule = "heuristic",
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        if length < 1:
            raise InputError(f"length={length}: expected a whole number of at least 1")
        self.draft, self.length, self.schedule = draft, length, schedule
        self._dtype, self._device = dtype, device
        self._card: ModelCard | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The draft model."""
        return (self._card.path,) if self._card else ()

    def check(self, model: ModelCard) -> None:
        """The draft must speak the target's vocabulary."""
        self._card = read_draft_card(self.draft, model, self._dtype, self._device)

    def bind(self, target: Target) -> None:
        """Load the draft's weights."""
        if self._card is None:
            self.check(target.card)
        assert self._card is not None
        self._lm = DraftLM(self._card)
        self._vocab, self.eos = target.vocab_size, target.eos
        self.free: list[SlotCache] = []  # buffers of finished requests: allocated once, their content forgotten

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Start from an empty cache."""
        cache = self.free.pop() if self.free else self._lm.new_cache()
        return _DraftModel(self, DraftRequest(self._lm, cache, self._vocab))
