"""Run a checked job in a directory: lock it, open it or resume what is there, decode block by block, write."""

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
from typing import Any

import torch
from filelock import FileLock, Timeout

from specbench.measure.energy import gpus_in_use, open_meter
from specbench.measure.plan import Block, plan_rest
from specbench.records.record import CaseRecord
from specbench.records.store import (
    MANIFEST,
    PAGE,
    RECORDS,
    SHARDS,
    RunWriter,
    point_latest,
    read_manifest,
    rows_of,
    write_atomically,
)
from specbench.runs.digest import with_outside
from specbench.runs.growth import LOCK, before_failed, blocks_of, check_growth
from specbench.runs.job import Job
from specbench.runs.load_session import LoadSession
from specbench.runs.manifest import add_warnings, build_manifest, check_same, shared
from specbench.runs.session import RequestSettings, Session
from specbench.runs.sources import set_stage
from specbench.serving.settings import ONE
from specbench.types import InputError

AT, DEATHS = ".at", ".deaths.json"
MOST_DEATHS = 3  # of processes in one block, before its case becomes an error
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
    if job.config.run.retry and not _begun_by(job.launch, directory):
        done = _without_failed(writer, done)
    held = blocks_of(done)
    start, rest = plan_rest(job.plan, held, {row.name: row.reset for row in job.rows})
    earlier = read_manifest(directory) if done else {}
    if rest and done:
        check_growth(job, earlier, held, start, directory)
    if start < len(held):
        log.warning("a method keeps state between cases: blocks from %d on run again, %d were done", start, len(held))
        done = writer.rewind(start)
    log.info("%d blocks of %s, %d done", start + len(rest), directory.name, start)
    if done:
        observe(done, start, start + len(rest))
    if not rest:
        point_latest(directory)
        same = earlier.get("config_hash") == job.digest
        config = job.resolved if same else with_outside(earlier["config"], job.resolved)
        current = shared(job, earlier | {"config": config})
        if earlier != current:  # in what changes no record: a price may be set afterwards, an older run names its user
            writer.write_manifest(current)
        return False
    if start and earlier.get("config_hash") != job.digest:  # the numbers of blocks begin another meaning
        for name in (AT, DEATHS):
            (directory / name).unlink(missing_ok=True)
    _decode(job, directory, writer, rest, earlier if start else {}, observe)
    return True


def _decode(
    job: Job,
    directory: Path,
    writer: RunWriter,
    rest: Sequence[Block],
    earlier: Mapping[str, Any],
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
    try:
        with (
            set_stage(replace(job, entries=entries), earlier.get("threads", {}).get("count")) as stage,
            _Attempts(directory) as attempts,
        ):
            manifest = build_manifest(job, stage, earlier or None, rest)
            writer.write_manifest(shared(job, manifest))
            point_latest(directory)  # now that nothing is refused any more
            meter = open_meter(gpus_in_use(stage.target.device, config.model.gpus))
            kind = Session if config.load.kind == ONE else LoadSession
            session = kind(stage, rows, settings, meter)
            if isinstance(session, LoadSession):
                session.under(config.load, [case for block in job.plan if block.round == 0 for case in block.cases])
            add_warnings(manifest, session.warm_up(stage.warmup))
            blocks = session.run(rest, attempts.deadly)
            for records in attempts.watch(blocks, start):
                writer.append(records)
                _log_errors(records)
                observe(records, records[0].block + 1, total)
    finally:
        gc.unfreeze()  # what the session froze (``without_collector``)
    add_warnings(manifest, [f"{each.name}: {text}" for each in entries for text in each.method.warnings])
    add_warnings(manifest, session.warnings)
    writer.write_manifest(shared(job, manifest))
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
        set_aside(directory)
    cases = {(case.id, block.round): len(block.cases) for block in job.plan for case in block.cases if block.more}
    if not ((directory / MANIFEST).exists() or (directory / RECORDS).exists()):
        return RunWriter(directory, [row.name for row in job.rows], cases), []
    manifest = read_manifest(directory)
    check_same(job, manifest, directory)
    rows, since = rows_of(manifest)
    writer = RunWriter(directory, rows, cases, since)
    return writer, writer.resume()


def _without_failed(writer: RunWriter, done: list[CaseRecord]) -> list[CaseRecord]:
    """The records before the first block with a failed case; all of them are kept aside where that drops some."""
    kept = before_failed(done)
    if len(kept) == len(done):
        return done
    first = done[len(kept)].block
    log.warning("run.retry: goes on at block %d, in which a case failed; what was there is kept aside", first)
    aside = _make_aside(writer.directory)
    for name in (MANIFEST, RECORDS):
        shutil.copy2(writer.directory / name, aside / name)
    for name in (AT, DEATHS):
        (writer.directory / name).unlink(missing_ok=True)
    return writer.rewind(first)


def _begun_by(launch: str | None, directory: Path) -> bool:
    """Whether the run is this command's own: its job was killed, or given back to the scheduler, and starts again."""
    if launch is None or not (directory / MANIFEST).exists():
        return False
    return any(process.get("launch") == launch for process in read_manifest(directory).get("processes", []))


def _make_aside(directory: Path) -> Path:
    number = 1
    while (aside := directory.with_name(f"{directory.name}.old{number}")).exists():
        number += 1
    aside.mkdir()
    return aside


def set_aside(directory: Path) -> None:
    aside = _make_aside(directory)
    for name in OURS:
        if (directory / name).exists():
            (directory / name).rename(aside / name)
