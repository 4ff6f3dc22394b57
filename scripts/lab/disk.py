"""A disk with faults: each operation of this process on the files below a folder can be struck by a fault.

Operations are counted where Python hands them to the system. The buffers above them stay Python's own, so a file whose
write fails keeps in its buffer what a real one would keep.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

BEFORE, HALF, AFTER = "before", "half", "after"  # places of a strike; HALF: after a half of the bytes that are written
OPEN, READ, WRITE, SYNC, RENAME, LINK, REMOVE, FOLDER, CUT = (
    "open", "read", "write", "sync", "rename", "link", "remove", "folder", "cut",
)  # fmt: skip
SPACE = (OPEN, WRITE, SYNC, LINK, FOLDER)  # operations that need space on the disk
CHANGES = (*SPACE, RENAME, REMOVE, CUT)
DAY_S = 86_400
_BY_PATH = {  # function of os -> kind of operation, place of the path among its arguments
    "rename": (RENAME, 1), "replace": (RENAME, 1), "symlink": (LINK, 1), "link": (LINK, 1), "unlink": (REMOVE, 0),
    "remove": (REMOVE, 0), "rmdir": (REMOVE, 0), "mkdir": (FOLDER, 0), "truncate": (CUT, 0), "open": (OPEN, 0),
}  # fmt: skip
_BY_NUMBER = {"fsync": SYNC, "ftruncate": CUT, "sendfile": WRITE, "write": WRITE, "pwrite": WRITE, "pread": READ}
_PROCESS = re.compile(r"\d{2,}")  # in the name of a partial file


@dataclass(frozen=True, slots=True)
class Operation:
    """kind: one of the words above. path: relative to the folder, without numbers of processes."""

    kind: str
    path: str


class Fault:
    """A fault at one operation; the base only lets operations pass. fired: whether it has struck."""

    strikes: tuple[str, ...] = ()  # kinds of operations
    places: tuple[str, ...] = (BEFORE,)

    def __init__(self, number: int = -1, place: str = BEFORE, fired: Callable[[], object] = bool) -> None:
        """number: of the operation. fired: is called immediately before the strike."""
        self.number, self.place, self.fired = number, place, fired

    def before(self, number: int, operation: Operation) -> None:
        """Strike before the operation."""
        if number == self.number and self.place == BEFORE:
            self.fired()
            self.fire()

    def written(self, number: int, size: int) -> int:
        """Return how many of the bytes are written."""
        return max(1, size // 2) if number == self.number and self.place == HALF else size

    def after(self, number: int, operation: Operation) -> None:
        """Strike after the operation."""
        if number == self.number and self.place != BEFORE:
            self.fired()
            self.fire()

    def fire(self) -> None:
        """Do what the fault is."""

    def end(self, folder: Path) -> None:
        """Do what remains to be done when the command has ended."""


class Signal(Fault):
    """A signal to this process."""

    strikes, places = (*CHANGES, READ), (BEFORE, HALF, AFTER)
    signal = signal.SIGKILL

    def fire(self) -> None:
        os.kill(os.getpid(), self.signal)


class Failure(Fault):
    """An operation fails; a write may have written a half before, as a short write that is followed by the error."""

    strikes: tuple[str, ...] = (*CHANGES, READ)
    places: tuple[str, ...] = (BEFORE, HALF)
    error = errno.EIO
    lasting = False  # it fails from there on, if it needs space
    _due = False

    def before(self, number: int, operation: Operation) -> None:
        """Fail at the operation, or after its half was written."""
        if self._due and operation.kind in SPACE:
            self._due = self.lasting
            self.fire()
        super().before(number, operation)

    def after(self, number: int, operation: Operation) -> None:
        """Note that a half was written."""
        if number == self.number and self.place == HALF:
            self.fired()
            self._due = True

    def fire(self) -> None:
        self._due = self.lasting
        raise OSError(self.error, os.strerror(self.error))


class Clock(Fault):
    """The wall clock jumps. The files that are written from there on have the times of the new clock."""

    strikes, places = CHANGES, (BEFORE, AFTER)
    by_s = -400 * DAY_S
    _at: float | None = None

    def fire(self) -> None:
        real, real_ns, by_s = time.time, time.time_ns, self.by_s
        self._at = real()

        class Moved(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(tz) + timedelta(seconds=by_s)

        for module in [each for name, each in sys.modules.items() if name.startswith("specbench")]:
            if vars(module).get("datetime") is datetime:
                module.datetime = Moved  # type: ignore[attr-defined]
        time.time, time.time_ns = (lambda: real() + by_s), (lambda: real_ns() + int(by_s * 1e9))

    def end(self, folder: Path) -> None:
        """Move the times of the files that were written since."""
        for path in folder.rglob("*") if self._at is not None else ():
            if not path.is_symlink() and path.stat().st_mtime >= (self._at or 0):
                os.utime(path, (path.stat().st_mtime + self.by_s,) * 2)


class ClockForward(Clock):
    """The same, into the future."""

    by_s = 400 * DAY_S


def _variant(of: type[Fault], **attributes: Any) -> type[Fault]:
    """A kind of fault with other class attributes."""
    return type(of.__name__, (of,), attributes)


FAULTS: Mapping[str, type[Fault]] = {
    "kill": Signal,
    "interrupt": _variant(Signal, signal=signal.SIGINT),
    "terminate": _variant(Signal, signal=signal.SIGTERM),
    "hangup": _variant(Signal, signal=signal.SIGHUP),
    "full disk": _variant(Failure, strikes=SPACE, error=errno.ENOSPC, lasting=True),
    "full once": _variant(Failure, strikes=SPACE, error=errno.ENOSPC),  # another process has freed space
    "EIO": Failure,
    "short write": _variant(Fault, strikes=(WRITE,), places=(HALF,)),  # without an error
    "failed write": _variant(Failure, strikes=(WRITE,)),
    "failed sync": _variant(Failure, strikes=(SYNC,), places=(BEFORE,)),
    "failed rename": _variant(Failure, strikes=(RENAME,), places=(BEFORE,)),
    "clock back": Clock,
    "clock forward": ClockForward,
}


class Disk:
    """The files below a folder. operations: those that were made, in their order."""

    def __init__(self, folder: Path, fault: Fault, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        """Watch the folder from here on. patch: sets an attribute of a module."""
        self._folder, self._fault = os.path.join(os.path.realpath(folder), ""), fault  # noqa: PTH118 (with a last /)
        self.operations: list[Operation] = []
        self._open = io.open
        for name, (kind, place) in _BY_PATH.items():
            patch(os, name, self._by_path(getattr(os, name), kind, place))
        for name, kind in _BY_NUMBER.items():
            patch(os, name, self._by_number(getattr(os, name), kind))
        patch(io, "open", self.open)
        patch(builtins, "open", self.open)

    def watches(self, path: Any) -> str | None:
        """Return a path relative to the folder; None if it is not below it."""
        if isinstance(path, int):
            return None
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (links stay)
        return full.removeprefix(self._folder) if full.startswith(self._folder) else None

    def operate(self, kind: str, path: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Count an operation and make it, unless the fault prevents it."""
        operation, number = Operation(kind, _PROCESS.sub("N", path)), len(self.operations)
        self.operations.append(operation)
        self._fault.before(number, operation)
        found = call(*given, **named)
        self._fault.after(number, operation)
        return found

    def write(self, path: str, call: Callable[[Any], int], data: Any) -> int:
        """Write some of the bytes; returns how many."""
        data = memoryview(data).cast("B")
        size = self._fault.written(len(self.operations), len(data))
        return int(self.operate(WRITE, path, call, data[:size]))

    def _by_path(self, call: Callable[..., Any], kind: str, place: int) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            path = self.watches(given[place])
            if path is None:
                return call(*given, **named)
            looks = kind == OPEN and (not given[1] & os.O_CREAT or os.path.lexists(given[0]))
            return self.operate(READ if looks else kind, path, call, *given, **named)

        return watched

    def _by_number(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def watched(number: int, *given: Any) -> Any:
            path = self.watches(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115 (a pipe is not a path)
            if path is None:
                return call(number, *given)
            if call.__name__ in ("write", "pwrite"):
                return self.write(path, lambda data: call(number, data, *given[1:]), given[0])
            return self.operate(kind, path, call, number, *given)

        return watched

    def open(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        """``open``, with the buffers of Python above a file that is watched."""
        path = self.watches(file)
        if path is None or opener is not None:
            return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        writes = bool(set(mode) & set("wax+"))
        kind = OPEN if writes and not os.path.lexists(file) else READ
        raw = self.operate(kind, path, _File, self, path, file, mode.translate({98: None, 116: None}))
        if buffering == 0:
            return raw
        above = io.BufferedRandom if "+" in mode else io.BufferedWriter if writes else io.BufferedReader
        buffer = above(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline, buffering == 1)


class _File(io.FileIO):
    """A file without a buffer, whose operations a disk counts."""

    def __init__(self, disk: Disk, path: str, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._disk, self._path = disk, path

    def write(self, data: Any) -> int:
        return self._disk.write(self._path, super().write, data)

    def readinto(self, buffer: Any) -> Any:
        return self._disk.operate(READ, self._path, super().readinto, buffer)

    def readall(self) -> Any:
        return self._disk.operate(READ, self._path, super().readall)

    def truncate(self, size: int | None = None) -> int:
        return int(self._disk.operate(CUT, self._path, super().truncate, size))
