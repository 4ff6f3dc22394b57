"""A fault at every write, sync, rename, link and cut of a run: the same command goes on, nothing is lost or doubled.

Faults are of two kinds. A full disk raises OSError, and the run may clean up. A kill raises, too, but after it nothing
is written any more. Both strike before the operation, and behind it, or in its middle where bytes are written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path

import pytest

from builders.resumed import replay_of, timeless
from builders.runs import execute_job, job_for
from specbench.input import InputError
from specbench.measure import environment
from specbench.records.store import MANIFEST, RECORDS, read_run
from specbench.runs.execution import execute

CASES = 2
NOBODY = 999_999_999  # no process has this number
CALLS = ("fsync", "replace", "rename", "symlink", "unlink")


class Kill(BaseException):
    """The process ends here."""


class Faults:
    """Counts what a run does to the disk below a folder; strikes at the operation of a given number.

    late: behind the operation, or after half of the bytes. kill: nothing works any more from there on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, number: int, late: bool, kill: bool) -> None:
        self.folder, self.number, self.late, self.kill = folder, number, late, kill
        self.seen: list[str] = []
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        self._open = io.open
        monkeypatch.setattr(io, "open", self._opened)

    @property
    def dead(self) -> bool:
        return self.kill and len(self.seen) > self.number

    def strikes(self, name: str) -> bool:
        if self.dead:
            raise Kill
        self.seen.append(name)
        if len(self.seen) - 1 != self.number:
            return False
        if not self.late:
            self.fail()
        return True

    def fail(self) -> None:
        raise Kill if self.kill else OSError(errno.ENOSPC, "No space left on device")

    def _watched(self, name, call):
        def watched(*given, **named):
            if name != "fsync" and not str(given[0]).startswith((str(self.folder), "r")):
                return call(*given, **named)
            struck = self.strikes(name)
            found = call(*given, **named)
            if struck:
                self.fail()
            return found

        return watched

    def _opened(self, file, mode="r", *given, **named):
        if not str(file).startswith(str(self.folder)) or not set(mode) & set("wa+"):
            return self._open(file, mode, *given, **named)
        if self.dead:
            raise Kill
        return Watched(self._open(file, mode, buffering=0), self)


class Watched:
    """A file without a buffer, whose writes and cuts are watched."""

    def __init__(self, file, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        struck = self._faults.strikes("write")
        self._file.write(data[: len(data) // 2] if struck else data)
        if struck:
            self._faults.fail()
        return len(data)

    def truncate(self, size):
        struck = self._faults.strikes("truncate")
        self._file.truncate(size)
        if struck:
            self._faults.fail()


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> tuple[str, ...]:
    return *replay_of(tmp_path_factory.mktemp("trace"), CASES), "method=[pld]"


def nothing(folder: Path, whole: bytes) -> None:
    """A new run."""


def cut(folder: Path, whole: bytes) -> None:
    """A run that was killed in its second block."""
    lines = whole.splitlines(keepends=True)
    (folder / RECORDS).write_bytes(b"".join(lines[:3]) + lines[3][:50])
    (folder / f".{MANIFEST}.{NOBODY}.partial").write_text("{")


def done(folder: Path, whole: bytes) -> None:
    """A run that is to be kept aside."""
    (folder / RECORDS).write_bytes(whole)


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "full"])
@pytest.mark.parametrize("late", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize(
    ("prepare", "fresh", "expected"),
    [
        (nothing, "false", "write replace symlink"),
        (cut, "false", "truncate fsync write"),
        (done, "true", "rename write"),
    ],
)
def test_a_fault_anywhere(settings, tmp_path, monkeypatch, prepare, fresh, expected, kill, late):
    monkeypatch.setattr(os, "fsync", lambda number: None)  # these files need not outlive the machine
    monkeypatch.setattr(environment, "git_state", lambda folder: {})  # two processes a run
    job = job_for(*settings, f"measure.fresh={fresh}")
    records = [timeless(record) for record in execute_job(tmp_path / "whole", *settings)]
    whole, manifest = (tmp_path / "whole" / RECORDS).read_bytes(), (tmp_path / "whole" / MANIFEST).read_bytes()
    number, seen = 0, []
    while True:
        folder = tmp_path / str(number) / "r"
        folder.mkdir(parents=True)
        if prepare is not nothing:
            (folder / MANIFEST).write_bytes(manifest)
        prepare(folder, whole)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, folder.parent, number, late, kill)
            with contextlib.suppress(Kill, OSError, InputError):
                execute(job, folder, lambda *_: None)
        seen = seen if len(seen) > len(faults.seen) else faults.seen
        check(job, folder, records, whole if fresh == "true" else b"")
        if len(faults.seen) <= number:
            break
        number += 1
    assert set(expected.split()) <= set(seen), seen
    assert number >= 8


def check(job, folder: Path, records: list, kept: bytes) -> None:
    """The same command goes on: every record once, no file of the fault left, ``latest`` there."""
    execute(job, folder, lambda *_: None)
    assert [timeless(record) for record in read_run(folder).records] == records
    assert not list(folder.glob(".*.partial"))
    assert (folder.parent / "latest").resolve() == folder
    assert {path.name for path in folder.parent.glob(".*")} == set()
    assert not kept or any(path.read_bytes() == kept for path in folder.parent.glob(f"*/{RECORDS}"))
