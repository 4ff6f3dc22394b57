"""A draft language model with its own KV cache: follows the committed context, forgets what was rejected."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.models.facade import ModelCard
from specbench.models.load import load_model, read_card
from specbench.models.runner import DraftCache, Run, Shape, make_runner
from specbench.models.tree import TreeRows
from specbench.types import InputError

CHAIN = ((1, 1, 1), (2, 2, 1))  # a chain's forwards: a step; what was accepted last, and the token behind it
UNREAD = -1  # in place of a token that stays on the device
Sampler = Callable[[Tensor], Tensor]  # (m, v) logits -> (m, v) probabilities, or wider


def read_draft_card(
    path: str | None, target: ModelCard, dtype: str | None, device: str | None, same: bool = True
) -> ModelCard:
    """The draft's card. Raises InputError before any weights are read. same: it must have the target's vocabulary."""
    if not path:
        raise InputError(
            f"draft: not set and model={target.name} names no usual draft; expected model.draft=FOLDER, or a hub id"
        )
    card = read_card(
        path=path, dtype=dtype or target.dtype, device=device or target.device, prefix="", path_key="draft"
    )
    ours, theirs = card.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if same and ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        raise InputError(
            f"draft={path}: has another vocabulary than model={target.name}"
            f" ({len(ours)} against {len(theirs)} tokens, {differing} entries differ);"
            " expected a draft model with the target's own tokenizer, or method=[foreign_draft]"
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


@dataclass(frozen=True, slots=True, eq=False)
class DraftCall:
    """A call of a draft model for one request (``specbench.method.DraftForward``). given: see ``Runner.run``."""

    owner: DraftLM
    vocab: int
    given: Run

    @torch.inference_mode()
    def run(self) -> Tensor:
        """(wanted, V) logits."""
        return self.cut(self.owner.runner.run(*self.given))

    def cut(self, rows: Tensor) -> Tensor:
        """(wanted, v) the model's logits -> (wanted, V)."""
        return rows[:, : self.vocab]


class DraftLM:
    """Holds the weights, and the caches of its requests: a request has one for as long as it lives."""

    def __init__(self, model: Any, context: int, attention: str = "sdpa") -> None:
        """model: a causal LM in eval mode. context: [tokens] its limit. attention: ``engine.attention``."""
        self.model, self.context = model, context
        self.runner = make_runner(model, context, attention)
        self.device = self.runner.device
        self._free: list[DraftCache] = []  # allocated once, and recorded on once

    @classmethod
    def load(cls, card: ModelCard, attention: str = "sdpa") -> DraftLM:
        """The model of a card, on the card's device, ready for chains. attention: ``engine.attention``."""
        lm = cls(load_model(card), card.context, attention)
        lm.prepare(CHAIN)
        return lm

    @torch.inference_mode()
    def prepare(self, shapes: Iterable[Shape]) -> None:
        """Record forwards on the next request's cache; see ``Runner.prepare``. Others are recorded when they come."""
        cache = self._take()
        self._free.append(cache)
        self.runner.empty(cache)
        self.runner.prepare(cache, shapes)

    @torch.inference_mode()
    def lend_cache(self, request: object) -> DraftCache:
        """An empty cache, for as long as ``request`` lives."""
        cache = self._take()
        self.runner.empty(cache)
        weakref.finalize(request, self._free.append, cache).atexit = False
        return cache

    @torch.inference_mode()
    def run_together(self, forwards: Sequence[DraftCall]) -> list[Tensor]:
        """Of each, its logits."""
        found = self.runner.run_together([each.given for each in forwards])
        return [each.cut(rows) for rows, each in zip(found, forwards, strict=True)]

    def _take(self) -> DraftCache:
        return self._free.pop() if self._free else self.runner.new_cache()


class DraftRequest:
    """One request's walk of a draft model behind the committed context. Logits are valid until the model runs again."""

    def __init__(self, lm: DraftLM, vocab: int) -> None:
        """vocab: [tokens] of the target's logits; rows are cut to it, since models of a family differ in padding."""
        self._lm, self.cache, self._vocab = lm, lm.lend_cache(self), vocab
        self._held: list[int] = []  # the tokens of the context whose keys and values are in the cache

    @torch.inference_mode()
    def feed(self, context: Sequence[int], settled: int) -> Tensor:
        """Bring the cache to ``context`` and return the last row's logits (V,).

        settled: [tokens] of the context known to be in the cache unchanged (comparison starts there).
        """
        return self.feeding(context, settled).run()[-1]

    def feeding(self, context: Sequence[int], settled: int, masks: Sequence[int] = ()) -> DraftCall:
        """The forward of ``feed``; it is the request's next.

        masks: tokens read behind the context and forgotten with the next draft; they have a row of logits each.
        """
        common = self.rewind(context, settled)
        fed = [*context[common:], *masks]
        self._held += [*context[common:], *[UNREAD] * len(masks)]
        return self._forward(fed, range(common, common + len(fed)), None, 1 + len(masks))

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
        return self.stepping(token).run()[-1]

    def stepping(self, token: int | Tensor) -> DraftCall:
        """The forward of ``step``; it is the request's next."""
        place = len(self._held)
        self._held.append(UNREAD if isinstance(token, Tensor) else token)
        return self._forward(token.view(1) if isinstance(token, Tensor) else [token], [place], None, 1)

    def name(self, place: int, tokens: Sequence[int]) -> None:
        """Tokens from ``place`` of the context on, drafted on the device, are known now."""
        for at, token in enumerate(tokens, place):
            if at < len(self._held):
                self._held[at] = token

    def _forward(
        self, ids: Sequence[int] | Tensor, places: Sequence[int], tree: TreeRows | None, wanted: int
    ) -> DraftCall:
        """One call of the model; see ``Runner.run``."""
        return DraftCall(self._lm, self._vocab, (self.cache, ids, places, tree, wanted))
