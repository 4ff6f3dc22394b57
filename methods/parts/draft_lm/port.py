"""An actor behind a port: called in place, in a thread, or in a process of its own, with one and the same outcome.

The actor is an object whose public methods answer messages, one after the other, in the order in which they were sent:
so what it does cannot depend on where or when it runs. ``post`` sends and returns at once, ``take`` waits for the
answer, ``close`` ends it. A partner that is lost or stuck is a CaseError within ``patience_s``, never a hang, and
``open`` starts another one (CARD and PEARL run their draft models so; the papers use one process a model).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

from methods.parts.draft_lm.channel import CLOSE_S, InlineChannel, Lost, ProcessChannel, ThreadChannel
from specbench.types import CaseError, InputError

Backend = Literal["inline", "thread", "process"]
Channel = InlineChannel | ThreadChannel
CHANNELS: dict[Backend, type[Channel]] = {"inline": InlineChannel, "thread": ThreadChannel, "process": ProcessChannel}
START_S = 600.0  # a partner imports its libraries and loads its weights


class Ticket:
    """Stands for one answer, which is kept for as long as this object is referenced."""

    __slots__ = ("__weakref__", "answer", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: list[Any] | None = None  # [kind, value]


class Port:
    """build: makes the actor of ``arguments``; for a process both must be known by name or plain values.

    patience_s: [s] without an answer after which a partner counts as stuck.
    """

    def __init__(
        self, backend: Backend, build: Callable[..., Any], arguments: tuple[Any, ...], patience_s: float
    ) -> None:
        self._kind, self._build, self._arguments, self._patience_s = CHANNELS[backend], build, arguments, patience_s
        self._channel: Channel | None = None
        self._number = 0
        self._asked: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()

    def open(self) -> None:
        """Start the partner unless it runs, and wait until its actor is built. Raises InputError or CaseError."""
        if self.alive:
            return
        self.close()
        self._channel = self._kind(self._build, self._arguments, self._patience_s)
        try:
            kind, text = self._channel.receive(START_S)
        except Lost as error:
            self.close()
            raise CaseError(f"the drafting partner could not be started: it {error}") from error
        if kind != "ready":
            self.close()
            raise (InputError(text) if kind == "InputError" else CaseError(f"the drafting partner: {kind}: {text}"))

    @property
    def alive(self) -> bool:
        """Whether the partner runs."""
        return self._channel is not None and self._channel.alive

    def post(self, verb: str, *arguments: Any) -> Ticket:
        """Send a message and return at once. The ticket stands for its answer, which is dropped without it."""
        self._number += 1
        ticket = self._asked[self._number] = Ticket(self._number)
        try:
            self._partner().send([ticket.number, verb, list(arguments)])
        except Lost as error:
            raise self._gone(error) from error
        return ticket

    def take(self, ticket: Ticket) -> Any:
        """Wait for the answer to a message. Raises CaseError when it failed, or the partner is gone."""
        try:
            while ticket.answer is None:
                number, *answer = self._partner().receive(self._patience_s)
                self._answered(number, answer)
        except Lost as error:
            raise self._gone(error) from error
        kind, value = ticket.answer
        if kind != "ok":
            raise CaseError(f"the drafting partner: {kind}: {value}")
        return value

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Post and take."""
        return self.take(self.post(verb, *arguments))

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Ask the partner to end; one that does not within ``grace_s`` is ended. Leaves no process behind."""
        if self._channel is not None:
            self._channel.close(grace_s)
            self._channel = None

    def _partner(self) -> Channel:
        if self._channel is None:
            raise Lost("is not running")
        return self._channel

    def _answered(self, number: int, answer: list[Any]) -> None:
        if ticket := self._asked.pop(number, None):
            ticket.answer = answer

    def _gone(self, error: Lost) -> CaseError:
        self.close(grace_s=0.0)
        for number in list(self._asked):  # the next partner does not answer them
            self._answered(number, ["Lost", "it was lost before it answered"])
        return CaseError(
            f"the drafting partner {error}; the next case starts another; a slow one needs more patience_s"
        )


def open_port(backend: Backend, build: Callable[..., Any], arguments: tuple[Any, ...], patience_s: float) -> Port:
    """An open port; see ``Port``."""
    port = Port(backend, build, arguments, patience_s)
    port.open()
    return port
