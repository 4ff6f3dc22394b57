"""Run a checked job: load, resume, decode block by block, and leave a directory of records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from specbench import __version__
from specbench.job import Job, model_options, unbound
from specbench.measure import environment
from specbench.measure.health import warnings_before
from specbench.measure.plan import resume_at
from specbench.method import Peer
from specbench.record import SCHEMA, VANILLA, CaseRecord
from specbench.session import Bound, Session, Terms, with_control
from specbench.store import MANIFEST, RECORDS, RunError, RunWriter, point_latest, read_manifest
from specbench.target.eager import EagerEngine
from specbench.target.facade import Target
from specbench.target.load import load_model
from specbench.types import InputError

log = logging.getLogger(__name__)

Observer = Callable[[Sequence[CaseRecord], int, int], None]  # (records of a block, blocks done, blocks in all)


def execute(job: Job, directory: Path, observe: Observer) -> list[str]:
    """Run the job in ``directory``, going on where an earlier run of it stopped; returns the warnings.

    Raises InputError when the directory cannot be used or a method cannot be bound.
    """
    config = job.config
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
        return list(read_manifest(directory).get("warnings", []))
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    seed = config.model.random.seed if config.model.random else 0
    model = load_model(job.card, seed=seed, **model_options(config))
    target = Target(job.card, model, config.engine.max_nodes, job.law)
    engine = EagerEngine(model, job.card.context, job.card.eos, config.engine.max_nodes)
    bound = _bind(job, target)
    warnings = [
        *job.suite.warnings,
        *job.prompts.warnings,
        *warnings_before(environment.git_state(Path(__file__).parent)),
    ]
    writer.write_manifest(_manifest(job, model, warnings))
    terms = Terms(
        max_new_tokens=config.decode.max_new_tokens,
        law=job.law,
        seed=config.decode.seed,
        dtype=job.card.dtype,
        judge=config.measure.lossless,
        keep_trees=config.measure.keep_trees,
    )
    session = Session(engine, target, job.prompts, with_control(bound, config.measure.control), terms)
    try:
        warnings += session.warm_up(config.measure.warmup)
        for count, records in enumerate(session.run(job.plan, start), start=start + 1):
            writer.append(records)
            for record in records:
                if record.error:
                    log.warning("case %s, %s: %s", record.case, record.method, record.error["message"])
            observe(records, count, len(job.plan))
    finally:
        for entry in bound:
            entry.method.close()
    writer.write_manifest(_manifest(job, model, warnings))
    log.info("done")
    return warnings


def _rows(job: Job) -> int:
    """Records a block."""
    return len(job.plan[0].order)


def _bind(job: Job, target: Target) -> list[Bound]:
    bound = unbound(job.entries)
    for entry in bound:
        entry.method.bind(target)
        needs = entry.method.needs
        if needs.hidden and max(needs.hidden) > target.layers:
            raise InputError(
                f"method.{entry.name}: needs hidden state {max(needs.hidden)}, the target has 0..{target.layers}"
            )
    return bound


def _open(job: Job, directory: Path) -> tuple[RunWriter, list[CaseRecord]]:
    """The run's writer and what is done already. With ``measure.fresh`` an earlier run is kept aside."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if job.config.measure.fresh and any((directory / name).exists() for name in (RECORDS, MANIFEST)):
            _set_aside(directory)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"results directory {directory}: not writable ({error.strerror}); choose another with hydra.run.dir=..."
        ) from error
    writer = RunWriter(directory, job.plan[0].order)
    try:
        if (directory / MANIFEST).exists():
            _check_same(job, read_manifest(directory), directory)
        return writer, writer.resume()
    except RunError as error:
        raise InputError(str(error)) from error


def _check_same(job: Job, manifest: Mapping[str, Any], directory: Path) -> None:
    """A run goes on only with the configuration, questions and weights that it began with."""
    begun = (
        ("configuration", manifest.get("config_hash"), job.digest),
        ("suite file", manifest.get("suite", {}).get("sha256"), job.suite.sha256),
        ("weights", manifest.get("model", {}).get("fingerprint"), environment.weights_fingerprint(job.card.path)),
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
    for item in directory.iterdir():
        item.rename(aside / item.name)


def _manifest(job: Job, model: Any, warnings: Sequence[str]) -> dict[str, Any]:
    card, config = job.card, job.config
    return {
        "schema": SCHEMA,
        "specbench": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": job.resolved,
        "config_hash": job.digest,
        "model": {
            "name": card.name,
            "path": card.path,
            "family": card.config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "dtype": card.dtype,
            "device": card.device,
            "context": card.context,
            "fingerprint": environment.weights_fingerprint(card.path),
        },
        "suite": {
            "name": job.suite.name,
            "cases": len(job.suite.cases),
            "turns": sum(len(case.turns) for case in job.suite.cases),
            "origin": job.suite.origin,
            "sha256": job.suite.sha256,
        },
        "methods": {
            entry.name: {
                "parameters": dict(entry.parameters),
                "reset": entry.reset,
                "lossless": entry.method.lossless,
                "peer": isinstance(entry.method, Peer),
            }
            for entry in job.entries
        },
        "control": config.measure.control,
        "rounds": config.measure.rounds,
        "temperature": config.decode.temperature,
        "baseline": VANILLA,
        "versions": environment.versions(),
        "git": environment.git_state(Path(__file__).parent),
        "machine": environment.machine(),
        "warnings": list(dict.fromkeys(warnings)),
    }
