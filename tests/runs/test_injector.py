"""The lab's faults: they strike, a sound store recovers from them, and broken ones are found."""

from __future__ import annotations

import builtins
import errno
import io
import os
from pathlib import Path

import pytest

from scripts.lab import __main__ as lab
from scripts.lab import disk
from scripts.lab.disk import AFTER, BEFORE, HALF, WRITE, Disk
from scripts.lab.faults import Choice, inject
from specbench.records import store


@pytest.mark.exhaustive
def test_a_sound_store_recovers(capfd):
    assert lab.main(["faults", "--count", "5", "--kinds", "retried", "merged", "--jobs", "1"]) == 0
    total = capfd.readouterr().out.partition("| all | all | ")[2].split("\n")[0].split(" | ")
    assert 5 <= int(total[0]) <= 6
    assert total[1] == total[0]
    assert set(total[2:-1]) == {"0"}


def append_buffered(self, block):
    """As a file is usually written: what a failed write leaves in the buffer is written when the file is closed."""
    with self._path.open("ab") as file:
        file.write("".join(record.to_json() + "\n" for record in block).encode())
        file.flush()
        os.fsync(file.fileno())


def write_in_place(directory, values, write=store.write_manifest):
    write(directory, values)
    text = (directory / store.MANIFEST).read_text()
    (directory / store.MANIFEST).write_text(text)


@pytest.mark.parametrize(
    ("broken", "by", "kind", "fault", "path", "found"),
    [
        ("records.store.RunWriter.append", append_buffered, "replayed", "interrupt", "records.jsonl", "not ended"),
        ("records.store.RunWriter._truncate", lambda *_: None, "replayed", "kill", "records.jsonl", "left over"),
        ("runs.execution.write_manifest", write_in_place, "replayed", "kill", "r/manifest.json", "not ended"),
        ("runs.parts._is_merged", lambda *_: False, "merged", "short write", "records.jsonl", "not ended"),
        ("runs.execution._forget_attempts", lambda *_: None, "replayed", "kill", "records.jsonl", "left over"),
    ],
    ids=["buffered", "never cut", "in place", "once only", "notes stay"],
)
def test_a_broken_store_is_found(monkeypatch, broken, by, kind, fault, path, found):
    monkeypatch.setattr(f"specbench.{broken}", by)
    monkeypatch.setattr("specbench.runs.launch._report", lambda *_: 0)
    monkeypatch.setattr(disk.Signal, "strikes", (WRITE,))
    monkeypatch.setattr(disk.Signal, "places", (HALF,))
    tries = inject(2, Choice([kind], [fault], path=path))
    assert found in {what for each in tries for what in each.wrong}


@pytest.mark.parametrize(
    ("fault", "place", "number", "left", "error"),
    [
        ("full disk", BEFORE, 0, None, errno.ENOSPC),
        ("full disk", HALF, 1, b"ab", errno.ENOSPC),
        ("full once", BEFORE, 1, b"abcd", errno.ENOSPC),  # the same
        ("failed write", HALF, 1, b"abcd", errno.EIO),  # the buffer is written again when the file is closed
        ("short write", HALF, 1, b"abcd", None),
        ("failed sync", BEFORE, 2, b"abcd", errno.EIO),
        ("EIO", BEFORE, 3, b"abcd", errno.EIO),
        ("clock back", AFTER, 1, b"abcd", None),
    ],
)
def test_what_a_fault_does(monkeypatch, tmp_path, fault, place, number, left, error):
    struck = []
    injected = disk.FAULTS[fault](number, place, lambda: struck.append(fault))
    with monkeypatch.context() as patch:
        patch.setattr("time.time", disk.time.time)
        patch.setattr("time.time_ns", disk.time.time_ns)
        watched = Disk(tmp_path, injected, patch.setattr)
        got = None
        try:
            with io.open(tmp_path / "a", "wb") as file:  # noqa: UP020 (the patched one)
                file.write(b"abcd")
                file.flush()
                os.fsync(file.fileno())
            os.replace(tmp_path / "a", tmp_path / "b")  # noqa: PTH105
        except OSError as raised:
            got = raised.errno
    assert struck == [fault]
    assert got == error
    assert [each.kind for each in watched.operations][:2] == ["open", "write"][: len(watched.operations)]
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert files == ([] if left is None else [left])
    assert builtins.open is open


def test_a_folder_that_is_not_watched(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        watched = Disk(tmp_path / "in", disk.FAULTS["full disk"](0), patch.setattr)
        Path(tmp_path, "out").write_text("1")
    assert watched.operations == []
