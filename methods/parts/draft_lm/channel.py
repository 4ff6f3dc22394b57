"""How a port reaches its actor: messages both ways, with an end to every wait. In place and in a thread.

A thread gets the objects themselves. It is a daemon, so it does not outlive the run. A process of its own stands in
``process_channel``.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

CLOSE_S = 2.0  # [s] that a partner has to end by itself

Build = Callable[..., Any]


class Lost(Exception):
    """The partner does not answer; the message is the rest of a sentence that begins "the drafting partner"."""


def run_actor(build: Build, arguments: tuple[Any, ...]) -> Generator[list[Any], list[Any], None]:
    """Build the actor and yield ``["ready", ""]``, then [ticket, "ok", value] for each message sent in.

    Where something fails, the error's type and text stand in place of ``ready`` or ``ok`` and what follows it.
    """
    try:
        actor = build(*arguments)
    except Exception as error:  # the other side raises it
        yield [type(error).__name__, str(error)]
        return
    message = yield ["ready", ""]
    while True:
        ticket, verb, given = message
        try:
            answer = ["ok", getattr(actor, verb)(*given)]
        except Exception as error:  # the boundary of the actor: the case fails, the actor goes on
            answer = [type(error).__name__, str(error)]
        message = yield [ticket, *answer]


class End(Protocol):
    """The actor's end of a thread's queues or of a process's connection."""

    def receive(self) -> Any:
        """The next message; None is the end."""

    def send(self, message: Any) -> None:
        """An answer."""


def serve(end: End, build: Build, arguments: tuple[Any, ...]) -> None:
    """The partner's side of a thread or process: answer until the other side is gone."""
    answers = run_actor(build, arguments)
    end.send(next(answers))
    while (message := end.receive()) is not None:
        end.send(answers.send(message))


class Channel(ABC):
    """The port's end. build: makes the actor of ``arguments`` on the other side."""

    @abstractmethod
    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        """patience_s: [s] that a single message may take on its way."""

    @abstractmethod
    def send(self, message: Any) -> None:
        """Send without waiting for the other side to work. Raises Lost."""

    @abstractmethod
    def receive(self, patience_s: float) -> Any:
        """The next message. Raises Lost when none comes in time, or none can come any more."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the other side runs."""

    @property
    def pid(self) -> int | None:
        """The process of the other side, if it is another one."""
        return None

    @abstractmethod
    def close(self, grace_s: float = CLOSE_S) -> None:
        """End the other side; it has ``grace_s`` to do so by itself."""


class InlineChannel(Channel):
    """No other side: the actor works when its answer is received, in the caller's own thread."""

    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        self._answers = run_actor(build, arguments)
        self._messages: deque[Any] = deque([None])  # the first one starts the generator

    def send(self, message: Any) -> None:
        """Keep it until an answer is received."""
        self._messages.append(message)

    def receive(self, patience_s: float) -> Any:
        """The answer to the oldest message."""
        return self._answers.send(self._messages.popleft())

    @property
    def alive(self) -> bool:
        """Until it is closed."""
        return True

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Drop the actor."""
        self._answers.close()


class _Box:
    """The thread's end of two queues."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive(self) -> Any:
        """A message; None is the end."""
        return self.inbox.get()

    def send(self, message: Any) -> None:
        """An answer."""
        self.outbox.put(message)


class ThreadChannel(Channel):
    """A daemon thread. One that is stuck cannot be ended: it is left behind, and ends when its call returns."""

    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        self._box = _Box()
        given = (self._box, build, arguments)
        self._thread = threading.Thread(target=serve, args=given, daemon=True, name="drafting")
        self._thread.start()

    def send(self, message: Any) -> None:
        """Put into its queue."""
        self._box.inbox.put(message)

    def receive(self, patience_s: float) -> Any:
        """Get from its queue."""
        try:
            return self._box.outbox.get(timeout=patience_s)
        except queue.Empty as error:
            raise Lost(f"gave no answer for {patience_s:g} s") from error

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Send the end."""
        self._box.inbox.put(None)
        self._thread.join(grace_s)
