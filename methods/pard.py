"""PARD (An et al. 2025): a draft model that was adapted to draft a whole chain in one forward.

It reads the context's new tokens and a mask token for every further token of the chain. The row of the last real token
gives the first drafted token, the row of each mask the next. A mask's row knows the context, not the tokens drafted
before it: so the tokens of a chain are drawn independently, each from a distribution of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from methods.parts.best_tree import draft_places
from methods.parts.draft_lm import DraftLM, draw_one
from methods.parts.draft_method import DrawingMethod, TargetTraits
from methods.parts.parameters import KEPT, count
from specbench.method import Drafter, Drafting, DraftLevel, SharedDrafter
from specbench.models.facade import ModelCard
from specbench.types import EMPTY, Draft, InputError, Prefill

NAMES = ("pard_token", "ptd_token_id")  # of the mask token in config.json: the authors', and vLLM's other one


class _Chain(SharedDrafter):
    def __init__(self, method: Pard, seed: int) -> None:
        self._method, self._request = method, method.chain()
        self._random = method.generator(seed)
        self._settled = 0

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        method = self._method
        count = min(method.length, budget)
        if not count:
            return EMPTY
        rows = yield self._request.feeding(context, self._settled, [method.mask] * (count - 1))
        self._settled = len(context)
        if method.nodes is not None:
            return draft_places(rows, min(method.nodes, budget), self.goes_on)
        drawn_from = None if method.sampling is None or not method.draws else method.drawn_from(rows)
        chain = rows.argmax(-1) if drawn_from is None else draw_one(drawn_from, self._random)
        probs = None if drawn_from is None else method.pad_probs(drawn_from)
        if (goes_on := self.goes_on) is not None:
            law = rows.softmax(-1, dtype=torch.float32) if drawn_from is None else drawn_from
            reach = law.gather(1, chain[:, None])[:, 0].cumprod(0).tolist()
            levels = (DraftLevel(place, reach[place - 1], law[place - 1], True) for place in range(1, count))
            ends = (level.depth for level in levels if not goes_on(level))
            count = next(ends, count)
            chain, probs = chain[:count], None if probs is None else probs[:count]
        tokens: Any = chain.tolist() if chain.device.type == "cpu" else chain
        return Draft(tokens, range(-1, count - 1), probs, source=[0] * count)


@dataclass(eq=False)
class Pard(DrawingMethod):
    """PARD; conf/method/pard.yaml describes the parameters."""

    length: int = count(12)
    mask_token: int | None = count(None, low=0, high=KEPT)
    choice: Literal["drawn", "argmax"] = "drawn"
    nodes: int | None = count(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.draws, self.mask = self.choice == "drawn", self.mask_token or 0
        if self.nodes is not None and self.draws:
            raise InputError(
                f"nodes={self.nodes}: the likeliest paths are not drawn; expected choice=argmax, got drawn"
            )

    def check(self, model: ModelCard) -> None:
        """The draft must have the target's vocabulary and a mask token."""
        if not self.draft:
            raise InputError(f"draft: not set and model={model.name} names none (model.heads.pard); expected a hub id")
        super().check(model)
        assert self._card is not None
        config = self._card.config.get_text_config()
        named = [value for name in NAMES if isinstance(value := getattr(config, name, None), int)]
        if self.mask_token is None and not named:
            raise InputError(
                f"draft={self.draft}: its config.json has neither {' nor '.join(NAMES)}: it was not trained to draft in"
                " parallel; expected one that was, or mask_token=ID"
            )
        self.mask = named[0] if self.mask_token is None else self.mask_token
        if not 0 <= self.mask < config.vocab_size:
            raise InputError(f"mask_token={self.mask}: expected an id of the draft, from 0 to {config.vocab_size - 1}")

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``DraftModelMethod.adopt``; a draft's forward is recorded after any number of accepted tokens."""
        super().adopt(lm, traits)
        lm.prepare([(rows, rows, self.length) for rows in range(self.length, 2 * self.length + 1)])

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Start from an empty cache. seed: of the tokens drawn."""
        return _Chain(self, seed)
