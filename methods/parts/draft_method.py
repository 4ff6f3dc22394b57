"""Base classes of methods with a draft language model: any of them, and those that draft a chain
token by token.

The length of a chain is fixed; or follows the heuristic of Hugging Face's assisted generation that
Spec-Bench's SpS row uses (+2 when all were accepted, else -1, at least 1); or it ends where the
draft is unsure, as in that library now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.draft_lm import (
    DraftLM,
    DraftRequest,
    Sampler,
    TreeRequest,
    choose_token,
    read_draft_card,
)
from methods.parts.parameters import Parameters, count, number
from specbench.method import Drafter, Drafting, DraftLevel, Method, SharedDrafter
from specbench.models.facade import ModelCard, Target
from specbench.types import EMPTY, Draft, Prefill, Step


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """The target's properties for drafting. vocab: width of its logits. sampling: None is greedy.
    device: its own.
    """

    vocab: int
    eos: frozenset[int]
    sampling: Sampler | None
    device: torch.device

    @classmethod
    def of(cls, target: Target) -> TargetTraits:
        """The traits of a bound target."""
        return cls(target.vocab_size, target.eos, target.sampling, target.device)


@dataclass(eq=False)
class DraftModelMethod(Parameters, Method):
    """A method with a draft language model.

    draft: hub id or folder. dtype, device: of the draft; None = the target's.
    """

    sources = ("draft model",)

    draft: str | None
    _: KW_ONLY
    dtype: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._card: ModelCard | None = None
        self.sampling: Sampler | None = None
        self._note: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self._card.path,) if self._card else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the draft model lacks the target's attention, if it does."""
        return (self._note,) if self._note else ()

    def check(self, model: ModelCard) -> None:
        """The draft must have the target's vocabulary."""
        self._card = read_draft_card(self.draft, model, self.dtype, self.device)

    def bind(self, target: Target) -> None:
        assert self._card is not None
        self.adopt(DraftLM.load(self._card, target.attention), TargetTraits.of(target))

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """Draft with ``lm`` for a target; the distributions go to its device."""
        self.lm, self._target_device, self._note = lm, traits.device, lm.runner.note
        self.vocab, self.eos, self.sampling = traits.vocab, traits.eos, traits.sampling

    def chain(self) -> DraftRequest:
        """A request that drafts chains."""
        return DraftRequest(self.lm, self.vocab)

    def tree(self) -> TreeRequest:
        """A request that drafts trees."""
        return TreeRequest(self.lm, self.vocab)


@dataclass(eq=False)
class DrawingMethod(DraftModelMethod):
    """A method whose nodes are drawn from the draft's distribution at temperature > 0.

    draft_temperature: at which they are drawn; None = as the request samples, top-k and top-p
    included.
    """

    _: KW_ONLY
    draft_temperature: float | None = number(
        None, lambda value: 1e-3 <= value <= 1e3, "0.001 to 1000, or null for the request's"
    )

    def drawn_from(self, logits: Tensor) -> Tensor:
        """(m, v) logits of the draft -> (m, v) float32, the distribution that its nodes are drawn
        from.
        """
        if self.draft_temperature is not None:
            return (logits.float() / self.draft_temperature).softmax(-1)
        assert self.sampling is not None
        return self.sampling(logits)

    def pad_probs(self, probs: Tensor) -> Tensor:
        """(N, v) distributions -> (N, V) as ``Draft.probs``: on the target's device, and as wide as
        its logits.
        """
        return pad(probs, (0, self.vocab - probs.shape[-1])).to(self._target_device)

    def generator(self, seed: int) -> torch.Generator:
        """The drafter's own stream of random numbers, on the draft's device."""
        return torch.Generator(self.lm.device).manual_seed(seed)


class DraftChain(SharedDrafter):
    """One request's drafter: each draft is a chain that the draft model writes token by token."""

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
                ends |= self.goes_on is not None and not self.goes_on(
                    DraftLevel(len(tokens), math.prod(scores), law)
                )
            if len(tokens) == count or ends:
                break
            row = (yield self._request.stepping(tokens[-1]))[-1]
        self._proposed = len(tokens)
        self._lengths.append(len(tokens))
        probs = method.pad_probs(torch.stack(drawn_from)) if drawn_from else None
        chain: Any = tokens if reads else torch.stack(tokens)
        return Draft(
            chain, range(-1, len(tokens) - 1), probs, source=[0] * len(tokens), score=scores or None
        )

    def observe(self, step: Step) -> None:
        """Name the accepted tokens, which may still be on the device only, and adapt the length."""
        self._request.name(self._settled, step.emitted[: len(step.path)])
        if self._method.schedule == "heuristic" and self._proposed:
            matched = len(step.path) == self._proposed
            self._length = self._length + 2 if matched else max(1, self._length - 1)

    def stats(self) -> dict[str, float]:
        return (
            {"mean_draft_length": sum(self._lengths) / len(self._lengths)} if self._lengths else {}
        )


@dataclass(eq=False)
class ChainMethod(DrawingMethod):
    """A method whose draft model writes chains; conf/method/speculative_sampling.yaml describes the
    parameters.
    """

    length: int = count(5)
    schedule: Literal["fixed", "heuristic", "confidence"] = "heuristic"
    threshold: float = number(
        0.4, lambda value: 0 < value <= 1, "a probability above 0 and up to 1"
    )
    choice: Literal["drawn", "argmax"] = "drawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.draws = self.choice == "drawn"

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return DraftChain(self, seed)
