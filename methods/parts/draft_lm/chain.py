"""A chain that a draft model writes token by token, and when it ends.

Draft length: fixed; the heuristic of Hugging Face's assisted generation that Spec-Bench's SpS row uses (+2 when all
were accepted, else -1, at least 1); or until the draft is unsure, as that library does now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from methods.parts.draft_lm.draft_lm import choose_token
from methods.parts.draft_lm.draft_method import DraftModelMethod
from specbench.method import Drafter, Drafting, DraftLevel, SharedDrafter
from specbench.types import EMPTY, Draft, InputError, Prefill, Step, require_count

Schedule = Literal["fixed", "heuristic", "confidence"]


class DraftChain(SharedDrafter):
    def __init__(self, method: ChainMethod, seed: int) -> None:
        self._method, self._request = method, method.chain()
        self._length = method.length
        self._random = method.generator(seed)
        self._settled = 0
        self._proposed = 0
        self._lengths: list[int] = []

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        count = self._proposed = min(self._length, budget)
        if not count:
            return EMPTY
        method = self._method
        tokens: list[Any] = []
        drawn_from: list[Tensor] = []
        scores: list[float] = []
        distribution = method.drawn_from if method.sampling is not None and method.draws else None
        row = (yield self._request.feeding(context, self._settled))[-1]
        self._settled = len(context)
        asked = method.schedule == "confidence" or self.goes_on is not None
        reads = row.device.type == "cpu" or asked  # else a GPU drafts beyond an EOS
        while True:
            token = choose_token(row, distribution, self._random, drawn_from)
            tokens.append(int(token) if reads else token)
            ends = reads and tokens[-1] in method.eos
            if asked:
                law = drawn_from[-1] if drawn_from else row.float().softmax(-1)
                scores.append(float(law[tokens[-1]]))
                ends |= method.schedule == "confidence" and scores[-1] < method.threshold
                ends |= self.goes_on is not None and not self.goes_on(DraftLevel(len(tokens), math.prod(scores), law))
            if len(tokens) == count or ends:
                break
            row = (yield self._request.stepping(tokens[-1]))[-1]
        self._proposed = len(tokens)
        self._lengths.append(len(tokens))
        probs = method.pad_probs(torch.stack(drawn_from)) if drawn_from else None
        chain: Any = tokens if reads else torch.stack(tokens)
        return Draft(chain, range(-1, len(tokens) - 1), probs, source=[0] * len(tokens), score=scores or None)

    def observe(self, step: Step) -> None:
        self._request.name(self._settled, step.emitted[: len(step.path)])
        if self._method.schedule == "heuristic" and self._proposed:
            matched = len(step.path) == self._proposed
            self._length = self._length + 2 if matched else max(1, self._length - 1)

    def stats(self) -> dict[str, float]:
        return {"mean_draft_length": sum(self._lengths) / len(self._lengths)} if self._lengths else {}


class ChainMethod(DraftModelMethod):
    """draft: hub id or folder of the draft model. length: tokens drafted at first, with ``confidence`` at most.

    schedule: fixed | heuristic | confidence. threshold: with ``confidence``, the chain ends behind the first token that
    the draft gives less than this probability. choice at temperature > 0: drawn (from the draft's distribution, for the
    ratio test) | argmax (sample-and-match). dtype, device: of the draft; default the target's. draft_temperature: at
    which the draft samples; None = as the request does.
    """

    def __init__(
        self,
        draft: str | None,
        length: int = 5,
        schedule: Schedule = "heuristic",
        threshold: float = 0.4,
        choice: Literal["drawn", "argmax"] = "drawn",
        draft_temperature: float | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(draft, dtype, device, draft_temperature)
        require_count("length", length)
        if not 0 < threshold <= 1:
            raise InputError(f"threshold={threshold}: expected a probability above 0 and up to 1")
        self.length, self.schedule, self.threshold = length, schedule, threshold
        self.draws = choice == "drawn"

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Start from an empty cache. seed: of the tokens drawn."""
        return DraftChain(self, seed)
