"""The common parts of CARD and PEARL: a draft model that drafts while the target verifies the
previous draft.

The actor owns the draft model and one session for each live request; it has no access to the
method, the target or the verifier's random numbers. The drafter turns the harness's calls into
messages to it, through a port.

Forward times are those of the model's own device. On a GPU a forward is only enqueued where it is
called, so a mark is an event of the device's stream; on a CPU it is the clock. Times of events are
known once the device has passed the second one.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import statistics
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad

from methods.parts.draft_lm import DraftLM
from methods.parts.draft_method import DraftModelMethod, TargetTraits
from methods.parts.parameters import number
from methods.parts.port import Backend, Port
from specbench.method import Drafter
from specbench.models.facade import ModelCard, Target
from specbench.types import CaseError, InputError, Needs

REPEATS = 5

Mark = Any  # a time [s], or an event


def mark(device: torch.device) -> Mark:
    """This moment on ``device``."""
    if device.type != "cuda":
        return time.perf_counter()
    return torch.cuda.current_stream(device).record_event(torch.cuda.Event(enable_timing=True))


def seconds_between(first: Mark, second: Mark) -> float:
    """[s] from one mark to the other."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3


def measure_forward_s(forward: Callable[[], object], device: torch.device) -> float:
    """[s] of a forward: the median of a few, after one that is not counted."""
    forward()
    spans = [(mark(device), forward(), mark(device)) for _ in range(REPEATS)]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return statistics.median(seconds_between(first, last) for first, _, last in spans)


@dataclass(slots=True)
class RoundTimes:
    """Forward times of one request's rounds: the target's, and the draft model's during it and
    before it.

    target: pairs of marks. during: [s] of the draft forwards of each round. before: [s] of those
    that the target waited for. wall_s: of all rounds, from launch to outcome.
    """

    device: torch.device
    target: list[tuple[Mark, Mark]] = field(default_factory=list)
    during: list[list[float]] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    _launched: tuple[Mark, float] = (0.0, 0.0)

    def note_launch(self) -> None:
        """The target's forward comes next."""
        self._launched = mark(self.device), time.perf_counter()

    def note_join(self) -> None:
        """The target's forward is enqueued, or done."""
        self.target.append((self._launched[0], mark(self.device)))

    def end_round(self, drafts: list[float]) -> None:
        """The round is over; ``drafts``: [s] of the draft forwards during it."""
        self.during.append(drafts)
        self.wall_s += time.perf_counter() - self._launched[1]

    def stats(self) -> dict[str, float]:
        """measured_s: of the rounds as they ran, with the draft forwards before them.

        modelled_s: of the same forwards with each model on a device of its own and messages that
        cost nothing, the sum of max(target forward, its draft forwards).
        """
        if not self.during:
            return {}
        target = [seconds_between(*pair) for pair in self.target]
        drafts = [time_s for times in (*self.during, self.before) for time_s in times]
        pairs = zip(target, self.during, strict=False)  # a forward whose step failed has no outcome
        found = {
            "measured_s": self.wall_s + sum(self.before),
            "modelled_s": sum(max(forward, sum(times)) for forward, times in pairs)
            + sum(self.before),
            "target_forward_ms": 1e3 * statistics.mean(target),
            "draft_forwards": float(len(drafts)),
        }
        if drafts:
            found["draft_forward_ms"] = 1e3 * statistics.mean(drafts)
        return found


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

    def note(self) -> str | None:
        """Returns the warning about the draft model's attention."""
        return self.lm.runner.note

    @abstractmethod
    def session(self, context: list[int], seed: int) -> Any:
        """A new session after ``context``."""

    def first_answer(self, session: Any) -> Any:
        """Returns the answer to ``open``."""
        return None

    def tell(self, number: int, verb: str, *given: Any) -> Any:
        """Passes a message to the session of a request."""
        return getattr(self.sessions[number], verb)(*given)

    def close(self, number: int) -> None:
        """The request is over; its buffers are for the next one."""
        self.sessions.pop(number, None)

    def distributions(self, logits: Tensor) -> Tensor:
        """(m, v) logits -> (m, V) probabilities that nodes are drawn from, as wide as the
        target's.
        """
        assert self.sampling is not None
        found = self.sampling(logits)
        return pad(found, (0, self.vocab - found.shape[-1]))


