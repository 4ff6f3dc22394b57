"""Runs a checked job in a directory: locks it, opens it or resumes what is there, decodes block by block, writes.

A run may also be made in shards by several workers. A shard is a part of the run in a directory of its own below the
run's (``shards/k-of-n``), with ``suite.part=k/n`` and all that a run has: a lock, a manifest, resuming. So a worker
needs nothing of the others, and a second command does what earlier ones have left.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, cast

import torch
from filelock import FileLock, Timeout

from specbench.measure import environment
from specbench.measure.clock import gpus_in_use, open_meter
from specbench.measure.identity import hide_identity
from specbench.measure.plan import LASTING, Block
from specbench.names import printable
from specbench.records.manifest import Machine, Manifest
from specbench.records.record import CaseRecord
from specbench.records.store import (
    MANIFEST,
    PAGE,
    RECORDS,
    SHARDS,
    RunWriter,
    parse_lines,
    point_latest,
    read_manifest,
    write_atomically,
    write_manifest,
)
from specbench.runs.digest import with_outside
from specbench.runs.job import Job
from specbench.runs.ledger import Ledger, check_growth
from specbench.runs.load_session import LoadSession
from specbench.runs.manifest import build_manifest, check_same, refuse_settings, shared
from specbench.runs.parts import is_whole, merge, part_name, split_part
from specbench.runs.session import RequestSettings, Session
from specbench.runs.sources import set_stage
from specbench.serving.settings import ONE
from specbench.types import InputError

LOCK, AT, DEATHS = ".lock", ".at", ".deaths.json"
MOST_DEATHS = 3  # of processes in one block, before its case becomes an error
MOST_SHARDS = 10_000
OURS = (MANIFEST, RECORDS, "summary.csv", "tables", "plots", PAGE, "run.log", SHARDS, AT, DEATHS)
log = logging.getLogger(__name__)
_WIDTH = 12  # [bytes] of a block's number

Observer = Callable[[Sequence[CaseRecord], int, int], None]  # (records of a block, blocks done, blocks in all)


def execute(job: Job, directory: Path, observe: Observer) -> bool:
    """Run the job in ``directory``, going on where an earlier run of it stopped; whether anything was left to do.

    Raises InputError when the directory cannot be used or a method cannot be bound.
    """
    with locked(directory), _threads(job.config.model.threads):
        return _execute(job, directory, observe)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """The directory is made, and this process's alone. Raises InputError where it cannot be used."""
    _make(directory)
    lock = FileLock(directory / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"results directory {directory}: another process is running in it; wait for it, or choose another"
            " directory with hydra.run.dir=..."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _execute(job: Job, directory: Path, observe: Observer) -> bool:
    writer, done = _open(job, directory)
    ledger = Ledger.of_job(job, done)
    if ledger.failed is not None and job.config.run.retry and not _begun_by(job.launch, directory):
        done = _without_failed(writer, ledger.failed)
        ledger = Ledger.of_job(job, done)
    start, rest, recorded = ledger.kept, ledger.rest, len(ledger.recorded)
    earlier = read_manifest(directory) if done else None
    if rest and earlier:
        check_growth(job, earlier, ledger, directory)
    if start < recorded:
        log.warning("a method keeps state between cases: blocks from %d on run again, %d were done", start, recorded)
        done = writer.rewind(start)
    log.info("%d blocks of %s, %d done", start + len(rest), directory.name, start)
    if done:
        observe(done, start, start + len(rest))
    if not rest:
        point_latest(directory)
        if earlier:
            _update_settings(job, earlier, directory)
        return False
    if start and earlier and earlier.config_hash != job.digest:  # the numbers of blocks begin another meaning
        for name in (AT, DEATHS):
            (directory / name).unlink(missing_ok=True)
    _decode(job, directory, writer, rest, earlier if start else None, observe)
    return True


def _update_settings(job: Job, earlier: Manifest, directory: Path) -> None:
    """Write what may change in the manifest of a complete run: a price, or a user's name that an older one has."""
    values = earlier.as_dict()
    same = earlier.config_hash == job.digest
    config = job.resolved if same else with_outside(earlier.config.written, job.resolved)
    if values != (current := shared(job, values | {"config": config})):
        write_manifest(directory, current)


def _decode(
    job: Job,
    directory: Path,
    writer: RunWriter,
    rest: Sequence[Block],
    earlier: Manifest | None,
    observe: Observer,
) -> None:
    """Load the target, bind the methods that have blocks left, and run these. earlier: the manifest of what is done."""
    config, start, total = job.config, rest[0].index, rest[-1].index + 1
    names = {name for block in rest for name in block.order}
    entries, rows = (tuple(each for each in kept if each.name in names) for kept in (job.entries, job.rows))
    settings = RequestSettings(
        max_new_tokens=config.decode.max_new_tokens,
        sampling=job.sampling,
        seed=config.decode.seed,
        judge=config.measure.lossless,
        keep_trees=config.measure.keep_trees,
        in_prefill=config.decode.first_draft == "prefill",
        limit=job.limit,
    )
    threads = earlier.threads.count if earlier and earlier.threads else None
    try:
        with (
            set_stage(replace(job, entries=entries), threads) as stage,
            _Attempts(directory) as attempts,
        ):
            manifest = build_manifest(job, stage, earlier, rest)
            write_manifest(directory, shared(job, manifest.as_dict()))
            point_latest(directory)  # now that nothing is refused any more
            meter = open_meter(gpus_in_use(stage.target.device, config.model.gpus))
            kind = Session if config.load.kind == ONE else LoadSession
            session = kind(stage, rows, settings, meter)
            if isinstance(session, LoadSession):
                session.under(config.load, [case for block in job.plan if block.round == 0 for case in block.cases])
            manifest.warn(session.warm_up(stage.warmup))
            blocks = session.run(rest, attempts.deadly)
            for records in attempts.watch(blocks, start):
                writer.append(records)
                _log_errors(records)
                observe(records, records[0].block + 1, total)
    finally:
        gc.unfreeze()  # what the session froze (``without_collector``)
    manifest.warn(f"{each.name}: {text}" for each in entries for text in each.method.warnings)
    manifest.warn(session.warnings)
    write_manifest(directory, shared(job, manifest.as_dict()))
    log.info("done")


class _Attempts:
    """In which block the process is, so that the next one knows where this one was killed.

    deadly: blocks in which so many were killed that none tries again.
    """

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / AT, os.O_RDWR | os.O_CREAT, 0o666)
        text = directory / DEATHS
        deaths = Counter(json.loads(text.read_text()) if text.exists() else {})
        if last := os.pread(self._file, _WIDTH, 0).strip():  # a process that ends by itself leaves it blank
            deaths[last.decode()] += 1
            write_atomically(text, json.dumps(deaths))
        self.deadly = {int(block) for block, count in deaths.items() if count >= MOST_DEATHS}

    def __enter__(self) -> _Attempts:
        return self

    def __exit__(self, *error: object) -> None:
        self._note("")
        os.close(self._file)

    def watch(self, blocks: Iterator[list[CaseRecord]], start: int) -> Iterator[list[CaseRecord]]:
        """The records of each block, whose number is noted before it begins. start: the first one's."""
        for number in itertools.count(start):
            self._note(str(number))
            records = next(blocks, None)
            if records is None:
                return
            yield records

    def _note(self, text: str) -> None:
        os.pwrite(self._file, text.ljust(_WIDTH).encode(), 0)


