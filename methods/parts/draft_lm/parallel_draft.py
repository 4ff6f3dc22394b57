"""What CARD and PEARL share: a draft model behind a port, that drafts while the target verifies what it drafted before.

The actor holds the draft model and, for each request that is alive, one session; it has no access to the
method, the target or the verifier's random numbers. The drafter's end turns the harness's calls into messages.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.draft_lm.draft_lm import DraftLM
from methods.parts.draft_lm.draft_method import DraftModelMethod, TargetTraits
from methods.parts.draft_lm.forward_time import RoundTimes
from methods.parts.draft_lm.port import Backend, Port, open_port
from specbench.method import Drafter
from specbench.models.facade import ModelCard, Target
from specbench.types import CaseError, InputError, Needs

log = logging.getLogger(__name__)

ONE_DEVICE = (
    "%s drafts on the target's own device (%s): expect no gain from working in parallel;"
    " modelled_s in its stats is what two devices would take"
)


class DraftActor(ABC):
    """One draft model and its sessions, by request number."""

    def __init__(self, lm: DraftLM, traits: TargetTraits, options: dict[str, Any]) -> None:
        self.lm, self.options = lm, options
        self.vocab, self.eos, self.sampling = traits.vocab, traits.eos, traits.sampling
        self.sessions: dict[int, Any] = {}

    def open(self, number: int, alive: Sequence[int], context: Sequence[int], seed: int) -> Any:
        """A request begins; sessions of others than those ``alive`` are over."""
        for gone in [known for known in self.sessions if known not in alive]:
            self.close(gone)
        self.sessions[number] = self.session(list(context), seed)
        return self.first_answer(self.sessions[number])

    @abstractmethod
    def session(self, context: list[int], seed: int) -> Any:
        """A new session behind ``context``."""

    def first_answer(self, session: Any) -> Any:
        """What ``open`` answers."""
        return None

    def close(self, number: int) -> None:
        """The request is over; its buffers are for the next one."""
        self.sessions.pop(number, None)

    def distributions(self, logits: Tensor) -> Tensor:
        """(m, v) logits -> (m, V) probabilities that nodes are drawn from, as wide as the target's."""
        assert self.sampling is not None
        found = self.sampling(logits)
        return pad(found, (0, self.vocab - found.shape[-1]))


def load_actor(kind: Callable[..., DraftActor], card: ModelCard, attention: str, *rest: Any) -> DraftActor:
    """The actor with the weights of ``card``; in a process of its own, quietly. attention: see ``DraftLM``."""
    if multiprocessing.parent_process() is not None:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
    return kind(DraftLM.load(card, attention), *rest)


class ParallelDrafter(Drafter):
    """One request's end of the port."""

    def __init__(self, method: ParallelDraft, number: int, seed: int) -> None:
        self.number, self.port, self.times = number, method.port, RoundTimes(method.device)
        self._method, self._seed = method, seed
        self._opened = False
        self._rounds = 0
        self._emitted = 0

    def open_session(self, context: Sequence[int]) -> Any:
        """The actor's first answer to a new request; None where the session is open already."""
        if self._opened:
            return None
        self._opened = True
        return self.port.ask("open", self.number, self._method.alive(), list(context), self._seed)

    def end_round(self, emitted: int, drafts: list[float]) -> None:
        """A round is over: so many tokens, and the draft forwards beside it [s]."""
        self.times.end_round(drafts)
        self._rounds += 1
        self._emitted += emitted

    def finish(self, context: Sequence[int]) -> None:
        """Give the session's buffers back; a partner that is gone has none."""
        if self._opened:
            with contextlib.suppress(CaseError):  # it is gone, and its buffers with it
                self.port.post("close", self.number)

    def stats(self) -> dict[str, float]:
        """Rounds and their times."""
        per_round = {"tokens_per_round": self._emitted / self._rounds} if self._rounds else {}
        found = {"rounds": float(self._rounds), "one_device": float(self._method.one_device)}
        return {**found, **per_round, **self.times.stats()}


class ParallelDraft(DraftModelMethod):
    """port: inline | thread | process. patience_s: [s] without an answer after which the partner counts as lost."""

    kind: type[DraftActor]
    port: Port
    one_device = True  # draft model and target share a device, so nothing is gained by working at once

    def __init__(
        self, draft: str | None, port: Backend, patience_s: float, dtype: str | None, device: str | None
    ) -> None:
        super().__init__(draft, dtype, device, None)
        if not 1e-3 <= patience_s <= 86_400:
            raise InputError(f"patience_s={patience_s}: expected seconds, from 0.001 to 86400")
        self.backend, self.patience_s = port, patience_s
        self._requests = 0
        self._drafters: weakref.WeakValueDictionary[int, ParallelDrafter] = weakref.WeakValueDictionary()

    @property
    def needs(self) -> Needs:
        """Work beside the target."""
        return Needs(concurrent=True)

    def options(self) -> dict[str, Any]:
        """Of the actor: plain values."""
        return {}

    def bind(self, target: Target) -> None:
        """Start the partner, which loads the draft's weights."""
        card = replace(self.card_for(target), tokenizer=None)  # the partner gets ids only
        self.connect(load_actor, (self.kind, card, target.attention), TargetTraits.of(target))
        self.one_device = _same(torch.device(card.device), target.device)
        if self.one_device:
            log.warning(ONE_DEVICE, type(self).__name__, target.device)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``bind``, with a draft model that is loaded already."""
        self.connect(self.kind, (lm,), traits)
        self.one_device = _same(lm.device, traits.device)

    def connect(self, build: Callable[..., DraftActor], first: tuple[Any, ...], traits: TargetTraits) -> None:
        """Open the port to an actor; ``first``: what ``build`` takes before the target's traits."""
        self.device, self.sampling, self.vocab, self.eos = traits.device, traits.sampling, traits.vocab, traits.eos
        arguments = (*first, traits, self.options())
        try:
            self.port = open_port(self.backend, build, arguments, self.patience_s)
        except CaseError as error:
            raise InputError(f"port={self.backend}: {error}") from error

    def reset(self) -> None:
        """Nothing is learned; but a partner that was lost is replaced here, where no clock runs."""
        try:
            self.port.open()
        except (CaseError, InputError) as error:
            log.warning("%s; the next case tries again", error)

    def private(self) -> ParallelDraft:
        """Itself: requests have numbers, and nothing is learned."""
        return self

    def number(self) -> int:
        """A new request's number; a partner that was lost is replaced."""
        self.port.open()
        self._requests += 1
        return self._requests

    def enter(self, drafter: ParallelDrafter) -> Drafter:
        """Track that a request is alive, by a weak reference."""
        self._drafters[drafter.number] = drafter
        return drafter

    def alive(self) -> list[int]:
        """Numbers of the requests that are still referenced."""
        return list(self._drafters)

    def close(self) -> None:
        """End the partner."""
        if getattr(self, "port", None) is not None:
            self.port.close()


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)