def load_actor(
    kind: Callable[..., DraftActor], card: ModelCard, attention: str, *rest: Any
) -> DraftActor:
    """The actor with the weights of ``card``; in a separate process, without output. attention: see
    ``DraftLM``.
    """
    if multiprocessing.parent_process() is not None:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
    return kind(DraftLM.load(card, attention), *rest)


class ParallelDrafter(Drafter):
    """One request's end of the port."""

    def __init__(self, method: ParallelDraft, seed: int) -> None:
        method.partner.open()  # a partner that was lost is replaced
        method.begun += 1
        self.number, self.port, self.times = (
            method.begun,
            method.partner,
            RoundTimes(method.target_device),
        )
        method.alive[self.number] = self
        self._method, self._seed = method, seed
        self._opened = False
        self._rounds = 0
        self._emitted = 0

    def open_session(self, context: Sequence[int]) -> Any:
        """The actor's first answer to a new request; None where the session is open already."""
        if self._opened:
            return None
        self._opened = True
        return self.port.ask(
            "open", self.number, list(self._method.alive), list(context), self._seed
        )

    def end_round(self, emitted: int, drafts: list[float]) -> None:
        """A round is over: so many tokens, and the draft forwards during it [s]."""
        self.times.end_round(drafts)
        self._rounds += 1
        self._emitted += emitted

    def finish(self, context: Sequence[int]) -> None:
        """Give the session's buffers back; a partner that is gone has none."""
        if self._opened:
            with contextlib.suppress(CaseError):  # it is gone, and its buffers with it
                self.port.post("close", self.number)

    def stats(self) -> dict[str, float]:
        per_round = {"tokens_per_round": self._emitted / self._rounds} if self._rounds else {}
        found = {"rounds": float(self._rounds), "one_device": float(self._method.one_device)}
        return {**found, **per_round, **self.times.stats()}


@dataclass(eq=False)
class ParallelDraft(DraftModelMethod):
    """A method whose draft model works while the target verifies.

    port: inline | thread | process. patience_s: [s] without an answer after which the partner
    counts as lost.
    """

    kind: ClassVar[type[DraftActor]]
    # draft model and target share a device, so nothing is gained by working concurrently
    one_device = True

    _: KW_ONLY
    port: Backend = "inline"
    patience_s: float = number(
        30.0, lambda value: 1e-3 <= value <= 86_400, "seconds, from 0.001 to 86400"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.partner: Port
        self.begun = 0  # requests, which are numbered
        self.alive: weakref.WeakValueDictionary[int, ParallelDrafter] = (
            weakref.WeakValueDictionary()
        )

    @property
    def needs(self) -> Needs:
        return Needs(concurrent=True)

    def options(self) -> dict[str, Any]:
        """Of the actor: plain values."""
        return {}

    def bind(self, target: Target) -> None:
        assert self._card is not None
        card = replace(self._card, tokenizer=None)  # the partner gets ids only
        self._start(
            torch.device(card.device),
            TargetTraits.of(target),
            load_actor,
            self.kind,
            card,
            target.attention,
        )
        if self.one_device:
            log.warning(ONE_DEVICE, type(self).__name__, target.device)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """Start the partner with a draft model that is loaded already."""
        self._start(lm.device, traits, self.kind, lm)

    def _start(
        self,
        device: torch.device,
        traits: TargetTraits,
        build: Callable[..., DraftActor],
        *first: Any,
    ) -> None:
        """Opens the port to an actor on ``device``. first: the arguments of ``build`` before the
        target's traits.
        """
        self.target_device = traits.device
        self.one_device = device.type == traits.device.type and (device.index or 0) == (
            traits.device.index or 0
        )
        try:
            self.partner = Port(self.port, build, (*first, traits, self.options()), self.patience_s)
            self._note = self.partner.ask("note")
        except CaseError as error:
            raise InputError(f"port={self.port}: {error}") from error

    def reset(self) -> None:
        """Nothing is learned; but a partner that was lost is replaced here, where no clock runs."""
        try:
            self.partner.open()
        except (CaseError, InputError) as error:
            log.warning("%s; the next case tries again", error)

    def private(self) -> ParallelDraft:
        """Returns this method: requests have numbers, and nothing is learned."""
        return self

    def close(self) -> None:
        if hasattr(self, "partner"):  # else ``bind`` has failed
            self.partner.close()
