"""Builds the manifest of a run from its job.

Warnings are written down; nothing is corrected, and no outlier is dropped. A run that was resumed
has several processes: each adds its time, commit, machine and versions, and the warnings of all are
kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from specbench.measure import environment
from specbench.measure.plan import Block
from specbench.method import Peer, Remote
from specbench.models.gguf import read_note
from specbench.names import VERSION
from specbench.records.manifest import (
    Git,
    Growth,
    Machine,
    Manifest,
    MethodOfRun,
    Parallel,
    Part,
    Process,
    Questions,
    Settings,
    TargetModel,
    Threads,
)
from specbench.records.record import SCHEMA, VANILLA, Reset
from specbench.runs.job import Job
from specbench.runs.sources import Stage
from specbench.suite.prompt import TEMPLATES
from specbench.trace import model_of

DEBUG = ("CUDA_LAUNCH_BLOCKING", "TORCH_SHOW_CPP_STACKTRACES", "TORCHDYNAMO_VERBOSE")


def build_manifest(
    job: Job, stage: Stage, earlier: Manifest | None, rest: Sequence[Block]
) -> Manifest:
    """The manifest before the first case is decoded.

    earlier: of the run that is resumed, None for a new run. rest: the blocks to come; a method
    without any keeps its earlier entry.
    """
    before = earlier or Manifest()
    process = Process(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        git=Git(**environment.git_state(Path(__file__).parent)),
        machine=Machine(**environment.machine()),
        versions=environment.versions(),
    )
    if job.launch:
        process.launch = job.launch
    grown, left = _growths(job, earlier, rest), {name for block in rest for name in block.order}
    kept = {name: entry for name, entry in before.methods.items() if name not in left}
    methods = {
        entry.name: MethodOfRun(
            parameters=dict(entry.parameters),
            reset=cast(Reset, entry.reset),
            lossless=entry.method.lossless and (job.rule is None or entry.name == VANILLA or peer),
            peer=peer,
            reads_target=entry.name in stage.readers,
            inputs={path: environment.weights_fingerprint(path) for path in entry.method.inputs},
        )
        for entry in job.entries
        for peer in (isinstance(entry.method, Peer),)
    }
    for row in job.entries:
        if isinstance(row.method, Remote) and row.method.synthetic:
            methods[row.name].synthetic = row.method.synthetic
    given: dict[str, Any] = {}  # entries that a manifest has only if they apply
    if stage.step_ms:
        given["step_ms"] = {str(rows): ms for rows, ms in stage.step_ms.items()}
    if stage.threads:
        given["threads"] = before.threads or Threads(**asdict(stage.threads))
    if job.source.suite.whole:  # by which a merge places the part
        first = [block for block in job.plan if block.round == 0]
        places, cases = [block.place for block in first], [block.case.id for block in first]
        given["part"] = Part(
            of=str(job.config.suite.part), config_hash=job.whole, places=places, cases=cases
        )
    if grown:
        given["grown"] = grown
    if grown or any(block.more for block in job.plan):
        given["blocks"] = rest[-1].index + 1
    manifest = Manifest(
        schema=SCHEMA,
        specbench=VERSION,
        created=before.created or process.started,
        config=Settings.model_validate(job.resolved),
        config_hash=job.digest,
        model=_model(job, stage.target.model),
        engine=stage.engine.kind,
        forward=stage.engine.describe_forward(),
        parallel=Parallel(way=job.way, gpus=job.config.model.gpus) if job.way else None,
        suite=Questions(
            name=job.source.suite.name,
            cases=len(job.source.suite.cases),
            turns=sum(len(case.turns) for case in job.source.suite.cases),
            origin=job.source.suite.origin,
            sha256=job.source.suite.sha256,
        ),
        trace=job.source.trace.summary() if job.source.trace else None,
        methods=methods | kept,
        control=job.config.measure.control,
        rounds=job.config.measure.rounds,
        temperature=job.config.decode.temperature,
        baseline=VANILLA,
        versions=process.versions,
        git=process.git,
        machine=process.machine,
        processes=[*before.processes, process],
        warnings=before.warnings,
        **given,
    )
    prompts = job.source.prompts.warnings if job.source.prompts else ()
    manifest.warn(
        [
            *job.source.suite.warnings,
            *job.source.card.warnings,
            *prompts,
            *filter(None, [stage.note]),
        ]
    )
    manifest.warn(_warnings(process.git, manifest.processes))
    return manifest


def _growths(job: Job, earlier: Manifest | None, rest: Sequence[Block]) -> list[Growth]:
    """Returns what each later command has added to the run, including this one."""
    if earlier is None or earlier.config_hash == job.digest:
        return earlier.grown if earlier else []
    growth = Growth(
        block=rest[0].index,
        methods=[each.name for each in job.entries if each.name not in earlier.methods],
        cases=len(job.source.suite.cases) - (earlier.suite.cases or 0),
        rounds=job.config.measure.rounds - (earlier.rounds or 1),
        again=sum(len(block.order) < len(job.rows) for block in rest),
    )
    return [*earlier.grown, growth]


def _model(job: Job, model: Any) -> TargetModel:
    """model: None if answers are replayed; then the size is that of the run that recorded them."""
    card, template = job.source.card, job.config.model.template or ""
    answered = (
        model_of(Path(job.source.trace.origin))
        if job.source.trace and model is None
        else TargetModel()
    )
    weights, gguf = answered.weights or answered.path, read_note(card.path)
    size = (
        sum(parameter.numel() for parameter in model.parameters())
        if model is not None
        else answered.parameters
    )
    own: dict[str, Any] = {"weights": weights} if weights == "random" else {}
    if gguf:
        own["gguf"] = gguf
    if template.endswith(TEMPLATES):
        own["template"] = environment.weights_fingerprint(template)
    return TargetModel(
        name=card.name,
        path=card.path,
        family=card.config.model_type,
        parameters=size,
        dtype=card.dtype,
        device=card.device,
        context=card.context,
        tokenizer=card.tokenizer.name_or_path,
        fingerprint=environment.weights_fingerprint(card.path),
        **own,
    )


def _warnings(git: Git, processes: Sequence[Process]) -> list[str]:
    """What is known before the first case. processes: of the run, which may have been resumed on
    another machine.
    """
    found = [busy] if (busy := environment.spell_busy()) else []
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.is_file() and (mode := governor.read_text().strip()) != "performance":
        found.append(f"CPU governor is {mode}, not performance: host times vary")
    if git.dirty:
        found.append("the checkout has uncommitted changes: the commit does not name this code")
    found += [f"{name} is set: it slows the GPU path" for name in DEBUG if os.environ.get(name)]
    commits = {str(process.git.commit) for process in processes}
    processors = {str(process.machine.cpu) for process in processes}
    for what, seen in (("commits", commits), ("processors", processors)):
        if len(seen) > 1:
            found.append(f"the run was resumed on other {what}: {', '.join(sorted(seen))}")
    return found
