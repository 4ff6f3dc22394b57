"""What every method with a draft language model shares: its card, its weights, its distribution, and buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.draft_lm.draft_lm import DraftLM, DraftRequest, Sampler, read_draft_card
from methods.parts.draft_lm.tree_lm import TreeRequest
from specbench.method import Method
from specbench.models.facade import ModelCard, Target
from specbench.types import InputError


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """What drafting needs of the target. vocab: width of its logits. sampling: None is greedy. device: its own."""

    vocab: int
    eos: frozenset[int]
    sampling: Sampler | None
    device: torch.device

    @classmethod
    def of(cls, target: Target) -> TargetTraits:
        """The traits of a bound target."""
        return cls(target.vocab_size, target.eos, target.sampling, target.device)


class DraftModelMethod(Method):
    """draft: hub id or folder. dtype, device: of the draft; None = the target's.

    temperature: at which nodes are drawn; None = as the request samples, top-k and top-p included.
    """

    sources: tuple[str, ...] = ("draft model",)
    sampling: Sampler | None = None

    def __init__(self, draft: str | None, dtype: str | None, device: str | None, temperature: float | None) -> None:
        if temperature is not None and not 1e-3 <= temperature <= 1e3:
            raise InputError(f"draft_temperature={temperature}: expected 0.001 to 1000, or null for the request's")
        self.draft, self.temperature = draft, temperature
        self._dtype, self._device = dtype, device
        self._card: ModelCard | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The draft model."""
        return (self._card.path,) if self._card else ()

    def check(self, model: ModelCard) -> None:
        """The draft must have the target's vocabulary."""
        self._card = read_draft_card(self.draft, model, self._dtype, self._device)

    def bind(self, target: Target) -> None:
        """Load the draft's weights."""
        self.adopt(DraftLM.load(self.card_for(target), target.attention), TargetTraits.of(target))

    def card_for(self, target: Target) -> ModelCard:
        """The draft's card, read now unless ``check`` has read it. Raises InputError."""
        if self._card is None:
            self.check(target.card)
        assert self._card is not None
        return self._card

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """Draft with ``lm`` for a target; the distributions go to its device."""
        self.lm, self._target_device = lm, traits.device
        self.vocab, self.eos, self.sampling = traits.vocab, traits.eos, traits.sampling

    def chain(self) -> DraftRequest:
        """A request that drafts chains."""
        return DraftRequest(self.lm, self.vocab)

    def tree(self) -> TreeRequest:
        """A request that drafts trees."""
        return TreeRequest(self.lm, self.vocab)

    def drawn_from(self, logits: Tensor) -> Tensor:
        """(m, v) logits of the draft -> (m, v) float32, the distribution that its nodes are drawn from."""
        if self.temperature is not None:
            return (logits.float() / self.temperature).softmax(-1)
        assert self.sampling is not None
        return self.sampling(logits)

    def pad_probs(self, probs: Tensor) -> Tensor:
        """(N, v) distributions -> (N, V) as ``Draft.probs``: on the target's device, and as wide as its logits."""
        return pad(probs, (0, self.vocab - probs.shape[-1])).to(self._target_device)

    def generator(self, seed: int) -> torch.Generator:
        """The drafter's own stream of random numbers, on the draft's device."""
        return torch.Generator(self.lm.device).manual_seed(seed)
