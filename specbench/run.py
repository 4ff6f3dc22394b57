"""Run a checked job: load, resume, decode block by block, and leave a directory of records."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from specbench.job import Job, unbound
from specbench.manifest import add_warnings, build_manifest, input_prints
from specbench.measure import environment
from specbench.measure.energy import gpus_in_use, open_meter
from specbench.measure.plan import resume_at
from specbench.record import CaseRecord
from specbench.session import Session, Terms, with_control
from specbench.stage import bind, set_stage
from specbench.store import MANIFEST, RECORDS, RunError, RunWriter, point_latest, read_manifest
from specbench.types import InputError

LOCK = ".lock"
OURS = (MANIFEST, RECORDS, "summary.csv", "tables", "plots", "report.html", "run.log")
log = logging.getLogger(__name__)

Observer = Callable[[Sequence[CaseRecord], int, int], None]  # (records of a block, blocks done, blocks in all)


def execute(job: Job, directory: Path, observe: Observer) -> list[str]:
    """Run the job in ``directory``, going on where an earlier run of it stopped; returns the warnings.

    Raises InputError when the directory cannot be used or a method cannot be bound.
    """
    _make(directory)
    lock = FileLock(directory / LOCK, blocking=False)
    try:
        with lock, _threads(job.config.model.threads):
            return _execute(job, directory, observe)
    except Timeout as error:
        raise InputError(
            f"results directory {directory}: another process is running in it; wait for it, or choose another"
            " directory with hydra.run.dir=..."
        ) from error


def _execute(job: Job, directory: Path, observe: Observer) -> list[str]:
    writer, done = _open(job, directory)
    start = resume_at(job.plan, len(done) // _rows(job), [entry.reset for entry in job.entries])
    if start * _rows(job) < len(done):
        log.warning(
            "state outlives cases here: blocks from %d on run again, %d were done", start, len(done) // _rows(job)
        )
        done = writer.rewind(start)
    point_latest(directory)
    log.info("%d blocks of %s, %d done", len(job.plan), directory.name, start)
    if done:
        observe(done, start, len(job.plan))
    if start == len(job.plan):
        manifest = read_manifest(directory)
        if manifest["config"] != job.resolved:  # in what changes no record: a price may be told afterwards
            writer.write_manifest(manifest | {"config": job.resolved})
        return list(manifest.get("warnings", []))
    return _decode(job, directory, writer, start, observe)


def _decode(job: Job, directory: Path, writer: RunWriter, start: int, observe: Observer) -> list[str]:
    """Load the target and run the plan's blocks from ``start`` on."""
    config = job.config
    stage = set_stage(job)
    bound = unbound(job.entries)
    terms = Terms(
        max_new_tokens=config.decode.max_new_tokens,
        sampling=job.sampling,
        seed=config.decode.seed,
        dtype=job.card.dtype,
        judge=config.measure.lossless,
        keep_trees=config.measure.keep_trees,
    )
    try:
        readers = bind(bound, stage.target, stage.engine)
        manifest = build_manifest(job, stage, read_manifest(directory) if start else None, readers)
        writer.write_manifest(manifest)
        meter = open_meter(gpus_in_use(stage.target.device, config.model.gpus))
        rows = with_control(bound, config.measure.control)
        session = Session(stage.engine, stage.target, stage.ask, rows, terms, meter)
        add_warnings(manifest, session.warm_up(stage.warmup))
        for count, records in enumerate(session.run(job.plan, start), start=start + 1):
            writer.append(records)
            _log_errors(records)
            observe(records, count, len(job.plan))
    finally:
        for entry in bound:
            entry.method.close()
        stage.engine.close()
        gc.unfreeze()  # what the session froze (see Session)
    writer.write_manifest(manifest)
    log.info("done")
    return list(manifest["warnings"])


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


def _rows(job: Job) -> int:
    """Records a block."""
    return len(job.plan[0].order)


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
    if job.config.measure.fresh and any((directory / name).exists() for name in (RECORDS, MANIFEST)):
        _set_aside(directory)
    writer = RunWriter(directory, job.plan[0].order)
    try:
        if (directory / MANIFEST).exists() or (directory / RECORDS).exists():
            _check_same(job, read_manifest(directory), directory)
        return writer, writer.resume()
    except RunError as error:
        raise InputError(str(error)) from error


def _check_same(job: Job, manifest: Mapping[str, Any], directory: Path) -> None:
    """A run goes on only with the configuration, questions and weights that it began with."""
    methods = manifest.get("methods", {})
    begun = (
        ("configuration", manifest.get("config_hash"), job.digest),
        ("suite file", manifest.get("suite", {}).get("sha256"), job.suite.sha256),
        ("weights", manifest.get("model", {}).get("fingerprint"), environment.weights_fingerprint(job.card.path)),
        *(
            (f"file behind {entry.name}", methods.get(entry.name, {}).get("inputs"), input_prints(entry))
            for entry in job.entries
        ),
    )
    for what, old, new in begun:
        if old != new:
            raise InputError(
                f"results directory {directory}: holds a run of another {what};"
                " choose another with hydra.run.dir=..., or keep it aside with measure.fresh=true"
            )


def _set_aside(directory: Path) -> None:
    number = 1
    while (aside := directory.with_name(f"{directory.name}.old{number}")).exists():
        number += 1
    aside.mkdir()
    for name in OURS:
        if (directory / name).exists():
            (directory / name).rename(aside / name)
