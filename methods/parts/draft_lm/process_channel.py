"""An actor in a process of its own, which exchanges bytes with the port.

The process is started afresh (spawn: a CUDA context cannot be inherited). It does not outlive the run: it is a daemon,
and ends when its other side is gone. The bytes are JSON, with the arrays and tensors as raw memory behind it. Nothing
that is received is executed or unpickled: a message can hold numbers, text, lists, mappings and arrays.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from methods.parts.draft_lm.channel import CLOSE_S, Build, Channel, Lost, serve
from specbench.target.attention import allow_cudnn_attention, is_cudnn_attention_allowed

MARK = "\x00array"  # reserved key, of the mapping that stands for an array: [dtype, shape, whether a tensor]


def encode(message: Any) -> bytes:
    """A message as bytes: 8 bytes length of the JSON, the JSON, the arrays. Raises TypeError for anything else."""
    arrays: list[bytes] = []

    def stand_in(value: Any) -> dict[str, Any]:
        tensor = isinstance(value, torch.Tensor)
        array = value.detach().cpu().numpy() if tensor else value
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"a {type(value).__name__} cannot be sent; expected numbers, text, lists or arrays")
        arrays.append(np.ascontiguousarray(array).tobytes())
        return {MARK: [array.dtype.str, list(array.shape), tensor]}

    text = json.dumps(message, default=stand_in).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *arrays])


def decode(data: bytes) -> Any:
    """The message that ``encode`` was given; tuples come back as lists."""
    end = 8 + int.from_bytes(data[:8], "little")
    place = end

    def restore(value: dict[str, Any]) -> Any:
        nonlocal place
        if MARK not in value:
            return value
        kind, shape, tensor = value[MARK]
        dtype = np.dtype(kind)
        count = int(np.prod(shape))
        array = np.frombuffer(data, dtype, count, place).reshape(shape).copy()
        place += count * dtype.itemsize
        return torch.from_numpy(array) if tensor else array

    return json.loads(data[8:end], object_hook=restore)  # objects are restored in the order in which they were written


class _Line:
    """The process's end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive(self) -> Any:
        """A message; None when the other side is gone or has sent the empty message, which is the end."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError):
            return None
        return decode(data) if data else None

    def send(self, message: Any) -> None:
        """An answer; it is dropped where the other side is gone."""
        with contextlib.suppress(OSError):  # the reader is gone: nobody waits for the answer
            self._connection.send_bytes(encode(message))


def _run(connection: Connection, threads: int, cudnn: bool, build: Build, arguments: tuple[Any, ...]) -> None:
    """What the process does. threads: torch's, as many as here, since sums depend on it. cudnn: its attention too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C, and ends this process
    torch.set_num_threads(threads)
    allow_cudnn_attention(cudnn)
    serve(_Line(connection), build, arguments)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C from its first instruction on: its parent ends it."""
    if threading.current_thread() is not threading.main_thread():  # only there can a signal's handler be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ProcessChannel(Channel):
    """A process of its own."""

    def __init__(self, build: Build, arguments: tuple[Any, ...], patience_s: float) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        _limit(self._connection, patience_s)
        given = (theirs, torch.get_num_threads(), is_cudnn_attention_allowed(), build, arguments)
        self._process = context.Process(target=_run, args=given, daemon=True, name="drafting")
        with _interrupts_ignored():
            self._process.start()
        theirs.close()  # so that its end is noticed here

    def send(self, message: Any) -> None:
        """Write; a partner that does not read for too long is stuck."""
        try:
            self._connection.send_bytes(encode(message))
        except BlockingIOError as error:
            raise Lost("is stuck: it reads no message") from error
        except OSError as error:
            raise Lost(self._ended()) from error

    def receive(self, patience_s: float) -> Any:
        """Read."""
        try:
            if not self._connection.poll(patience_s):
                raise Lost(f"gave no answer for {patience_s:g} s")
            return decode(self._connection.recv_bytes())
        except BlockingIOError as error:
            raise Lost("is stuck in the middle of an answer") from error
        except (EOFError, OSError) as error:
            raise Lost(self._ended()) from error

    def _ended(self) -> str:
        self._process.join(CLOSE_S)
        return f"(process {self._process.pid}) ended with exit code {self._process.exitcode}"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self._process.pid

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Send the end and wait for the exit, so that no zombie stays; kill what does not end in time."""
        if grace_s:
            with contextlib.suppress(OSError):  # the process has ended already
                self._connection.send_bytes(b"")
            self._process.join(grace_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()


def _limit(connection: Connection, seconds: float) -> None:
    """No single read or write of this end takes longer: then it raises BlockingIOError."""
    whole = int(seconds)
    limit = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    with socket.socket(fileno=connection.fileno()) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.detach()  # the connection's own, not to be closed here
