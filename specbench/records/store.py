"""A run's directory: an append-only ``records.jsonl`` and its ``manifest.json``, written so that a kill loses nothing.

The unit of writing is a block: every method's record of one case in one round, paired in time. A block is written in
one call and synced; on opening, whatever follows the last complete block is cut off, so that no case is ever lost,
doubled, or paired across two processes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, overload

import psutil

from specbench.input import InputError, parse_json, read_file, read_lines
from specbench.records.consistency import Consistency
from specbench.records.manifest_model import check_manifest
from specbench.records.record import CONTROL, VANILLA, CaseRecord

RECORDS = "records.jsonl"
MANIFEST = "manifest.json"
PAGE = "report.html"
PIECES = "pieces.json"  # what a report keeps beside the records: the text of tokens
SHARDS = "shards"  # of a run on several workers
SET_ASIDE = re.compile(r"\.old\d+$")  # a folder that measure.fresh=true kept
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a disk that was writable before
_PARTIAL = re.compile(r"\..+\.(jsonl?|csv|md|tex|png|pdf|html)\.(?P<process>\d{1,9})\.partial")


class RunError(InputError):
    """A results directory cannot be used: the message names it, what was found, and the fix."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a results directory holds."""

    directory: Path
    manifest: dict[str, Any]
    records: Sequence[CaseRecord]

    def section(self, *keys: str) -> Mapping[str, Any]:
        """The mapping of the manifest below these keys; empty where it holds none."""
        found: Any = self.manifest
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def read_run(directory: Path) -> Run:
    """Read a run, leaving out a last line that was cut by a kill. Raises InputError naming what is wrong."""
    records: list[CaseRecord] = []
    return replace(open_run(directory, records.append), records=records)


def open_run(directory: Path, watch: Callable[[CaseRecord], None]) -> Run:
    """The same without holding the records: ``watch`` gets each once, and the run reads those that it is asked for."""
    manifest, records = read_manifest(directory), RecordFile(directory / RECORDS)
    consistency = Consistency(manifest.get("rounds"), "grown" in manifest)
    for record in records.scan():
        consistency.add(record)
        watch(record)
    if fault := consistency.find_fault(records):
        raise RunError(f"{directory / RECORDS}, line {fault[0] + 1}: {fault[1]}; expected the records of one run")
    return Run(directory, manifest, records)


class RecordFile(Sequence[CaseRecord]):
    """The records of a file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = array("q", [0])  # of each, and the end of the last

    def scan(self) -> Iterator[CaseRecord]:
        """All of them, with which they can be counted and found."""
        for record, end in parse_lines(self._path):
            self._starts.append(end)
            yield record

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[CaseRecord]:
        return (record for record, _ in parse_lines(self._path))

    @overload
    def __getitem__(self, place: int) -> CaseRecord: ...

    @overload
    def __getitem__(self, place: slice) -> list[CaseRecord]: ...

    def __getitem__(self, place: int | slice) -> CaseRecord | list[CaseRecord]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        number = range(len(self))[place]
        with self._path.open("rb") as file:
            file.seek(self._starts[number])
            line = file.read(self._starts[number + 1] - self._starts[number] - 1)
        return CaseRecord.from_json(line, f"{self._path}, line {number + 1}")


def read_manifest(
    directory: Path, fix: str = "restore it, or run the command again with measure.fresh=true"
) -> dict[str, Any]:
    """The manifest of a run. Raises InputError when the directory holds none, or one that does not fit its schema.

    fix: the end of its message.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise RunError(f"run {directory}: no such directory; expected one that `specbench` wrote (see results/latest)")
    if not path.exists():
        raise RunError(f"run {directory}: holds no {MANIFEST}; expected a directory that `specbench` wrote")
    return check_manifest(parse_json(read_file(path, "manifest ", fix), str(path), fix), str(path), fix)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new, never half. Text becomes UTF-8.

    An OSError names ``path``. A kill leaves a partial file beside it, for ``remove_partials``.
    """
    with replacing(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` at the end; as ``write_atomically``."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # a new file: what a link of that name points to stays as it is
            yield file
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Remove what a kill left of ``write_atomically`` in a folder that is no link; a living process keeps its own."""
    if folder.is_symlink():
        return
    for path in folder.glob(".*.partial"):
        found = _PARTIAL.fullmatch(path.name)
        if found and (int(found["process"]) == os.getpid() or not psutil.pid_exists(int(found["process"]))):
            with contextlib.suppress(OSError):  # another user's
                path.unlink()


