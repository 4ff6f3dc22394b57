"""The directory of a run: append-only ``records.jsonl`` and ``manifest.json``, written so that a
kill loses nothing.

The unit of writing is a block: every method's record of one case in one round, paired in time. A
block is written in one call and synced; when the directory is opened again, whatever follows the
last complete block is cut off. So no case is lost, doubled, or paired across two processes.

When a run is read, its records are checked (``records.consistency``).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, overload

import psutil

from specbench.input import InputError, read_file, read_lines
from specbench.records.consistency import Consistency
from specbench.records.manifest import Manifest
from specbench.records.record import CONTROL, VANILLA, CaseRecord

RECORDS = "records.jsonl"
MANIFEST = "manifest.json"
LOCK = ".lock"
PAGE = "report.html"
EVAL_RESULTS = ".eval_results"  # folder of a report's results in the form of the Hugging Face hub
PIECES = "pieces.json"  # the text of tokens, which a report stores next to the records
SHARDS = "shards"  # folder of the parts of a run on several workers
SET_ASIDE = re.compile(r"\.old\d+$")  # a folder that measure.fresh=true kept
_PARTIAL = re.compile(r"\.(?P<name>.+)\.(?P<process>\d{1,9})\.partial")
_OURS = re.compile(r".+\.(jsonl?|csv|md|tex|png|pdf|html|txt|yaml)")  # files of a run or a report


class RunError(InputError):
    """A results directory cannot be used: the message names it, what was found, and the fix."""


@dataclass(frozen=True)
class Run:
    """The contents of a results directory. manifest: the plain values of its file."""

    directory: Path
    manifest: dict[str, Any]
    records: Sequence[CaseRecord]

    @cached_property
    def about(self) -> Manifest:
        """The manifest, typed."""
        return Manifest.model_validate(self.manifest)

    def section(self, *keys: str) -> Mapping[str, Any]:
        """The mapping of the manifest below these keys; empty if it has none."""
        found: Any = self.manifest
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def read_run(directory: Path) -> Run:
    """Read a run without a last line that a kill cut. Raises InputError naming what is wrong."""
    records: list[CaseRecord] = []
    return replace(open_run(directory, records.append), records=records)


def open_run(directory: Path, watch: Callable[[CaseRecord], None]) -> Run:
    """Read a run without keeping its records: ``watch`` gets each once, later they are read again
    on demand.
    """
    manifest, records = read_manifest(directory), RecordFile(directory / RECORDS)
    consistency = Consistency(directory / RECORDS, manifest)
    for record in records.scan():
        consistency.check(record)
        watch(record)
    consistency.end()
    return Run(directory, manifest.as_dict(), records)


class RecordFile(Sequence[CaseRecord]):
    """The records of a file, each read when it is used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = array("q", [0])  # byte offset of each record, and the end of the last

    def scan(self) -> Iterator[CaseRecord]:
        """Read all records and note where each begins; this must happen before they are counted or
        indexed.
        """
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
) -> Manifest:
    """The manifest of a run. Raises InputError if the directory has none, or one that does not fit
    its schema.

    fix: the end of its message.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise RunError(
            f"run {directory}: no such directory; expected one that `specbench` wrote (see"
            " results/latest)"
        )
    if not path.exists():
        raise RunError(
            f"run {directory}: contains no {MANIFEST}; expected a directory that `specbench` wrote"
        )
    return Manifest.parse(read_file(path, "manifest ", fix), str(path), fix)


def write_manifest(directory: Path, values: Mapping[str, Any]) -> None:
    """Write a manifest's plain values atomically, and sync them to the disk."""
    with replacing(directory / MANIFEST, sync=True) as file:
        file.write((json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new, never half. Text
    becomes UTF-8.

    An OSError names ``path``. A kill leaves a partial file next to it, which the next writer of
    ``path`` removes.
    """
    with replacing(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path, sync: bool = False) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when the context ends, as in ``write_atomically``. sync: to the
    disk before.
    """
    with (
        replacing_path(path) as partial,
        partial.open("xb") as file,
    ):  # a new file: the target of a link stays unchanged
        yield file
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """A path for a new file, link or folder, which replaces ``path`` in one step when the context
    ends.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _remove_dead(path.parent.glob(f".{glob.escape(path.name)}.*.partial"))
        yield partial
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        _remove(partial)


def remove_partials(folder: Path) -> None:
    """Remove the partial files of a run or report that killed processes left, unless the folder is
    a link.
    """
    if not folder.is_symlink():
        _remove_dead(
            path
            for path in folder.glob(".*.partial")
            if _OURS.fullmatch(path.name.rsplit(".", 2)[0])
        )


def _remove_dead(partials: Iterable[Path]) -> None:
    """Remove partial files of this process and of processes that are gone."""
    for path in partials:
        found = _PARTIAL.fullmatch(path.name)
        if found and (
            int(found["process"]) == os.getpid() or not psutil.pid_exists(int(found["process"]))
        ):
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another user's
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def parse_lines(path: Path) -> Iterator[tuple[CaseRecord, int]]:
    """The records of a file, each with the byte offset after it; a last line that a kill cut is
    left out.
    """
    if not os.path.lexists(path):  # a link to nowhere is an error instead of a run without records
        return
    offset = 0
    for number, line in enumerate(
        read_lines(path, "records ", "expected those that `specbench` wrote"), start=1
    ):
        offset += len(line)
        record = CaseRecord.from_json(line[:-1], f"{path}, line {number}")
        yield record, offset


def read_blocks(
    path: Path,
    methods: frozenset[str],
    first_blocks: Mapping[str, int],
    sizes: Mapping[tuple[str, int], int] = MappingProxyType({}),
    fix: str = "the file was changed by hand: move the run aside with measure.fresh=true",
) -> Iterator[tuple[list[CaseRecord], int]]:
    """The records of each complete block, in file order, and the byte offset after it; an
    incomplete end is left out.

    A block is complete when it has each of its cases under the methods that these cases are not
    done with yet, and under vanilla and its control, which the others are paired with.

    methods: all rows of the run. first_blocks: method -> the first block that may have it, for
    those that were added to the run. sizes: (case, round) -> cases of its block, if it is more than
    one. fix: the end of the message. Raises RunError if a block lacks a record, and another block
    follows.
    """
    pending: list[CaseRecord] = []
    # of a run that has grown: methods of earlier blocks
    done: dict[tuple[str, int], frozenset[str]] = {}
    number = 0
    for record, end in parse_lines(path):
        size = sizes.get((record.case, record.round), 1)
        if (
            record.block != number
            or [entry.method for entry in pending].count(record.method) == size
        ):
            raise RunError(
                f"{path}: block {number} lacks a record (found block {record.block},"
                f" {record.method}); {fix}"
            )
        pending.append(record)
        names, earlier = (
            {entry.method for entry in pending},
            done.get((record.case, record.round), frozenset()),
        )
        added = frozenset(name for name in methods if first_blocks.get(name, 0) <= number)
        if names == added - earlier | added & {VANILLA, CONTROL} and len(pending) == size * len(
            names
        ):
            if first_blocks:
                done |= {(entry.case, entry.round): earlier | names for entry in pending}
            yield pending, end
            pending, number = [], number + 1


class RunWriter:
    """The only writer of a run's records."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._path = directory, directory / RECORDS
        # of the last complete block, after a block that could not be written
        self._end: int | None = None

    def resume(
        self,
        methods: Iterable[str],
        first_blocks: Mapping[str, int] = MappingProxyType({}),
        sizes: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> list[CaseRecord]:
        """The records of complete blocks, in file order; everything after the last complete block
        is cut off.

        methods, first_blocks, sizes: as of ``read_blocks``.
        """
        for folder in (self.directory, self.directory / "tables", self.directory / "plots"):
            remove_partials(folder)
        kept: list[CaseRecord] = []
        safe = 0
        for records, end in read_blocks(self._path, frozenset(methods), first_blocks, sizes):
            kept.extend(records)
            safe = end
        if self._path.is_file() and self._path.stat().st_size != safe:
            self._truncate(safe)
        return kept

    def rewind(self, block: int) -> list[CaseRecord]:
        """Cut the file before ``block``, at which a span whose state was lost starts again; return
        what stays.
        """
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
        """Write the records of one block and sync them to the disk. If that fails, nothing of the
        block stays.
        """
        data = memoryview("".join(record.to_json() + "\n" for record in block).encode("utf-8"))
        if self._end is not None:
            self._truncate(self._end)
        # a buffer would write the rest of a failed block later
        with self._path.open("ab", buffering=0) as file:
            self._end = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            except BaseException:
                # then the next block, or the next command, cuts the file
                with contextlib.suppress(OSError):
                    file.truncate(self._end)
                    os.fsync(file.fileno())
                raise
        self._end = None

    def _truncate(self, size: int) -> None:
        with self._path.open("r+b") as file:
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())


def point_latest(directory: Path) -> None:
    """Make ``latest`` next to the run point to it; a file system without links gets none."""
    link = directory.parent / "latest"
    neighbour = link.is_symlink() and link.readlink().parent == Path()
    if link.exists() and not neighbour and not (link.is_symlink() and (link / MANIFEST).is_file()):
        return  # not a link to a run
    with contextlib.suppress(OSError), replacing_path(link) as partial:
        partial.symlink_to(directory.name)
