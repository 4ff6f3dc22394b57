"""Runs a checked job in a directory: locks it, creates or resumes it, decodes block by block, and
writes.
"""

from __future__ import annotations

import contextlib
import filecmp
import gc
import itertools
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from specbench.input import parse_as, read_file
from specbench.measure.clock import gpus_in_use, open_meter
from specbench.measure.identity import hide_identity
from specbench.measure.plan import Block
from specbench.names import printable
from specbench.records.manifest import Manifest
from specbench.records.record import CaseRecord, Count
from specbench.records.store import (
    EVAL_RESULTS,
    LOCK,
    MANIFEST,
    PAGE,
    RECORDS,
    SHARDS,
    RunWriter,
    point_latest,
    read_manifest,
    replacing_path,
    write_atomically,
    write_manifest,
)
from specbench.runs.digest import with_outside
from specbench.runs.earlier import check_forward, check_growth, check_recorded, check_same
from specbench.runs.job import Job
from specbench.runs.load_session import LoadSession
from specbench.runs.manifest import build_manifest
from specbench.runs.nodes import limit_nodes
from specbench.runs.session import Session, set_stage
from specbench.serving.settings import ONE
from specbench.types import InputError

AT, DEATHS, LOGS = ".at", ".deaths.json", "logs"
MOST_DEATHS = 3  # of processes in one block, before its case becomes an error
OURS = (
    MANIFEST,
    RECORDS,
    "summary.csv",
    "tables",
    "plots",
    PAGE,
    EVAL_RESULTS,
    "run.log",
    LOGS,
    SHARDS,
    AT,
    DEATHS,
)
_PROBE = ".writable"
SWEEP = "multirun.yaml"  # in the folder of a sweep
_HARMLESS = {*OURS, LOCK, _PROBE, SWEEP, ".hydra", ".submitit"}  # the last three are Hydra's
_NAMED = 3  # of the other things in a folder
log = logging.getLogger(__name__)
_WIDTH = 12  # [bytes] of a block's number
_NOTE = "expected the note of a run that was killed"
# block -> processes that were killed in it
_COUNTS: TypeAdapter[dict[Count, Count]] = TypeAdapter(dict[Count, Count])
_NUMBER: TypeAdapter[Count | None] = TypeAdapter(Count | None)
_T = TypeVar("_T")

# (records of a block, blocks done, blocks in all)
Observer = Callable[[Sequence[CaseRecord], int, int], None]


def execute(job: Job, directory: Path, observe: Observer) -> bool:
    """Run the job in ``directory``, from where an earlier run of it stopped; returns whether
    anything was left to do.

    Raises InputError if the directory cannot be used or a method cannot be bound.
    """
    if job.config.load.find:
        raise InputError(
            f"load.find={job.config.load.find}: only `specbench run` searches; expected"
            " load.find=null"
        )
    with locked(directory), _threads(job.config.model.threads):
        own, writer = _is_own(job.launch, directory), RunWriter(directory)
        done, earlier = _open(job, writer, own)
        ledger = job.compare(done)
        if ledger.failed is not None and job.config.run.retry and not own:
            log.warning(
                "run.retry: continues at block %d, where a case failed; a copy is kept aside",
                ledger.failed,
            )
            _keep_copy(directory)
            _forget_attempts(directory)
            done = writer.rewind(ledger.failed)
            ledger = job.compare(done)
        start, rest, recorded = ledger.kept, ledger.rest, len(ledger.recorded)
        earlier = earlier if done else None
        same = earlier is not None and earlier.config_hash == job.digest
        config = (
            job.resolved
            if same or not earlier
            else with_outside(earlier.config.written, job.resolved)
        )
        if rest and earlier:
            check_growth(job, earlier, ledger, directory)
        if start < recorded:
            log.warning(
                "a method keeps state between cases: blocks from %d on run again, %d were done",
                start,
                recorded,
            )
            done = writer.rewind(start)
        log.info("%d blocks of %s, %d done", start + len(rest), directory.name, start)
        named = {entry.name for entry in job.entries}
        if more := [name for name in (earlier.methods if earlier else ()) if name not in named]:
            print(
                printable(
                    f"specbench: {directory} also has {', '.join(more)}; the report shows all of"
                    " its methods"
                )
            )
        if done and rest:
            print(
                printable(
                    f"specbench: continues {directory}: {start} of {start + len(rest)} blocks were"
                    " there"
                )
            )
        if done:
            observe(done, start, start + len(rest))
        if rest:
            if start and not same:  # blocks get other numbers
                _forget_attempts(directory)
            _decode(job, writer, rest, earlier if start else None, observe)
            return True
        point_latest(directory)
        _forget_attempts(directory)
        if earlier:  # a price may have changed
            values = share(earlier.as_dict() | {"config": config})
            if values != earlier.as_dict():
                write_manifest(directory, values)
        return False


