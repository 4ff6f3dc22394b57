"""SpecForge's benchmark report: a run for each configuration and task.

Source: sgl-project/SpecForge 3a6c8d7, specforge/benchmarks/report.py; accept_length is output tokens over verify steps
(2d3271d, specforge/benchmarks/runner.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from specbench.records.record import Count
from specbench.report.exchange.figures import Figures, Length, Measured, at, check_close, parse


class _Run(Figures, frozen=True):
    config: dict[str, Any] | None
    group: str = at("task", "name")
    requests: Count = at("metrics", "num_requests")
    tokens: Count = at("metrics", "output_tokens")
    tokens_per_s: float = at("metrics", "throughput_tokens_per_second")
    length: Length | None = at("metrics", "accept_length", default=None)
    steps: Count | None = at("metrics", "spec_verify_count", default=None)


class _Report(TypedDict):
    model: str
    concurrency: Count
    runs: Annotated[list[_Run], Field(min_length=1)]


def write_report(measured: Measured) -> str:
    """A run for each category; its requests ran one after the other."""
    report = {
        "model": measured.facts.model,
        "draft_model": None,
        "sampling": {"temperature": measured.facts.temperature},
        "concurrency": 1,
        "created_at": measured.created,
        "runs": [
            {"config": {"label": part.method}, "task": {"name": name}, "metrics": _metrics(part)}
            for name, part in measured.by_category().items()
        ],
    }
    return json.dumps(report, indent=2, sort_keys=True) + "\n"


def _metrics(part: Measured) -> dict[str, Any]:
    steps = 0 if part.plain else sum(len(turn.accept) for turn in part.turns)
    return {
        "num_samples": len(part.records),
        "num_requests": len(part.turns),
        "output_tokens": part.tokens,
        "latency_seconds": part.seconds,
        "throughput_tokens_per_second": part.tokens / part.seconds,
        "accept_length": part.tokens / steps if steps else None,
        "spec_verify_count": steps or None,
        "accuracy": None,
        "num_scored": 0,
    }


def read_report(raw: bytes, where: str) -> Sequence[Figures]:
    """A group a run. Raises InputError, also where a length is not what its counts give."""
    found: _Report = parse(_Report, raw, where, "SpecForge")
    groups = []
    for place, run in enumerate(found["runs"]):
        if run.steps:
            due, key = run.tokens / run.steps, f"runs.{place}.metrics.accept_length"
            check_close(where, key, run.length, due, "output_tokens / spec_verify_count")
        label = f"{run.config['label']}, " if run.config and "label" in run.config else ""
        groups.append(run.model_copy(update={"group": f"{label}{run.group}"}))
    return groups
