"""A draft model whose vocabulary differs from the target's (Timor et al. 2025, arXiv 2502.05202):
TLI and SLEM.

Token-level intersection: the draft's distribution is confined to the tokens that both vocabularies
have, and its tokens are verified by the ratio test. String-level exact match: the draft writes text
in its own tokens, the target's tokenizer splits it again, and each token is accepted where the
target emits the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from methods.parts.draft_lm import DraftCall, DraftLM, DraftRequest, choose_token, read_draft_card
from methods.parts.draft_method import ChainMethod, TargetTraits
from specbench.method import Drafter, Drafting, SharedDrafter
from specbench.models.facade import ModelCard
from specbench.types import EMPTY, Draft, InputError, Prefill

# tokens of the context that are split again with a drafted text, since a token may reach over the
# border
TAIL = 4


class Vocabularies:
    """The common tokens of two tokenizers. shared: the target's id -> the draft's."""

    def __init__(self, target: Any, draft: Any) -> None:
        self.target, self.draft = target, draft
        ours, theirs = (_marked(each, _space(target)) for each in (target, draft))
        self.shared = {ours[token]: theirs[token] for token in ours.keys() & theirs.keys()}

    def translate(self, tokens: Sequence[int]) -> list[int]:
        """The target's tokens as the draft's: shared ones one by one, the text of others split
        again.
        """
        found: list[int] = []
        for known, run in groupby(tokens, self.shared.__contains__):
            if known:
                found += [self.shared[token] for token in run]
            else:
                text = self.target.decode(list(run), skip_special_tokens=True)
                found += self.draft.encode(text, add_special_tokens=False)
        return found

    def recut(self, context: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The draft's tokens as the target's, after ``context``."""
        text, tail = (
            self.draft.decode(list(drafted), skip_special_tokens=True),
            list(context[-TAIL:]),
        )
        whole = self.target.encode(self.target.decode(tail) + text, add_special_tokens=False)
        if whole[: len(tail)] == tail:
            return [int(token) for token in whole[len(tail) :]]
        return [int(token) for token in self.target.encode(text, add_special_tokens=False)]


def _space(tokenizer: Any) -> str:
    """The sign with which tokens of a vocabulary begin that stand after a space; empty without
    one.
    """
    found = tokenizer.convert_ids_to_tokens(tokenizer.encode(" ", add_special_tokens=False))
    return str(found[0][0]) if found else ""


def _marked(tokenizer: Any, sign: str) -> dict[str, int]:
    """Token -> id, with ``sign`` instead of the tokenizer's own sign of a space."""
    own, vocabulary = _space(tokenizer), tokenizer.get_vocab()
    if not own or not sign or own == sign:
        return dict(vocabulary)
    return {
        (sign + token[1:] if token.startswith(own) else token): place
        for token, place in vocabulary.items()
    }


class _Request(DraftRequest):
    """A request whose context is the target's tokens. shared: so are the tokens drafted, and the
    logits.
    """

    def __init__(self, method: ForeignDraft, shared: bool) -> None:
        super().__init__(method.lm, method.vocab if shared else method.lm.runner.rows)
        self._method, self._shared = method, shared
        self._text: list[int] = []  # the context in the draft's tokens
        self._taken = 0  # [tokens] of the target's context that it holds

    def feeding(self, context: Sequence[int], settled: int, masks: Sequence[int] = ()) -> DraftCall:
        cached = len(self._text)
        self._text += self._method.vocabularies.translate(context[self._taken :])
        self._taken = len(context)
        return super().feeding(self._text or [0], cached, masks)

    def stepping(self, token: int | Tensor) -> DraftCall:
        if self._shared:
            known = self._method.vocabularies.shared
            token = self._method.lookup[token] if isinstance(token, Tensor) else known[token]
        return super().stepping(token)

    def name(self, place: int, tokens: Sequence[int]) -> None:
        """Drafted tokens that stayed on the device; all of them are shared."""
        super().name(len(self._text), [self._method.vocabularies.shared[token] for token in tokens])

    def _cut(self, rows: Tensor) -> Tensor:
        """The logits of the target's tokens, -inf if the draft has no such token."""
        if not self._shared:
            return super()._cut(rows)
        found = rows.new_full((len(rows), self._vocab), -torch.inf)
        found[:, self._method.target_ids] = rows[:, self._method.draft_ids]
        return found


class _Text(SharedDrafter):
    """String-level exact match."""

    def __init__(self, method: ForeignDraft, seed: int) -> None:
        self._method, self._request = method, _Request(method, shared=False)
        self._random = method.generator(seed)

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        method = self._method
        if not budget:
            return EMPTY
        tokens: list[int] = []
        rows = yield self._request.feeding(context, 0)
        while True:
            tokens.append(int(choose_token(rows[-1], method.free, self._random, [])))
            if len(tokens) == min(method.length, budget) or tokens[-1] == method.draft_eos:
                break
            rows = yield self._request.stepping(tokens[-1])
        return Draft.chain(method.vocabularies.recut(context, tokens)[:budget], 0)


@dataclass(eq=False)
class ForeignDraft(ChainMethod):
    """A draft model of another vocabulary; conf/method/foreign_draft.yaml describes the
    parameters.
    """

    match: Literal["token", "string"] = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawn, self.draft_eos = self.draws, -1
        self.draws = self.draws and self.match == "token"

    def check(self, model: ModelCard) -> None:
        """The two vocabularies must share a token."""
        self._card = read_draft_card(self.draft, model, self.dtype, self.device, same=False)
        self.vocabularies = Vocabularies(model.tokenizer, self._card.tokenizer)
        eos = self._card.tokenizer.eos_token_id
        self.draft_eos = -1 if eos is None else eos
        if not self.vocabularies.shared:
            raise InputError(
                f"draft={self.draft}: shares no token with model={model.name}; expected another one"
            )

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``DraftModelMethod.adopt``; the shared tokens go to the draft's device."""
        super().adopt(lm, traits)
        rows, width = lm.runner.rows, traits.vocab
        pairs = [
            (ours, theirs)
            for ours, theirs in self.vocabularies.shared.items()
            if ours < width and theirs < rows
        ]
        self.vocabularies.shared = dict(pairs)
        self.vocabulary = frozenset(self.vocabularies.shared) if self.match == "token" else None
        self.target_ids, self.draft_ids = torch.tensor(pairs, device=lm.device).unbind(1)
        self.lookup = torch.zeros(width, dtype=torch.long, device=lm.device)
        self.lookup[self.target_ids] = self.draft_ids
        self.free = self.drawn_from if self.sampling is not None and self._drawn else None

    def chain(self) -> DraftRequest:
        return _Request(self, shared=True)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return super().begin(prompt, prefill, seed) if self.match == "token" else _Text(self, seed)
