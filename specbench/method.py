"""The interface that every drafting method implements: ``Method`` and ``Drafter``, which only
propose tokens.

The harness owns the target, its KV cache, masks and positions, verification, the stop rule, token
counting, clocks and random numbers. Two objects because there are two lifetimes: a ``Method`` lives
across requests (weights, tables, what was learned), a ``Drafter`` is the state of ONE request and
is dropped at its end, so it cannot leak.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from specbench.types import Draft, Needs, Prefill, Step

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.models.facade import ModelCard, Target


@dataclass(frozen=True, slots=True)
class DraftLevel:
    """The newest level of a draft, as a policy of draft lengths sees it; None is what the drafter
    does not know.

    following: probability that the next level's token is accepted where the path is, of a drafter
    trained to say so before that token is chosen.
    """

    depth: int  # levels so far
    probability: float | Tensor | None = None  # of the likeliest path so far, by the drafter
    distribution: Tensor | None = None  # (V,) of that path's last token
    drafted: bool = False  # the next level is there already
    following: float | Tensor | None = None


# asked between two levels of a draft: whether it gets another one
GoesOn = Callable[[DraftLevel], bool]


class Drafter(ABC):
    """The state of one request; several may exist concurrently.

    goes_on: the run's policy of draft lengths, which a drafter asks that drafts level by level;
    None = as it wants. A draft that was not cut on the way is cut behind it
    (``specbench.decode.lengths``).
    """

    goes_on: GoesOn | None = None

    @abstractmethod
    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """Draft the tokens that may follow ``context`` (prompt and emitted ids; its last one is the
        root).

        context: (T,) read-only. budget: the most nodes that the draft may have; below the method's
        size, the likeliest ones. An empty draft is legal.
        """

    def launch(self) -> None:
        """Start to draft on while the target verifies what was proposed, and return; only with
        ``Needs.concurrent``.
        """

    def join(self) -> Draft | None:
        """Wait for what ``launch`` started; only with ``Needs.concurrent``.

        It may return a late chain that continues the proposed chain. Where the whole draft is
        accepted, the late chain's first token is verified too; if accepted, it is the last emitted
        token (``Step.late``). The drafter may propose the rest in the next step.
        """
        return None

    def observe(self, step: Step) -> None:
        """Learn from one forward's outcome; called after every forward but the prefill."""

    def finish(self, context: Sequence[int]) -> None:
        """The request ended with ``context`` (prompt and every emitted id)."""

    def stats(self) -> dict[str, float]:
        """The method's own figures for this request, by name."""
        return {}


class DraftForward(Protocol):
    """A forward of a model that drafts, which a drafter waits for. owner: runs forwards of several
    requests at once.
    """

    @property
    def owner(self) -> ForwardOwner:
        """The same object for all whose forwards can be one."""

    def run(self) -> Any:
        """Run it alone and return its outcome."""


class ForwardOwner(Protocol):
    """A model that drafts."""

    def run_together(self, forwards: Sequence[Any]) -> Sequence[Any]:
        """The outcome of each."""


Drafting = Generator[DraftForward, Any, Draft]
Outcome = TypeVar("Outcome")


class SharedDrafter(Drafter):
    """A drafter that yields its forwards, so that those of several requests are one."""

    @abstractmethod
    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        """``propose``: yields each forward, is sent its outcome, and returns the draft."""

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        return complete(self.drafting(context, budget))


def complete(steps: Generator[DraftForward, Any, Outcome]) -> Outcome:
    """Run a generator of forwards, each forward alone, and return its result."""
    outcome = None
    while True:
        try:
            forward = steps.send(outcome)
        except StopIteration as end:
            return cast(Outcome, end.value)
        outcome = forward.run()


