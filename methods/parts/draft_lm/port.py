"""An actor behind a port: called in place, in a thread, or in a process of its own, with one and the same outcome.

The actor is an object whose public methods answer messages, one after the other, in the order in which they were sent:
so what it does cannot depend on where or when it runs. ``post`` sends and returns at once, ``take`` waits for the
answer, ``close`` ends it. A partner that is lost or stuck is a CaseError within ``patience_s``, never a hang, and
``open`` starts another one (CARD and PEARL run their draft models so; the papers use one process a model).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from methods.parts.draft_lm.channel import CLOSE_S, Channel, Lost, ProcessChannel, ThreadChannel
from specbench.types import CaseError, InputError

Backend = Literal["inline", "thread", "process"]
START_S = 600.0  # a partner imports its libraries and loads its weights


class Ticket:
    """Stands for one answer, which is kept for as long as this object is referenced."""

    __slots__ = ("__weakref__", "answer", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: list[Any] | None = None  # [kind, value]


class Port(ABC):
    """build: makes the actor of ``arguments``; for a process both must be known by name or plain values."""

    def __init__(self, build: Callable[..., Any], arguments: tuple[Any, ...], patience_s: float) -> None:
        self._build, self._arguments, self._patience_s = build, arguments, patience_s
        self._number = 0
        self._asked: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()

    @abstractmethod
    def open(self) -> None:
        """Start the partner unless it runs. Raises InputError or CaseError if it does not start."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the partner runs."""

    @abstractmethod
    def post(self, verb: str, *arguments: Any) -> Ticket:
        """Send a message and return at once. The ticket stands for its answer, which is dropped without it."""

    @abstractmethod
    def take(self, ticket: Ticket) -> Any:
        """Wait for the answer to a message. Raises CaseError when it failed, or the partner is gone."""

    @abstractmethod
    def close(self) -> None:
        """End the partner; leaves no process behind."""

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Post and take."""
        return self.take(self.post(verb, *arguments))

    def _ticket(self) -> Ticket:
        self._number += 1
        ticket = self._asked[self._number] = Ticket(self._number)
        return ticket

    def _answered(self, number: int, answer: list[Any]) -> None:
        if ticket := self._asked.pop(number, None):
            ticket.answer = answer


def open_port(backend: Backend, build: Callable[..., Any], arguments: tuple[Any, ...], patience_s: float) -> Port:
    """An open port of the kind asked for. patience_s: [s] without an answer after which a partner counts as stuck."""
    port: Port
    if backend == "inline":
        port = InlinePort(build, arguments, patience_s)
    else:
        port = RemotePort(ThreadChannel if backend == "thread" else ProcessChannel, build, arguments, patience_s)
    port.open()
    return port


class InlinePort(Port):
    """The actor works when its answer is taken, in the caller's own thread: nothing runs beside it."""

    def __init__(self, build: Callable[..., Any], arguments: tuple[Any, ...], patience_s: float) -> None:
        super().__init__(build, arguments, patience_s)
        self._actor: Any = None
        self._waiting: deque[tuple[int, str, tuple[Any, ...]]] = deque()

    def open(self) -> None:
        """Build the actor."""
        if self._actor is None:
            self._actor = self._build(*self._arguments)

    @property
    def alive(self) -> bool:
        """Whether the actor is built."""
        return self._actor is not None

    def post(self, verb: str, *arguments: Any) -> Ticket:
        """Keep the message until an answer is taken."""
        ticket = self._ticket()
        self._waiting.append((ticket.number, verb, arguments))
        return ticket

    def take(self, ticket: Ticket) -> Any:
        """Process the messages up to this one."""
        while ticket.answer is None:
            number, verb, arguments = self._waiting.popleft()
            self._answered(number, call_actor(self._actor, verb, arguments))
        return _value_of(ticket.answer)

    def close(self) -> None:
        """Drop the actor."""
        self._actor = None
        self._waiting.clear()


class RemotePort(Port):
    """The actor works in a thread or process, as soon as a message is there."""

    def __init__(
        self,
        kind: Callable[..., Channel],
        build: Callable[..., Any],
        arguments: tuple[Any, ...],
        patience_s: float,
    ) -> None:
        super().__init__(build, arguments, patience_s)
        self._kind = kind
        self._channel: Channel | None = None

    def open(self) -> None:
        """Start the partner and wait until its actor is built."""
        if self.alive:
            return
        self._drop()
        self._channel = self._kind(serve, (self._build, self._arguments), self._patience_s)
        try:
            kind, text = self._channel.receive(START_S)
        except Lost as error:
            self._drop()
            raise CaseError(f"the drafting partner could not be started: it {error}") from error
        if kind != "ready":
            self._drop()
            raise (InputError(text) if kind == "InputError" else CaseError(f"the drafting partner: {kind}: {text}"))

    @property
    def alive(self) -> bool:
        """Whether the thread or process runs."""
        return self._channel is not None and self._channel.alive

    @property
    def pid(self) -> int | None:
        """The partner's process, if it has one."""
        return self._channel.pid if self._channel else None

    def post(self, verb: str, *arguments: Any) -> Ticket:
        """Send."""
        ticket = self._ticket()
        try:
            self._partner().send([ticket.number, verb, list(arguments)])
        except Lost as error:
            raise self._gone(error) from error
        return ticket

    def take(self, ticket: Ticket) -> Any:
        """Wait for the answer."""
        try:
            while ticket.answer is None:
                number, *answer = self._partner().receive(self._patience_s)
                self._answered(number, answer)
        except Lost as error:
            raise self._gone(error) from error
        return _value_of(ticket.answer)

    def close(self) -> None:
        """Ask the partner to end; one that does not is ended."""
        self._drop()

    def _partner(self) -> Channel:
        if self._channel is None:
            raise Lost("is not running")
        return self._channel

    def _gone(self, error: Lost) -> CaseError:
        self._drop(grace_s=0.0)
        for number in list(self._asked):  # the next partner does not answer them
            self._answered(number, ["Lost", "it was lost before it answered"])
        return CaseError(f"the drafting partner {error}; the next case starts another one (port, patience_s)")

    def _drop(self, grace_s: float = CLOSE_S) -> None:
        if self._channel is not None:
            self._channel.close(grace_s)
            self._channel = None


def call_actor(actor: Any, verb: str, arguments: Any) -> list[Any]:
    """An actor's answer to a message: ``["ok", value]``, or the error's type and text."""
    try:
        return ["ok", getattr(actor, verb)(*arguments)]
    except Exception as error:  # the boundary of the actor: the case fails, the actor goes on
        return [type(error).__name__, str(error)]


def _value_of(answer: list[Any]) -> Any:
    kind, value = answer
    if kind != "ok":
        raise CaseError(f"the drafting partner: {kind}: {value}")
    return value


def serve(channel: Any, build: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The partner's side: build the actor, then answer until the other side is gone.

    channel: ``receive()`` gives a message or None at the end, ``send()`` an answer.
    """
    try:
        actor = build(*arguments)
    except Exception as error:  # the other side raises it
        channel.send([type(error).__name__, str(error)])
        return
    channel.send(["ready", ""])
    while (message := channel.receive()) is not None:
        ticket, verb, given = message
        channel.send([ticket, *call_actor(actor, verb, given)])
