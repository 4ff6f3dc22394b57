"""A port to an actor that is called in place, in a thread or in its own process, always with the
same outcome.

The actor is an object whose public methods answer messages, one after the other, in the order in
which they were sent: so its work cannot depend on where or when it runs. ``post`` sends and returns
immediately, ``take`` waits for the answer, ``close`` ends the actor. A partner that is lost or
stuck is a CaseError within ``patience_s``, never a hang, and ``open`` starts another one (CARD and
PEARL run their draft models so; the papers use one process a model).

A channel carries the messages. A thread gets the objects themselves, a process copies of them,
pickled. Both are daemons, so they do not outlive the run; a process is started afresh (spawn: a
CUDA context cannot be inherited), and ends when its other side is gone.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import signal
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
import torch.multiprocessing
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp

from specbench.types import CaseError, InputError

CLOSE_S = 2.0  # [s] that a partner has to end by itself

Build = Callable[..., Any]


class Lost(Exception):
    """The partner does not answer; the message is the rest of a sentence that begins "the drafting
    partner".
    """


def run_actor(build: Build, arguments: tuple[Any, ...]) -> Generator[list[Any], list[Any], None]:
    """Build the actor and yield ``["ready", ""]``, then [ticket, "ok", value] for each message sent
    in.

    Where something fails, the error's type and text replace ``ready`` or ``ok`` and what follows
    it.
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
        except Exception as error:  # the boundary of the actor: the case fails, the actor continues
            answer = [type(error).__name__, str(error)]
        message = yield [ticket, *answer]


class InlineChannel:
    """No other side: the actor works when its answer is received, in the caller's own thread."""

    alive = True

    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        """build: makes the actor of ``arguments``. patience_s: not used, since nothing is waited
        for.
        """
        self._answers = run_actor(build, arguments)
        self._messages: deque[Any] = deque([None])  # the first one starts the generator

    def send(self, message: Any) -> None:
        """Keep it until an answer is received."""
        self._messages.append(message)

    def receive(self, patience_s: float) -> Any:
        """The answer to the oldest message."""
        return self._answers.send(self._messages.popleft())

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Drop the actor."""
        self._answers.close()


class _Queues:
    """One end of two queues between threads."""

    def __init__(self, inbox: queue.SimpleQueue[Any], outbox: queue.SimpleQueue[Any]) -> None:
        self._inbox, self.send = inbox, outbox.put

    def receive(self, patience_s: float | None = None) -> Any:
        """The next message. Raises Lost where none comes in time."""
        try:
            return self._inbox.get(timeout=patience_s)
        except queue.Empty as error:
            raise Lost(f"gave no answer for {patience_s:g} s") from error


class _Wire:
    """One end of a pipe between processes; EOFError: the other one is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        """Write. Raises Lost where the other side does not read."""
        try:
            self._connection.send_bytes(pickle.dumps(message))
        except BlockingIOError as error:
            raise Lost("is stuck: it reads no message") from error
        except OSError as error:
            raise EOFError from error

    def receive(self, patience_s: float | None = None) -> Any:
        """The next message. Raises Lost where none comes in time."""
        try:
            if not self._connection.poll(patience_s):
                raise Lost(f"gave no answer for {patience_s:g} s")
            return pickle.loads(self._connection.recv_bytes())
        except BlockingIOError as error:
            raise Lost("is stuck in the middle of an answer") from error
        except OSError as error:
            raise EOFError from error


def _serve(end: _Queues | _Wire, build: Build, arguments: tuple[Any, ...]) -> None:
    """The partner's side of a thread or process: answer until None, the end, comes or the other
    side is gone.
    """
    answers = run_actor(build, arguments)
    with contextlib.suppress(EOFError):  # nobody waits for the answer
        end.send(next(answers))
        while (message := end.receive()) is not None:
            end.send(answers.send(message))


