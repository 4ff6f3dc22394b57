"""The records file: cut anywhere, it continues without losing or doubling a case."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import records
from builders.records import turn
from specbench.records.record import CaseRecord
from specbench.records.store import RECORDS, RunError, RunWriter

METHODS = ("vanilla", "pld")


def record(block: int, method: str) -> CaseRecord:
    own = turn([1, 1], [0, 4], ids=[1, 2, block], text="ä\u2028\n")
    return records.record(method, str(block), [own], block=block)


def write(folder: Path, blocks: int) -> RunWriter:
    writer = RunWriter(folder)
    for block in range(blocks):
        writer.append([record(block, method) for method in METHODS])
    return writer


@given(st.integers(0, 6), st.floats(0, 1))
def test_cut_at_any_byte(blocks, share):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, blocks)
        path = folder / RECORDS
        size = path.stat().st_size if path.exists() else 0
        whole = path.read_bytes() if size else b""
        cut = int(size * share)
        if size:
            path.write_bytes(whole[:cut])
        writer = RunWriter(folder)
        kept = writer.resume(METHODS)
        assert kept == [
            record(block, method) for block in range(len(kept) // 2) for method in METHODS
        ]
        done = len(kept) // 2
        ends = [0]
        for _ in range(blocks):
            ends.append(whole.index(b"\n", whole.index(b"\n", ends[-1]) + 1) + 1)
        assert done == max(index for index, end in enumerate(ends) if end <= cut)
        for block in range(done, blocks):
            writer.append([record(block, method) for method in METHODS])
        assert (path.read_bytes() if size else b"") == whole


class Failing(io.FileIO):
    """A file of which only the first bytes can be written, or that cannot be synced or cut."""

    writes, room, cuts = True, 10**9, True

    def write(self, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(memoryview(data)[: self.room])
        type(self).room -= written
        return written

    def truncate(self, size=None):
        if not self.cuts:
            raise OSError(errno.EIO, "Input/output error")
        return super().truncate(size)


@pytest.mark.parametrize("cuts", [True, False], ids=["cut", "not cut"])
@pytest.mark.parametrize("fault", ["nothing", "half", "short", "sync"])
def test_a_block_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch, fault, cuts):
    """The space comes back, and the same process continues; or it could not even cut the file."""
    block = [record(1, method) for method in METHODS]
    size = len("".join(each.to_json() + "\n" for each in block).encode())
    writer = write(tmp_path, 1)
    before = (tmp_path / RECORDS).read_bytes()

    class File(Failing):
        room = {"nothing": 0, "half": size // 2}.get(fault, size)

    File.cuts = cuts

    def opened(self, mode="r", buffering=-1, *more):
        raw = File(self, mode.replace("b", ""))
        return raw if buffering == 0 else io.BufferedWriter(raw)

    def fail(number):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as faulty:
        faulty.setattr(Path, "open", opened)
        if fault == "sync":
            faulty.setattr(os, "fsync", fail)
        if fault == "short":
            faulty.setattr(
                File, "write", lambda self, data: io.FileIO.write(self, memoryview(data)[:100])
            )
        with contextlib.nullcontext() if fault == "short" else pytest.raises(OSError):
            writer.append(block)
        File.room = 10**9
    if fault == "short":
        assert (tmp_path / RECORDS).read_bytes()[len(before) :].count(b"\n") == 2
        return
    if cuts:
        assert (tmp_path / RECORDS).read_bytes() == before
    writer.append(block)
    assert RunWriter(tmp_path).resume(METHODS) == [
        record(number, name) for number in (0, 1) for name in METHODS
    ]
    assert len((tmp_path / RECORDS).read_bytes()) == len(before) + size


def test_a_record_taken_out_of_the_middle_is_noticed(tmp_path):
    write(tmp_path, 3)
    path = tmp_path / RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(RunError, match="block 1 lacks a record"):
        RunWriter(tmp_path).resume(METHODS)
