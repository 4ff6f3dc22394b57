"""The manifest of a run: everything that is needed to know what its records are, and to doubt them.

A run that was resumed has several processes; each leaves its time, commit, machine and versions, and their warnings
are kept together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench import __version__
from specbench.job import Entry, Job
from specbench.measure import environment
from specbench.measure.health import warnings_before, warnings_between
from specbench.method import Peer
from specbench.record import SCHEMA, VANILLA
from specbench.stage import Stage
from specbench.target.facade import ModelCard


def build_manifest(
    job: Job, stage: Stage, earlier: Mapping[str, Any] | None, readers: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The manifest as it stands before the first case.

    earlier: that of the run which is resumed, or None. readers: methods that draft from what the target computes.
    """
    process = _process()
    processes = [*(earlier or {}).get("processes", []), process]
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "specbench": __version__,
        "created": (earlier or process).get("created", process["started"]),
        "config": job.resolved,
        "config_hash": job.digest,
        "model": _model(job.card, stage.target.model),
        "engine": stage.engine.kind,
        "parallel": {"way": stage.way, "gpus": job.config.model.gpus} if stage.way else None,
        "suite": {
            "name": job.suite.name,
            "cases": len(job.suite.cases),
            "turns": sum(len(case.turns) for case in job.suite.cases),
            "origin": job.suite.origin,
            "sha256": job.suite.sha256,
        },
        "trace": job.trace.summary() if job.trace else None,
        "methods": {entry.name: _method(entry, entry.name in readers) for entry in job.entries},
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
    add_warnings(manifest, [*warnings_before(process["git"]), *warnings_between(processes)])
    return manifest


def _process() -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": environment.git_state(Path(__file__).parent),
        "machine": environment.machine(),
        "versions": environment.versions(),
    }


def _model(card: ModelCard, model: Any) -> dict[str, Any]:
    return {
        "name": card.name,
        "path": card.path,
        "family": card.config.model_type,
        "parameters": sum(parameter.numel() for parameter in model.parameters()) if model is not None else None,
        "dtype": card.dtype,
        "device": card.device,
        "context": card.context,
        "tokenizer": card.tokenizer.name_or_path,
        "fingerprint": environment.weights_fingerprint(card.path),
    }


def _method(entry: Entry, reads: bool) -> dict[str, Any]:
    return {
        "parameters": dict(entry.parameters),
        "reset": entry.reset,
        "lossless": entry.method.lossless,
        "peer": isinstance(entry.method, Peer),
        "reads_target": reads,
        "inputs": input_prints(entry),
    }


def input_prints(entry: Entry) -> dict[str, str | None]:
    """Path -> fingerprint of the files that a method decodes with: a run goes on only with the same ones."""
    return {path: environment.weights_fingerprint(path) for path in entry.method.inputs}


def add_warnings(manifest: dict[str, Any], warnings: Sequence[str]) -> None:
    """Add what is not there yet."""
    manifest["warnings"] = list(dict.fromkeys([*manifest["warnings"], *warnings]))
