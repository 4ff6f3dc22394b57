"""A disk with faults: each change that this process makes to the files below a folder can be struck
by a fault.

Changes are counted where Python hands them to the system. The buffers above them stay Python's own,
so a file whose write fails keeps in its buffer what a real one would keep.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# places of a strike; HALF: after a half of the bytes that are written
BEFORE, HALF = "before", "half"
WRITE, SYNC, RENAME, LINK, REMOVE, CUT = "write", "sync", "rename", "link", "remove", "cut"
BY_PATH = {  # function of os -> kind of change, place of the path among its arguments
    "rename": (RENAME, 1),
    "replace": (RENAME, 1),
    "symlink": (LINK, 1),
    "link": (LINK, 1),
    "unlink": (REMOVE, 0),
    "remove": (REMOVE, 0),
    "rmdir": (REMOVE, 0),
    "truncate": (CUT, 0),
}
BY_NUMBER = {"fsync": SYNC, "ftruncate": CUT, "sendfile": WRITE, "write": WRITE, "pwrite": WRITE}


class Fault:
    """A fault at one change, by its number. seen: the kinds of the changes so far, in their
    order.
    """

    def __init__(self, number: int, place: str) -> None:
        self.number, self.place, self.seen = number, place, list[str]()

    def before(self, kind: str) -> None:
        """Note a change, and strike before it."""
        self.seen.append(kind)
        if self._is_next() and self.place == BEFORE:
            self.fire()

    def written(self, size: int) -> int:
        """Return how many of the bytes are written."""
        half = len(self.seen) == self.number and self.place == HALF
        return max(1, size // 2) if half else size

    def after(self) -> None:
        """Strike after the change."""
        if self._is_next() and self.place == HALF:
            self.fire()

    def _is_next(self) -> bool:
        return len(self.seen) == self.number + 1

    def fire(self) -> None:
        """Do what the fault is."""
        raise NotImplementedError


class Disk:
    """The files below a folder."""

    def __init__(self, folder: Path, fault: Fault, patch: Callable[[Any, str, Any], None]) -> None:
        """Watch the folder from here on. patch: sets an attribute of a module."""
        self._folder, self._fault = f"{os.path.realpath(folder)}/", fault
        self._open = io.open
        for name, (kind, place) in BY_PATH.items():
            patch(os, name, self._by_path(getattr(os, name), kind, place))
        for name, kind in BY_NUMBER.items():
            patch(os, name, self._by_number(getattr(os, name), kind))
        patch(io, "open", self.open)
        patch(builtins, "open", self.open)

    def watches(self, path: Any) -> bool:
        """Return whether a path is below the folder."""
        if isinstance(path, int):
            return False
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (links stay)
        return full.startswith(self._folder)

    def change(self, kind: str, call: Callable[..., Any], *given: Any) -> Any:
        """Make a change, unless the fault prevents it."""
        self._fault.before(kind)
        found = call(*given)
        self._fault.after()
        return found

    def write(self, call: Callable[[Any], int], data: Any) -> int:
        """Write some of the bytes; returns how many."""
        data = memoryview(data).cast("B")
        return int(self.change(WRITE, call, data[: self._fault.written(len(data))]))

    def _by_path(self, call: Callable[..., Any], kind: str, place: int) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            if self.watches(given[place]):
                return self.change(kind, lambda: call(*given, **named))
            return call(*given, **named)

        return watched

    def _by_number(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def watched(number: int, *given: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 (a pipe is not a path)
            if not self.watches(path):
                return call(number, *given)
            if call.__name__ in ("write", "pwrite"):
                return self.write(lambda data: call(number, data, *given[1:]), given[0])
            return self.change(kind, call, number, *given)

        return watched

    def open(
        self, file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any
    ) -> Any:
        """``open``, with the buffers of Python above a file that is watched and written."""
        if not set(mode) & set("wax+") or not self.watches(file) or named.get("opener"):
            return self._open(file, mode, buffering, *given, **named)
        raw = File(self, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, *given, **named)


class File(io.FileIO):
    """A file without a buffer, whose changes a disk counts."""

    def __init__(self, disk: Disk, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._disk = disk

    def write(self, data: Any) -> int:
        return self._disk.write(super().write, data)

    def truncate(self, size: int | None = None) -> int:
        return int(self._disk.change(CUT, super().truncate, size))