def _log_errors(records: Sequence[CaseRecord]) -> None:
    for record in records:
        if record.error:
            log.warning("case %s, %s: %s", record.case, record.method, record.error["message"])


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Torch's CPU threads for this run only: a sweep's next job starts from torch's own choice again."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make(directory: Path) -> None:
    """Make the directory and see that it can be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"results directory {directory}: not writable ({error.strerror}); choose another with hydra.run.dir=..."
        ) from error


def _open(job: Job, directory: Path) -> tuple[RunWriter, list[CaseRecord]]:
    """The run's writer and what is done already. With ``measure.fresh`` an earlier run is kept aside."""
    there = any((directory / name).exists() for name in (RECORDS, MANIFEST))
    if job.config.measure.fresh and there and not _begun_by(job.launch, directory):
        _set_aside(directory)
    sizes = {(case.id, block.round): len(block.cases) for block in job.plan for case in block.cases if block.more}
    if not ((directory / MANIFEST).exists() or (directory / RECORDS).exists()):
        return RunWriter(directory, [row.name for row in job.rows], sizes), []
    manifest = read_manifest(directory)
    check_same(job, manifest, directory)
    writer = RunWriter(directory, manifest.rows, sizes, manifest.first_blocks)
    return writer, writer.resume()


def _without_failed(writer: RunWriter, first: int) -> list[CaseRecord]:
    """The records before block ``first``, in which a case failed; all of them are kept aside."""
    log.warning("run.retry: goes on at block %d, in which a case failed; what was there is kept aside", first)
    aside = _make_aside(writer.directory)
    for name in (MANIFEST, RECORDS):
        shutil.copy2(writer.directory / name, aside / name)
    for name in (AT, DEATHS):
        (writer.directory / name).unlink(missing_ok=True)
    return writer.rewind(first)