class Method(ABC):
    """The part of a method that lives across requests. Subclasses override what they need; only
    ``begin`` is required.

    Order: constructor, check, bind, reset, then begin per request, reset as the policy requires,
    close.
    """

    lossless: bool = True
    # at temperature > 0 its nodes are drawn (``Draft.probs``): vanilla's distribution, other ids
    draws: bool = False
    by_node: bool = (
        # it reads a step by the numbers of its own draft's nodes, so it cannot be a member of a
        # hybrid
        False
    )
    sources: tuple[str, ...] = ()  # names of ``Draft.source`` numbers
    vocabulary: frozenset[int] | None = (
        None  # the ids that it can draft, where that is known after ``bind``; None = all
    )
    # names of the attributes that requests teach and ``reset`` empties
    learned: tuple[str, ...] = ()

    @property
    def needs(self) -> Needs:
        """The data that every forward must return; read after ``bind``, so it may depend on the
        target.
        """
        return Needs()

    @property
    def pauses(self) -> bool:
        """True if drafters can skip steps and observe them later as one step
        (``Budgets.share``).
        """
        return not (self.needs.read_topk or self.needs.concurrent)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Findings of the run that make its figures unsafe."""
        return ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Paths of the files it decodes with (draft model, table); read after ``check``."""
        return ()

    def check(self, model: ModelCard) -> None:
        """Check the target's card before any weights are read.

        Raises InputError when the two do not fit; the message begins with the setting (``draft=x:
        ...``); the harness puts the method's name in front of it.
        """

    def bind(self, target: Target) -> None:
        """Take the target, load weights; once a run. Raises InputError when the two do not fit."""

    def reset(self) -> None:
        """Forget what was learned from requests; called after bind, then as the reset policy
        requires.
        """

    def private(self) -> Method | None:
        """Return this method with its own ``learned`` and the rest shared, for one of several
        concurrent requests.

        Itself where nothing is learned; None if its requests must be served one after the other, as
        those of a method that has a ``reset`` and no ``learned``. Call ``reset`` on it, and never
        ``close``.
        """
        if not self.learned:
            return self if type(self).reset is Method.reset else None
        own = copy.copy(self)
        for name in self.learned:
            setattr(own, name, copy.deepcopy(getattr(self, name)))
        return own

    @abstractmethod
    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """A request (one turn) starts. seed: the drafter's own, independent of the verifier's."""

    def figures(self, drafter: Drafter, ids: Sequence[int]) -> dict[str, float]:
        """Return the figures of a request; in_vocabulary: share of its emitted ``ids`` that could
        be drafted.
        """
        own = {name: float(value) for name, value in drafter.stats().items()}
        if self.vocabulary is None or not ids:
            return own
        return own | {"in_vocabulary": sum(token in self.vocabulary for token in ids) / len(ids)}

    def state_bytes(self) -> int:
        """Bytes of learned state that outlive a request (tables, pools); weights not included."""
        return 0

    def close(self) -> None:
        """Release what ``bind`` took; also called where a bind failed, this method's or
        another's.
        """


# The function by which a peer reports the ids that a forward of the target emitted. True: the
# request has ended.
Emit = Callable[[Sequence[int]], bool]


@dataclass(frozen=True, slots=True)
class Settled:
    """A server's report of a complete answer."""

    ids: Sequence[int]  # all of it
    steps: Sequence[tuple[int, int]]  # (emitted, proposed) of each
    stats: Mapping[str, float] = field(default_factory=dict)  # figures of the request, by name


class Peer(Method):
    """A method with its own decoding loop (HF ``generate``), outside the shared runtime.

    The harness still counts, cuts and times its tokens: ``decode`` reports every forward's ids
    through ``emit``.
    """

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Refuse: a peer has no drafter. Raises NotImplementedError."""
        raise NotImplementedError(
            f"{type(self).__name__} has its own decoding loop; the harness calls decode()"
        )

    def private(self) -> Method | None:
        """Return None: its loop decodes one request."""
        return None

    def around(self, limit: int, seed: int) -> AbstractContextManager[None]:
        """Surround ``decode``: what is to be done before and after it, outside the clock."""
        return nullcontext()

    @abstractmethod
    def decode(self, prompt: Sequence[int], limit: int, seed: int, emit: Emit) -> None:
        """Decode at most ``limit`` tokens after ``prompt``; the first ``emit`` is the prefill's
        token.
        """


class Remote(Peer):
    """A method on a remote server: it needs no weights here, and answers several requests
    concurrently.

    synthetic: how the server reports that it draws acceptance from a table; '' if it does not
    report this.
    """

    synthetic: str = ""

    @abstractmethod
    def prepare(self, alone: bool = True) -> None:
        """Do the untimed work before a request, or before a stretch of requests (not ``alone``)."""

    @abstractmethod
    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of ``work``, on the event loop of this server's requests."""

    @abstractmethod
    async def answer(
        self,
        prompt: Sequence[int],
        limit: int,
        seed: int,
        emit: Emit,
        conversation: Mapping[str, Any],
    ) -> Callable[[], Settled]:
        """Send one request; see ``decode``. Returns a function that returns ids and steps, called
        outside the clock.
        """

    async def gauges(self) -> Mapping[str, float]:
        """Figures that the server reports of itself now, by name, such as the requests that wait;
        empty without any.
        """
        return {}

    def decode(
        self,
        prompt: Sequence[int],
        limit: int,
        seed: int,
        emit: Emit,
        conversation: Mapping[str, Any] | None = None,
    ) -> None:
        """See ``Peer``. conversation: of which the prompt was written, in the fields of OpenAI's
        chat completions.
        """
        self.settle: Callable[[], Settled] = self.run(
            self.answer(prompt, limit, seed, emit, conversation or {})
        )

    def private(self) -> Method:
        """Itself: no request leaves anything in it."""
        return self

    @abstractmethod
    def require_same_model(self, baseline: Remote) -> None:
        """Raise InputError where the baseline's server has another model."""

    @abstractmethod
    def gap(self, context: Sequence[int], chosen: int, other: int) -> float | None:
        """The difference [nats] of two tokens' log-probabilities after ``context``; None if not
        reported.
        """