class ThreadChannel:
    """A daemon thread. One that is stuck cannot be ended: it is abandoned, and ends when its call
    returns.
    """

    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        """build: makes the actor of ``arguments``. patience_s: [s] that a single message may take
        on its way.
        """
        there, back = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
        self._end: _Queues | _Wire = _Queues(back, there)
        given = (_Queues(there, back), build, arguments)
        self.worker: Any = threading.Thread(target=_serve, args=given, daemon=True, name="drafting")
        self.worker.start()

    @property
    def alive(self) -> bool:
        """True if the other side runs."""
        return self.worker.is_alive()

    def send(self, message: Any) -> None:
        """Send without waiting for the other side to work. Raises Lost."""
        with self._noticing():
            self._end.send(message)

    def receive(self, patience_s: float) -> Any:
        """The next message. Raises Lost when none comes in time, or none can come any more."""
        with self._noticing():
            return self._end.receive(patience_s)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except EOFError as error:
            self.worker.join(CLOSE_S)
            raise Lost(
                f"(process {self.worker.pid}) ended with exit code {self.worker.exitcode}"
            ) from error

    def close(self, grace_s: float = CLOSE_S) -> None:
        """End the other side; it has ``grace_s`` to do so by itself."""
        self._end.send(None)
        self.worker.join(grace_s)


class ProcessChannel(ThreadChannel):
    """An actor in a separate process; all that it is given is pickled."""

    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._end = _Wire(self._connection)
        # no single read or write takes longer: then it raises BlockingIOError
        whole = int(patience_s)
        limit = struct.pack("@ll", whole, int((patience_s - whole) * 1e6))
        with socket.socket(fileno=self._connection.fileno()) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            end.detach()  # the connection's own, not to be closed here
        given = (theirs, torch.get_num_threads(), cudnn_sdp_enabled(), build, arguments)
        self.worker = context.Process(target=_run, args=given, daemon=True, name="drafting")
        with _interrupts_ignored():
            self.worker.start()
        theirs.close()  # so that its end is noticed here

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Send the end and wait for the exit, so that no zombie stays; kill what does not end in
        time.
        """
        if grace_s:
            with contextlib.suppress(EOFError, Lost):  # the process has ended already, or is stuck
                super().close(grace_s)
        if self.worker.is_alive():
            self.worker.kill()
        self.worker.join()
        self._connection.close()


def _run(
    connection: Connection, threads: int, cudnn: bool, build: Build, arguments: tuple[Any, ...]
) -> None:
    """Runs the other process. threads: torch's, as many as here, since sums depend on it. cudnn:
    its attention too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C, and ends this process
    torch.set_num_threads(threads)
    enable_cudnn_sdp(cudnn)
    _serve(_Wire(connection), build, arguments)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C from its first instruction on: its parent ends
    it.
    """
    # only there can a signal's handler be set
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


Backend = Literal["inline", "thread", "process"]
Channel = InlineChannel | ThreadChannel
CHANNELS: dict[Backend, type[Channel]] = {
    "inline": InlineChannel,
    "thread": ThreadChannel,
    "process": ProcessChannel,
}
START_S = 600.0  # a partner imports its libraries and loads its weights


class Ticket:
    """Stands for one answer, which is kept for as long as this object is referenced."""

    __slots__ = ("__weakref__", "answer", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: list[Any] | None = None  # [kind, value]


class Port:
    """The way to one actor, wherever it runs.

    build: makes the actor of ``arguments``; for a process both must be known by name or plain
    values. patience_s: [s] without an answer after which a partner counts as stuck.
    """

    def __init__(
        self,
        backend: Backend,
        build: Callable[..., Any],
        arguments: tuple[Any, ...],
        patience_s: float,
    ) -> None:
        self._kind, self._build, self._arguments, self._patience_s = (
            CHANNELS[backend],
            build,
            arguments,
            patience_s,
        )
        self._channel: Channel | None = None
        self._number = 0
        self._asked: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self.open()

    def open(self) -> None:
        """Start the partner unless it runs, and wait until its actor is built. Raises InputError or
        CaseError.
        """
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
            raise (
                InputError(text)
                if kind == "InputError"
                else CaseError(f"the drafting partner: {kind}: {text}")
            )

    @property
    def alive(self) -> bool:
        """True if the partner runs."""
        return self._channel is not None and self._channel.alive

    def post(self, verb: str, *arguments: Any) -> Ticket:
        """Send a message and return immediately. Without the ticket, its answer is dropped."""
        self._number += 1
        ticket = self._asked[self._number] = Ticket(self._number)
        try:
            self._partner().send([ticket.number, verb, list(arguments)])
        except Lost as error:
            raise self._gone(error) from error
        return ticket

    def take(self, ticket: Ticket) -> Any:
        """Wait for the answer to a message. Raises CaseError when it failed, or the partner is
        gone.
        """
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
        """Ask the partner to end; one that does not within ``grace_s`` is ended. No process
        remains.
        """
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
            f"the drafting partner {error}; the next case starts another; a slow one needs more"
            " patience_s"
        )
