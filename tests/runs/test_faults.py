"""A fault at every write, sync, rename, link and cut of a run: the same command continues it and
loses no record.

Faults are of two kinds. A full disk raises OSError, and the run may clean up. A kill raises, too,
but after it nothing is written any more. Both strike before the operation, and after it, or after a
half of the bytes of a write.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from builders.disk import BEFORE, CUT, HALF, LINK, RENAME, SYNC, WRITE, Disk, Fault
from builders.resumed import replay_of, timeless
from builders.runs import execute_job, job_for
from specbench.input import InputError
from specbench.measure import environment
from specbench.records.store import MANIFEST, RECORDS, read_run
from specbench.runs.execution import execute

CASES = 2
NOBODY = 999_999_999  # no process has this number


class Kill(BaseException):
    """The process ends here."""


class Strike(Fault):
    """A full disk, or with ``kill`` the end of the process: every later change fails too."""

    def __init__(self, number: int, place: str, kill: bool) -> None:
        super().__init__(number, place)
        self.kill = kill

    def before(self, kind: str) -> None:
        if self.kill and len(self.seen) > self.number:
            raise Kill
        super().before(kind)

    def fire(self) -> None:
        raise Kill if self.kill else OSError(errno.ENOSPC, "No space left on device")


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
    """A run that the next one moves aside."""
    (folder / RECORDS).write_bytes(whole)


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "full"])
@pytest.mark.parametrize("place", [HALF, BEFORE])
@pytest.mark.parametrize(
    ("prepare", "fresh", "expected"),
    [
        (nothing, "false", {WRITE, RENAME, LINK}),
        (cut, "false", {CUT, SYNC, WRITE}),
        (done, "true", {RENAME, WRITE}),
    ],
)
def test_a_fault_anywhere(settings, tmp_path, monkeypatch, prepare, fresh, expected, kill, place):
    monkeypatch.setattr(environment, "git_state", lambda folder: {})  # two processes a run
    job = job_for(*settings, f"measure.fresh={fresh}")
    records = [timeless(record) for record in execute_job(tmp_path / "whole", *settings)]
    whole, manifest = (
        (tmp_path / "whole" / RECORDS).read_bytes(),
        (tmp_path / "whole" / MANIFEST).read_bytes(),
    )
    number, seen = 0, []
    while True:
        folder = tmp_path / str(number) / "r"
        folder.mkdir(parents=True)
        if prepare is not nothing:
            (folder / MANIFEST).write_bytes(manifest)
        prepare(folder, whole)
        with pytest.MonkeyPatch.context() as patch:
            faults = Strike(number, place, kill)
            Disk(folder.parent, faults, patch.setattr)
            with contextlib.suppress(Kill, OSError, InputError):
                execute(job, folder, lambda *_: None)
        seen = seen if len(seen) > len(faults.seen) else faults.seen
        check(job, folder, records, whole if fresh == "true" else b"")
        if len(faults.seen) <= number:
            break
        number += 1
    assert expected <= set(seen), seen
    assert number >= 8


def check(job, folder: Path, records: list, kept: bytes) -> None:
    """The same command continues the run: every record once, no file of the fault left, and
    ``latest`` points to it.
    """
    execute(job, folder, lambda *_: None)
    assert [timeless(record) for record in read_run(folder).records] == records
    assert not list(folder.glob(".*.partial"))
    assert (folder.parent / "latest").resolve() == folder
    assert {path.name for path in folder.parent.glob(".*")} == set()
    assert not kept or any(path.read_bytes() == kept for path in folder.parent.glob(f"*/{RECORDS}"))
