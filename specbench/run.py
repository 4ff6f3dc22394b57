"""The whole job: check everything that needs no weights, load, resume, decode, and leave a directory of records.

``prepare`` raises InputError for whatever the user can have got wrong; only then does ``execute`` load the target.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from specbench import __version__
from specbench.config import Config
from specbench.decode.law import Law
from specbench.measure import environment
from specbench.measure.health import warnings_before
from specbench.measure.plan import RESETS, Block, make_plan, resume_at
from specbench.method import Method, Peer
from specbench.record import SCHEMA, VANILLA, CaseRecord
from specbench.session import Bound, Session, Terms, with_control
from specbench.store import MANIFEST, RECORDS, RunError, RunWriter, point_latest, read_manifest
from specbench.suite import Selection, Suite, load_suite
from specbench.suite.prompt import PromptBuilder
from specbench.target.eager import EagerEngine
from specbench.target.facade import ModelCard, Target
from specbench.target.load import load_model, read_card
from specbench.types import InputError

log = logging.getLogger(__name__)
ENGINES = ("eager",)


@dataclass(frozen=True, slots=True)
class Entry:
    """A method of this run before it is bound. parameters: for the manifest."""

    name: str
    method: Method
    reset: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A run that has passed every check that needs no weights. resolved: the configuration as plain values."""

    config: Config
    resolved: dict[str, Any]
    digest: str
    entries: tuple[Entry, ...]
    suite: Suite
    card: ModelCard
    prompts: PromptBuilder
    plan: tuple[Block, ...]
    law: Law | None


Observer = Callable[[Sequence[CaseRecord], int, int], None]  # (records of a block, blocks done, blocks in all)


def prepare(config: Config, resolved: dict[str, Any], digest: str, entries: Sequence[Entry]) -> Job:
    """Check a configuration and read everything but weights. Raises InputError."""
    _check_numbers(config)
    for entry in entries:
        if entry.reset not in RESETS:
            raise InputError(f"method.{entry.name}.reset={entry.reset}: expected one of {', '.join(RESETS)}")
    suite = _load_suite(config)
    card = read_card(**_model_options(config), **_card_options(config))
    prompts = PromptBuilder(card.tokenizer, config.model.template, config.model.system)
    for entry in entries:
        entry.method.check(card)
    decode = config.decode
    law = Law(decode.temperature, decode.top_k, decode.top_p) if decode.temperature > 0 else None
    resets = {entry.name: entry.reset for entry in entries}
    order = {bound.name: bound.reset for bound in with_control(_unbound(entries), config.measure.control)}
    plan = make_plan(suite.cases, {**resets, **order}, config.measure.rounds, config.measure.seed)
    return Job(config, resolved, digest, tuple(entries), suite, card, prompts, tuple(plan), law)


def _unbound(entries: Sequence[Entry]) -> list[Bound]:
    return [Bound(entry.name, entry.method, entry.reset) for entry in entries]


def _check_numbers(config: Config) -> None:
    decode, measure, engine = config.decode, config.measure, config.engine
    if engine.kind not in ENGINES:
        raise InputError(f"engine.kind={engine.kind}: expected one of {', '.join(ENGINES)}")
    limits = (
        ("decode.max_new_tokens", decode.max_new_tokens, 1, None),
        ("decode.temperature", decode.temperature, 0, None),
        ("decode.top_k", decode.top_k, 0, None),
        ("decode.top_p", decode.top_p, 1e-6, 1),
        ("measure.rounds", measure.rounds, 1, None),
        ("measure.warmup", measure.warmup, 0, None),
        ("measure.keep_trees", measure.keep_trees, 0, None),
        ("engine.max_nodes", engine.max_nodes, 1, 4096),
        ("model.threads", config.model.threads, 1, None),
    )
    for key, value, low, high in limits:
        if value is not None and (value < low or (high is not None and value > high)):
            upper = f" and at most {high}" if high is not None else ""
            raise InputError(f"{key}={value}: expected at least {low}{upper}")


def _load_suite(config: Config) -> Suite:
    suite = config.suite
    selection = Selection(
        categories=tuple(suite.categories) if suite.categories is not None else None,
        limit=suite.limit,
        sample=suite.sample,
        seed=suite.seed,
        first=suite.first,
        ids=tuple(suite.ids) if suite.ids is not None else None,
        order=suite.order,
    )
    hub = suite.hub
    return load_suite(
        suite.name,
        path=suite.path,
        relative=suite.relative,
        hub={"repo": hub.repo, "file": hub.file, "revision": hub.revision} if hub else None,
        expected=suite.expected,
        sha256=suite.sha256,
        selection=selection,
    )


def _model_options(config: Config) -> dict[str, Any]:
    """What both the card and the weights are read with."""
    model = config.model
    names = ("revision", "gpus", "attention", "safetensors", "trust_remote_code")
    return {name: getattr(model, name) for name in names}


def _card_options(config: Config) -> dict[str, Any]:
    model = config.model
    names = ("path", "name", "tokenizer", "context", "dtype", "device")
    shape = model.random
    random = {"family": shape.family, "config": dict(shape.config)} if shape else None
    return {**{name: getattr(model, name) for name in names}, "random": random}


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
    if done:
        observe(done, start, len(job.plan))
    if start == len(job.plan):
        return list(read_manifest(directory).get("warnings", []))
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    seed = config.model.random.seed if config.model.random else 0
    model = load_model(job.card, seed=seed, **_model_options(config))
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
            observe(records, count, len(job.plan))
    finally:
        for entry in bound:
            entry.method.close()
    writer.write_manifest(_manifest(job, model, warnings))
    return warnings


def _rows(job: Job) -> int:
    """Records a block."""
    return len(job.plan[0].order)


def _bind(job: Job, target: Target) -> list[Bound]:
    bound = _unbound(job.entries)
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
        if job.config.measure.fresh and (directory / RECORDS).exists():
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
        if (directory / MANIFEST).exists() and read_manifest(directory).get("config_hash") != job.digest:
            raise InputError(
                f"results directory {directory}: holds a run of another configuration;"
                " choose another with hydra.run.dir=..., or keep it aside with measure.fresh=true"
            )
        return writer, writer.resume()
    except RunError as error:
        raise InputError(str(error)) from error


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
            "hash": environment.weights_hash(card.path),
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
