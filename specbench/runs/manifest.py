"""The manifest of a run: what its records were made with, and the warnings that make its numbers unsafe.

Warnings are written down; nothing is corrected, and no outlier is dropped. A run that was resumed has several
processes: each adds its time, commit, machine and versions, and the warnings of all are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from specbench import __version__
from specbench.measure import environment
from specbench.measure.identity import hide_identity
from specbench.measure.plan import Block
from specbench.method import Peer
from specbench.records.record import SCHEMA, VANILLA
from specbench.runs.growth import growths, refuse_settings
from specbench.runs.job import Job
from specbench.runs.session import Entry
from specbench.runs.stage import Stage
from specbench.suite.prompt import TEMPLATES
from specbench.trace import model_of
from specbench.types import InputError

DEBUG = ("CUDA_LAUNCH_BLOCKING", "TORCH_SHOW_CPP_STACKTRACES", "TORCHDYNAMO_VERBOSE")


def build_manifest(
    job: Job, stage: Stage, earlier: Mapping[str, Any] | None, rest: Sequence[Block] = ()
) -> dict[str, Any]:
    """The manifest as it stands before the first case. earlier: that of the run which is resumed, or None.

    rest: the blocks to come; a method with none keeps its entry.
    """
    process = _process() | ({"launch": job.launch} if job.launch else {})
    processes = [*(earlier or {}).get("processes", []), process]
    grown, left = growths(job, earlier or {}, rest), {name for block in rest for name in block.order}
    kept = {name: entry for name, entry in (earlier or {}).get("methods", {}).items() if rest and name not in left}
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "specbench": __version__,
        "created": (earlier or process).get("created", process["started"]),
        "config": job.resolved,
        "config_hash": job.digest,
        "model": _model(job, stage.target.model) | _template(job),
        "engine": stage.engine.kind,
        "forward": stage.engine.describe_forward(),
        **({"threads": (earlier or {}).get("threads") or asdict(stage.threads)} if stage.threads else {}),
        "parallel": {"way": job.way, "gpus": job.config.model.gpus} if job.way else None,
        **({"part": _part(job)} if job.suite.whole else {}),
        "suite": {
            "name": job.suite.name,
            "cases": len(job.suite.cases),
            "turns": sum(len(case.turns) for case in job.suite.cases),
            "origin": job.suite.origin,
            "sha256": job.suite.sha256,
        },
        "trace": job.trace.summary() if job.trace else None,
        "methods": {entry.name: _method(entry, entry.name in stage.readers) for entry in job.entries} | kept,
        **({"grown": grown} if grown else {}),
        **({"blocks": rest[-1].index + 1} if rest and (grown or any(block.more for block in job.plan)) else {}),
        "control": job.config.measure.control,
        "rounds": job.config.measure.rounds,
        "temperature": job.config.decode.temperature,
        "baseline": VANILLA,
        **{key: process[key] for key in ("versions", "git", "machine")},
        "processes": processes,
        "warnings": list((earlier or {}).get("warnings", [])),
    }
    prompts = job.prompts.warnings if job.prompts else ()
    add_warnings(manifest, [*job.suite.warnings, *job.card.warnings, *prompts, *filter(None, [stage.note])])
    add_warnings(manifest, [*_warnings_before(process["git"]), *_warnings_between(processes)])
    return manifest


def _part(job: Job) -> dict[str, Any]:
    """What a merge puts a part in its place by. places: of its cases among those of the whole."""
    first = [block for block in job.plan if block.round == 0]
    places, cases = [block.place for block in first], [block.case.id for block in first]
    return {"of": job.config.suite.part, "config_hash": job.whole, "places": places, "cases": cases}


def _process() -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": environment.git_state(Path(__file__).parent),
        "machine": environment.machine(),
        "versions": environment.versions(),
    }


def _model(job: Job, model: Any) -> dict[str, Any]:
    """model: None where answers are replayed; the run that they are from knows its size."""
    card = job.card
    answered = model_of(Path(job.trace.origin)) if job.trace and model is None else {}
    known, weights = answered.get("parameters"), answered.get("weights") or answered.get("path")
    return {
        "name": card.name,
        "path": card.path,
        "family": card.config.model_type,
        "parameters": sum(parameter.numel() for parameter in model.parameters()) if model is not None else known,
        "dtype": card.dtype,
        "device": card.device,
        "context": card.context,
        "tokenizer": card.tokenizer.name_or_path,
        "fingerprint": environment.weights_fingerprint(card.path),
        **({"weights": weights} if weights == "random" else {}),
    }


def _template(job: Job) -> dict[str, str | None]:
    """The fingerprint of a chat template that is a file."""
    path = job.config.model.template or ""
    return {"template": environment.weights_fingerprint(path)} if path.endswith(TEMPLATES) else {}


def _method(entry: Entry, reads: bool) -> dict[str, Any]:
    return {
        "parameters": dict(entry.parameters),
        "reset": entry.reset,
        "lossless": entry.method.lossless,
        "peer": isinstance(entry.method, Peer),
        "reads_target": reads,
        "inputs": _input_prints(entry),
    }


def _input_prints(entry: Entry) -> dict[str, str | None]:
    """Path -> fingerprint of the files that a method decodes with."""
    return {path: environment.weights_fingerprint(path) for path in entry.method.inputs}


def add_warnings(manifest: dict[str, Any], warnings: Sequence[str]) -> None:
    """Add those that the manifest does not have yet."""
    manifest["warnings"] = list(dict.fromkeys([*manifest["warnings"], *warnings]))


def shared(job: Job, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest as it is written: without home directory, user, host and secrets, unless the run is to name them."""
    return dict(manifest) if job.config.report.identify else cast(dict[str, Any], hide_identity(manifest))


def check_same(job: Job, manifest: Mapping[str, Any], directory: Path) -> None:
    """Raise InputError unless the run of ``manifest`` has this job's configuration, questions, weights and files."""
    methods = manifest.get("methods", {})
    refuse_settings(job, manifest, directory)
    begun = (
        ("suite file", manifest.get("suite", {}).get("sha256"), job.suite.sha256),
        ("weights", manifest.get("model", {}).get("fingerprint"), environment.weights_fingerprint(job.card.path)),
        *(("chat template", manifest.get("model", {}).get(key, new), new) for key, new in _template(job).items()),
        *(
            (f"file behind {entry.name}", methods[entry.name].get("inputs"), _input_prints(entry))
            for entry in job.entries
            if entry.name in methods
        ),
    )
    for what, old, new in begun:
        if hide_identity(old) != hide_identity(new):
            raise InputError(
                f"results directory {directory}: holds a run of another {what};"
                " choose another with hydra.run.dir=..., or keep it aside with measure.fresh=true"
            )


def _warnings_before(git: Mapping[str, Any]) -> list[str]:
    """What is known before the first case."""
    found = [busy] if (busy := environment.spell_busy()) else []
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.is_file() and (mode := governor.read_text().strip()) != "performance":
        found.append(f"CPU governor is {mode}, not performance: host times vary")
    if git.get("dirty"):
        found.append("the checkout has uncommitted changes: the commit does not name this code")
    found += [f"{name} is set: it slows the GPU path" for name in DEBUG if os.environ.get(name)]
    return found


def _warnings_between(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is known of a run that went on in another process: other code or another machine."""
    found: list[str] = []
    for what, key, field in (("commits", "git", "commit"), ("processors", "machine", "cpu")):
        seen = {str(process.get(key, {}).get(field)) for process in processes}
        if len(seen) > 1:
            found.append(f"the run was resumed on other {what}: {', '.join(sorted(seen))}")
    return found
