"""A draft language model with its own KV cache: follows the committed context, forgets what was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.target.cache import SlotCache
from specbench.target.facade import ModelCard
from specbench.target.load import load_model, read_card
from specbench.types import InputError


def read_draft_card(path: str | None, target: ModelCard, dtype: str | None, device: str | None) -> ModelCard:
    """The draft's card, checked to speak the target's vocabulary. Raises InputError before any weights are read."""
    if not path:
        raise InputError(f"draft: not set and model={target.name} names no usual draft; expected a hub id or folder")
    card = read_card(
        path=path, dtype=dtype or target.dtype, device=device or target.device, prefix="", path_key="draft"
    )
    ours, theirs = card.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        raise InputError(
            f"draft={path}: speaks another vocabulary than model={target.name}"
            f" ({len(ours)} against {len(theirs)} tokens, {differing} entries differ);"
            " expected a draft model with the target's own tokenizer"
        )
    return card


class DraftLM:
    """Holds the weights; ``DraftRequest`` holds one request's place in its context."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.model: Any = load_model(card)
        self.device: torch.device = self.model.get_input_embeddings().weight.device

    def new_cache(self) -> SlotCache:
        """An empty cache of the model's shape."""
        return SlotCache.for_model(self.model)


class DraftRequest:
    """One request's walk of a draft model behind the committed context."""

    def __init__(self, lm: DraftLM, cache: SlotCache, vocab: int) -> None:
        """vocab: [tokens] of the target's logits; rows are cut to it, since models of a family differ in padding."""
        self._lm, self.cache, self._vocab = lm, cache, vocab
        self._held: list[int] = []  # the tokens whose keys and values are in the cache
        cache.truncate(0)

    @torch.inference_mode()
    def feed(self, context: Sequence[int], settled: int) -> Tensor:
        """Bring the cache to ``context`` and return the last row's logits (V,).

        settled: [tokens] of the context known to be in the cache unchanged (comparison starts there).
        """
        common = min(settled, len(self._held), len(context) - 1)
        while common < min(len(self._held), len(context) - 1) and self._held[common] == context[common]:
            common += 1
        if len(context) > self.cache.capacity:
            self._grow(len(context))
            common = 0
        self.cache.truncate(common)
        self._held = list(context)
        return self._run(context[common:], common)

    @torch.inference_mode()
    def step(self, token: int) -> Tensor:
        """Append one drafted token; the next row's logits (V,)."""
        place = len(self._held)
        if place >= self.cache.capacity:
            raise RuntimeError("the draft cache is full: reserve before drafting")
        self._held.append(token)
        return self._run([token], place)

    def reserve(self, tokens: int) -> None:
        """Make room for a context of ``tokens``; empties the cache if it has to grow."""
        if tokens > self.cache.capacity:
            self._grow(tokens)

    def _grow(self, tokens: int) -> None:
        self.cache.reserve(2 * tokens)
        self._held = []

    def _run(self, tokens: Sequence[int], past: int) -> Tensor:
        last = self._lm.card.context - 1
        device = self._lm.device
        output = self._lm.model(
            input_ids=torch.tensor([list(tokens)], device=device),
            position_ids=torch.tensor([[min(place, last) for place in range(past, past + len(tokens))]], device=device),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[0, -1, : self._vocab]