def share(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest's values without home directory, user, host and secrets.

    They stay unchanged if ``report.identify`` is set among the manifest's own settings.
    """
    return (
        dict(values)
        if values["config"]["report"]["identify"]
        else cast(dict[str, Any], hide_identity(values))
    )


def refuse_foreign(directory: Path) -> None:
    """Raise InputError for a folder that contains other things than a run. A new or an empty one is
    allowed.
    """
    others = {
        path.name for path in _list(directory, "hydra.run.dir") if path.suffix != ".partial"
    } - _HARMLESS
    if not (directory / RECORDS).exists():
        _refuse("hydra.run.dir", directory, sorted(others))


def refuse_foreign_sweep(directory: Path, key: str = "hydra.sweep.dir") -> None:
    """Raise InputError for a folder that contains other things than the runs of a sweep. key: what
    names it.
    """
    places = _list(directory, key)
    runs = {
        path
        for path in places
        if any((path / name).exists() for name in (LOCK, MANIFEST, RECORDS, SHARDS))
    }
    others = {path.name for path in {*places} - runs} - _HARMLESS - {"latest"}
    if not (directory / SWEEP).exists():
        _refuse(key, directory, sorted(others))


def _list(directory: Path, key: str) -> list[Path]:
    try:
        place = next((each for each in (directory, *directory.parents) if each.exists()), directory)
        if place.exists() and not place.is_dir():
            raise InputError(
                f"{key}={directory}: {place} is not a folder; expected a new folder or one of a run"
            )
        return list(directory.iterdir()) if directory.is_dir() else []
    except OSError as error:
        raise InputError(
            f"{key}={directory}: cannot be read ({error.strerror}); expected another folder"
        ) from error


def _refuse(key: str, directory: Path, others: Sequence[str]) -> None:
    """Raise InputError if a folder contains others than what belongs there. key: the setting that
    names the folder.
    """
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    if others:
        raise InputError(
            f"{key}={directory}: contains other things ({', '.join(others[:_NAMED])}{more});"
            " expected a new folder, an empty one, or one of an earlier run"
        )


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory, which only this process uses. Raises InputError if it cannot be used."""
    refuse_foreign(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / _PROBE
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"results directory {directory}: not writable ({error.strerror}); choose another with"
            " hydra.run.dir=..."
        ) from error
    lock = FileLock(directory / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"results directory {directory}: another process is running in it; wait for it, or"
            " choose another directory with hydra.run.dir=..."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _open(job: Job, writer: RunWriter, own: bool) -> tuple[list[CaseRecord], Manifest | None]:
    """Returns the records of an earlier run and its manifest; ``measure.fresh`` sets one aside that
    is not ``own``.
    """
    directory = writer.directory
    names = [name for name in (RECORDS, MANIFEST) if (directory / name).exists()]
    if names and job.config.measure.fresh and not own:
        set_aside(directory)
    elif names:
        manifest = read_manifest(directory)
        check_same(job, manifest, directory)
        sizes = {
            (case.id, block.round): len(block.cases)
            for block in job.plan
            for case in block.cases
            if block.more
        }
        records = writer.resume(manifest.rows, manifest.first_blocks, sizes)
        check_recorded(job, manifest, records, directory)
        return records, manifest
    return [], None


def _decode(
    job: Job, writer: RunWriter, rest: Sequence[Block], earlier: Manifest | None, observe: Observer
) -> None:
    """Load the target, bind the methods that have blocks left, and run these. earlier: the manifest
    of what is done.
    """
    config, directory, start, total = (
        job.config,
        writer.directory,
        rest[0].index,
        rest[-1].index + 1,
    )
    names = {name for block in rest for name in block.order}
    entries, rows = (
        tuple(each for each in kept if each.name in names) for kept in (job.entries, job.rows)
    )
    left = replace(job, entries=entries, rows=rows)
    try:
        with set_stage(left, earlier, directory / LOGS) as stage, _Attempts(directory) as attempts:
            if earlier:
                check_forward(stage, earlier, directory)
            meter = open_meter(gpus_in_use(stage.target.device, config.model.gpus))
            manifest = build_manifest(job, stage, earlier, rest)
            stage = replace(stage, limits=limit_nodes(left, stage, manifest, earlier or Manifest()))
            write_manifest(directory, share(manifest.as_dict()))
            point_latest(directory)  # now that nothing is refused any more
            kind = Session if config.load.kind == ONE else LoadSession
            session = kind(left, stage, meter)
            manifest.warn(session.warm_up(stage.warmup))
            blocks = session.run(rest, attempts.deadly)
            for records in attempts.watch(blocks, start):
                writer.append(records)
                for record in records:
                    if record.error:
                        log.warning(
                            "case %s, %s: %s", record.case, record.method, record.error["message"]
                        )
                observe(records, records[0].block + 1, total)
    finally:
        gc.unfreeze()  # what the session froze (``without_collector``)
    manifest.warn(f"{each.name}: {text}" for each in entries for text in each.method.warnings)
    manifest.warn(session.warnings)
    write_manifest(directory, share(manifest.as_dict()))
    _forget_attempts(directory)
    log.info("done")


class _Attempts:
    """Notes on disk which block the process is in, so that the next process knows in which block
    this one was killed.

    deadly: blocks in which ``MOST_DEATHS`` processes were killed; they are not tried again.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / AT
        deaths: Counter[int] = Counter(_read_note(directory / DEATHS, _COUNTS))
        last = _read_note(self._path, _NUMBER)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        if last is not None:
            deaths[last] += 1
            write_atomically(directory / DEATHS, json.dumps(deaths))
        self.deadly = {block for block, count in deaths.items() if count >= MOST_DEATHS}

    def __enter__(self) -> _Attempts:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)
        self._path.unlink(missing_ok=True)  # a blank note would need a disk that can be written

    def watch(self, blocks: Iterator[list[CaseRecord]], start: int) -> Iterator[list[CaseRecord]]:
        """Yields the records of each block; its number is noted before it begins. start: the number
        of the first.
        """
        for number in itertools.count(start):
            os.pwrite(self._file, str(number).ljust(_WIDTH).encode(), 0)
            records = next(blocks, None)
            if records is None:
                return
            yield records


def _read_note(path: Path, schema: TypeAdapter[_T]) -> _T | None:
    """A note of earlier processes, None without one. A damaged note is kept under another name: the
    run needs none.
    """
    if not os.path.lexists(path):
        return None
    try:
        if not os.access(path, os.W_OK):
            raise InputError(f"{path}: cannot be written")
        return parse_as(schema, read_file(path, "", _NOTE).strip() or b"null", str(path), _NOTE)
    except InputError as error:
        aside = free_name(path)
        path.rename(aside)
        log.warning("%s; it is kept as %s, and earlier kills are not counted", error, aside.name)
        return None


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Torch's CPU threads for this run only: a sweep's next job starts from torch's own choice
    again.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _forget_attempts(directory: Path) -> None:
    for name in (AT, DEATHS):
        (directory / name).unlink(missing_ok=True)


def _keep_copy(directory: Path) -> None:
    """Copy manifest and records into a new folder next to the run, unless the last such folder has
    them.
    """
    last, number = None, 1
    while (aside := directory.with_name(f"{directory.name}.old{number}")).exists():
        last, number = aside, number + 1
    names = [MANIFEST, RECORDS]
    if last and filecmp.cmpfiles(directory, last, names, shallow=False)[0] == names:
        return  # a command that was killed has kept them
    with replacing_path(aside) as partial:
        partial.mkdir()
        for name in names:
            shutil.copy2(directory / name, partial / name)


def _is_own(launch: str | None, directory: Path) -> bool:
    """Returns whether the run is this command's own, restarted after its job was killed or given
    back.
    """
    if launch is None or not (directory / MANIFEST).exists():
        return False
    return any(process.launch == launch for process in read_manifest(directory).processes)


def free_name(path: Path) -> Path:
    """A name next to ``path`` for what is set aside."""
    names = (path.with_name(f"{path.name}.old{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def set_aside(directory: Path) -> None:
    """Move what a run has written into a new folder next to it."""
    aside = free_name(directory)
    aside.mkdir()
    for name in OURS:
        if (directory / name).exists():
            (directory / name).rename(aside / name)
