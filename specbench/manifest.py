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
from specbench.job import Job
from specbench.measure import environment
from specbench.measure.health import warnings_before, warnings_between
from specbench.method import Peer
from specbench.record import SCHEMA, VANILLA


def build_manifest(job: Job, model: Any, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """The manifest as it stands before the first case. earlier: that of the run which is resumed, or None."""
    card, config = job.card, job.config
    process: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": environment.git_state(Path(__file__).parent),
        "machine": environment.machine(),
        "versions": environment.versions(),
    }
    processes = [*(earlier or {}).get("processes", []), process]
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "specbench": __version__,
        "created": (earlier or process).get("created", process["started"]),
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
        **{key: process[key] for key in ("versions", "git", "machine")},
        "processes": processes,
        "warnings": list((earlier or {}).get("warnings", [])),
    }
    add_warnings(manifest, [*job.suite.warnings, *job.prompts.warnings, *warnings_before(process["git"])])
    add_warnings(manifest, warnings_between(processes))
    return manifest


def add_warnings(manifest: dict[str, Any], warnings: Sequence[str]) -> None:
    """Add what is not there yet."""
    manifest["warnings"] = list(dict.fromkeys([*manifest["warnings"], *warnings]))