def _begun_by(launch: str | None, directory: Path) -> bool:
    """Returns whether the run is this command's own, restarted after its job was killed or given back."""
    if launch is None or not (directory / MANIFEST).exists():
        return False
    return any(process.launch == launch for process in read_manifest(directory).processes)


def _make_aside(directory: Path) -> Path:
    number = 1
    while (aside := directory.with_name(f"{directory.name}.old{number}")).exists():
        number += 1
    aside.mkdir()
    return aside


def _set_aside(directory: Path) -> None:
    """Move what a run has written into a new folder next to it."""
    aside = _make_aside(directory)
    for name in OURS:
        if (directory / name).exists():
            (directory / name).rename(aside / name)


def find_grown(job: Job, directory: Path) -> Path:
    """The run next to ``directory`` that lacks the least to be this job's; ``directory`` if there is no such run.

    Raises:
        InputError: several workers are to add to the run.
    """
    if job.config.measure.fresh or (directory / MANIFEST).exists():
        return directory
    _, found = min(_smaller_runs(job, directory), default=(0, directory))
    if found != directory and job.config.run.shards != 1:
        raise InputError(
            f"run.shards={job.config.run.shards}: {found} has a part of this run, and a run grows in one process;"
            " expected run.shards=1, which runs what is missing, or measure.fresh=true, which runs all of it"
        )
    if found != directory:
        print(printable(f"specbench: goes on with {found}, which has a part of this; measure.fresh=true begins anew"))
    return found


def _smaller_runs(job: Job, directory: Path) -> Iterator[tuple[int, Path]]:
    """(blocks that are missing, where) of each run on this hardware that may grow into this job's."""
    stem = directory.name.rpartition("-")[0]
    for path in sorted(directory.parent.glob(f"{stem}-*/{MANIFEST}")):
        run = path.parent
        if run.is_symlink() or ".old" in run.name:
            continue
        try:
            manifest = read_manifest(run)
            refuse_settings(job, manifest, run)
            with FileLock(run / LOCK, blocking=False):
                ledger = Ledger.of_job(job, (record for record, _ in parse_lines(run / RECORDS)))
            check_growth(job, manifest, ledger, run)
        except (InputError, Timeout, OSError):  # a run of another kind, or one that is being made
            continue
        here = Machine(**cast(dict[str, Any], hide_identity(environment.machine())))
        if ledger.recorded and manifest.machine.same_hardware(here):
            yield len(ledger.rest), run


def needs_shards(job: Job, directory: Path) -> bool:
    """Returns whether to make the run in shards; one that is merged, or has begun without them, continues without.

    Raises:
        InputError: the number of shards makes no sense, or a method learns across cases.
    """
    count = job.config.run.shards
    if not 1 <= count <= MOST_SHARDS:
        raise InputError(f"run.shards={count}: expected a number from 1 to {MOST_SHARDS}")
    for row in job.rows:
        if count > 1 and row.reset in LASTING:
            raise InputError(
                f"run.shards={count}: method.{row.name}.reset={row.reset} learns across cases, and a shard does not see"
                f" those of the others; expected run.shards=1, or method.{row.name}.reset=case"
            )
    return count > 1 and (job.config.measure.fresh or not (directory / RECORDS).exists())


def begin_shards(job: Job, directory: Path) -> dict[str, Path]:
    """Part -> directory of each shard; with ``measure.fresh`` an earlier run is set aside. Raises InputError."""
    if job.config.measure.fresh and any((directory / name).exists() for name in OURS):
        _set_aside(directory)
    parts = split_part(job.config.suite.part, min(job.config.run.shards, len(job.suite.cases)))
    found = {part: directory / SHARDS / part_name(part) for part in parts}
    others = {path for path in (directory / SHARDS).glob("*-of-*") if path not in found.values()}
    if others:
        raise InputError(
            f"run.shards={job.config.run.shards}: {directory / SHARDS} has {min(others).name}; expected the number of"
            " shards that the run was begun with, or measure.fresh=true"
        )
    return found


def missing_shards(job: Job, shards: Mapping[str, Path]) -> list[str]:
    """The parts that are not done."""
    return [part for part, directory in shards.items() if not is_whole(directory, job.whole)]


def join_shards(job: Job, shards: Mapping[str, Path], directory: Path) -> None:
    """Merge the shards into the run."""
    merge(list(shards.values()), directory, own=shared(job, {"config": job.resolved, "config_hash": job.digest}))