def parse_lines(path: Path) -> Iterator[tuple[CaseRecord, int]]:
    """Records with the byte offset after each; what follows the last newline was cut by a kill, and is left out."""
    if not os.path.lexists(path):  # a link that leads nowhere is no run without records
        return
    offset = 0
    for number, line in enumerate(read_lines(path, "records ", "expected those that `specbench` wrote"), start=1):
        offset += len(line)
        yield CaseRecord.from_json(line[:-1], f"{path}, line {number}"), offset


def rows_of(manifest: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, int]]:
    """The rows of a run, and of those that it has grown by the first block that may have each."""
    since = {name: int(each["block"]) for each in manifest.get("grown", []) for name in each["methods"]}
    return frozenset(manifest.get("methods", {})) | ({CONTROL} if manifest.get("control") else set()), since


def due(methods: frozenset[str], since: Mapping[str, int], block: int, done: frozenset[str]) -> frozenset[str]:
    """The methods of a block: those that its case is not done with, and vanilla again, which they are paired with.

    since: see ``rows_of``. done: methods of earlier blocks of this case and round.
    """
    there = frozenset(name for name in methods if since.get(name, 0) <= block)
    return there - done | there & {VANILLA, CONTROL}


class RunWriter:
    """The one writer of a run's directory."""

    def __init__(
        self,
        directory: Path,
        methods: Iterable[str],
        cases: Mapping[tuple[str, int], int] = MappingProxyType({}),
        since: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """methods: those with a record of each case in every block, vanilla included; one with fewer is incomplete.

        cases: case and round -> cases of its block, where it is not one. since: see ``rows_of``.
        """
        self.directory = directory
        self._methods, self._cases, self._since = frozenset(methods), cases, since
        self._path = directory / RECORDS

    def resume(self) -> list[CaseRecord]:
        """The records of complete blocks, in file order; everything after the last complete block is cut off."""
        kept: list[CaseRecord] = []
        pending: list[CaseRecord] = []
        held: dict[tuple[str, int], frozenset[str]] = {}
        safe = block = 0
        for folder in (self.directory, self.directory / "tables", self.directory / "plots"):
            remove_partials(folder)
        for record, end in parse_lines(self._path):
            each = self._cases.get((record.case, record.round), 1)
            if record.block != block or [entry.method for entry in pending].count(record.method) == each:
                raise RunError(
                    f"{self._path}: block {block} lacks a record (found block {record.block}, {record.method});"
                    " the file was changed by hand: move the run aside with measure.fresh=true"
                )
            pending.append(record)
            names, done = {entry.method for entry in pending}, held.get((record.case, record.round), frozenset())
            if names == due(self._methods, self._since, block, done) and len(pending) == each * len(names):
                kept.extend(pending)
                if self._since:
                    held |= {(entry.case, entry.round): done | names for entry in pending}
                pending, safe, block = [], end, block + 1
        if self._path.is_file() and self._path.stat().st_size != safe:
            self._truncate(safe)
        return kept

    def rewind(self, block: int) -> list[CaseRecord]:
        """Keep only the records of blocks before ``block``: a span whose state was lost starts again."""
        end = 0
        kept: list[CaseRecord] = []
        for record, offset in parse_lines(self._path):
            if record.block >= block:
                break
            kept.append(record)
            end = offset
        if self._path.is_file():
            self._truncate(end)
        return kept

    def append(self, block: list[CaseRecord]) -> None:
        """Write one block and sync it to disk."""
        if VANILLA not in {record.method for record in block}:
            raise RuntimeError(f"block of case {block[0].case} lacks {VANILLA}, which its methods are paired with")
        data = "".join(record.to_json() + "\n" for record in block).encode("utf-8")
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write the manifest atomically."""
        write_atomically(self.directory / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")

    def _truncate(self, size: int) -> None:
        with self._path.open("r+b") as file:
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())


def point_latest(directory: Path) -> None:
    """Make ``latest`` beside the run point to it; a file system without links gets none."""
    link = directory.parent / "latest"
    partial = directory.parent / ".latest"
    neighbour = link.is_symlink() and link.readlink().parent == Path()
    if link.exists() and not neighbour and not (link.is_symlink() and (link / MANIFEST).is_file()):
        return  # not a link to a run
    try:
        partial.unlink(missing_ok=True)  # what a kill left
        partial.symlink_to(directory.name)
        partial.replace(link)
    except OSError:
        partial.unlink(missing_ok=True)
