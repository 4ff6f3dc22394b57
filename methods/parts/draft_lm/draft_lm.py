"""A draft language model with its own KV cache: follows the committed context, forgets what was rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.target.facade import ModelCard
from specbench.target.load import load_model, read_card
from specbench.target.runner import HeldCache, Mask, make_runner
from specbench.target.transfer import upload
from specbench.types import InputError

UNREAD = -1  # in place of a token that stays on the device
Sampler = Callable[[Tensor], Tensor]  # (m, v) logits -> (m, v) probabilities, or wider


def read_draft_card(path: str | None, target: ModelCard, dtype: str | None, device: str | None) -> ModelCard:
    """The draft's card, checked to have the target's vocabulary. Raises InputError before any weights are read."""
    if not path:
        raise InputError(f"draft: not set and model={target.name} names no usual draft; expected a hub id or folder")
    card = read_card(
        path=path, dtype=dtype or target.dtype, device=device or target.device, prefix="", path_key="draft"
    )
    ours, theirs = card.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        raise InputError(
            f"draft={path}: has another vocabulary than model={target.name}"
            f" ({len(ours)} against {len(theirs)} tokens, {differing} entries differ);"
            " expected a draft model with the target's own tokenizer"
        )
    return card


def draw_one(probs: Tensor, random: torch.Generator) -> Tensor:
    """(...) a token of each (..., V) distribution, as ``torch.multinomial`` draws it, which tests its input twice."""
    return (probs / torch.empty_like(probs).exponential_(generator=random)).argmax(-1)


def choose_token(row: Tensor, distribution: Sampler | None, random: torch.Generator, probs: list[Tensor]) -> Tensor:
    """() int64, what follows: the best one, or one drawn from ``distribution``, which is then appended to ``probs``.

    row: (v,) logits of a draft. distribution: (1, v) logits -> (1, V) probabilities; None takes the best token.
    """
    if distribution is None:
        return row.argmax()
    probs.append(distribution(row[None])[0])
    return draw_one(probs[-1], random)


class DraftLM:
    """Holds the weights; a ``DraftRequest`` holds one request's place in its context."""

    def __init__(self, model: Any, context: int) -> None:
        """model: a causal LM in eval mode. context: [tokens] its limit."""
        self.model, self.context = model, context
        self.runner = make_runner(model, context)
        self.device = self.runner.device

    @classmethod
    def load(cls, card: ModelCard) -> DraftLM:
        """The model of a card, on the card's device."""
        return cls(load_model(card), card.context)

    def new_cache(self) -> HeldCache:
        """An empty cache of the model's shape."""
        return self.runner.new_cache()


class DraftRequest:
    """One request's walk of a draft model behind the committed context."""

    def __init__(self, lm: DraftLM, cache: HeldCache, vocab: int) -> None:
        """vocab: [tokens] of the target's logits; rows are cut to it, since models of a family differ in padding."""
        self._lm, self.cache, self._vocab = lm, cache, vocab
        self._held: list[int] = []  # the tokens of the context whose keys and values are in the cache
        cache.truncate(0)

    @torch.inference_mode()
    def feed(self, context: Sequence[int], settled: int) -> Tensor:
        """Bring the cache to ``context`` and return the last row's logits (V,).

        settled: [tokens] of the context known to be in the cache unchanged (comparison starts there).
        """
        common = self.rewind(context, settled)
        self.reserve(len(context))
        self._held += context[common:]
        places = range(common, len(context))
        return self._run(self._ids(context[common:]), places, None, 1)[-1]

    def rewind(self, context: Sequence[int], settled: int) -> int:
        """Keep what ``context`` without its last token begins with; [tokens] of that. settled: as in ``feed``."""
        most = min(len(self._held), len(context) - 1)
        common = min(settled, most)
        while common < most and self._held[common] == context[common]:
            common += 1
        self.cache.truncate(common)
        del self._held[common:]
        return common

    @torch.inference_mode()
    def step(self, token: int | Tensor) -> Tensor:
        """Append one drafted token; the next row's logits (V,). One on the device, (), is not read: see ``name``."""
        place = len(self._held)
        self.reserve(place + 1)
        self._held.append(UNREAD if isinstance(token, Tensor) else token)
        return self._run(self._ids(token.view(1) if isinstance(token, Tensor) else [token]), [place], None, 1)[-1]

    def name(self, place: int, tokens: Sequence[int]) -> None:
        """Tokens from ``place`` of the context on, drafted on the device, are known now."""
        for at, token in enumerate(tokens, place):
            if at < len(self._held):
                self._held[at] = token

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens``; what the cache holds stays."""
        if tokens > self.cache.capacity:
            self.cache.grow(2 * tokens)

    def _ids(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """(m,) token ids on the draft's device; ids that its embedding lacks (padding of the target) as its last."""
        device = self._lm.device
        ids = tokens.to(device) if isinstance(tokens, Tensor) else upload(tokens, device)
        return ids.clamp(max=self._lm.runner.rows - 1)

    def _run(self, ids: Tensor, places: Sequence[int], mask: Mask, rows: int) -> Tensor:
        """One call of the model over (m,) ids at positions ``places`` -> (rows, V) logits; see ``Runner.run``."""
        last = self._lm.context - 1  # behind the draft's own context every token stands at its last position
        if places[-1] > last or not isinstance(places, range):
            places = [min(place, last) for place in places]
        logits = self._lm.runner.run(self.cache, ids, places, mask, rows)
        return logits[:, : self._vocab]
