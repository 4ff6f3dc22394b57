"""SpecForge's benchmark report: a run for each configuration and task.

Source: sgl-project/SpecForge 3a6c8d7, specforge/benchmarks/report.py; accept_length is output tokens over verify steps
(2d3271d, specforge/benchmarks/runner.py).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from specbench.record import Count, Seconds
from specbench.report.exchange.figures import Figures, Length, Measured, check_close, parse, whole_s


class _Metrics(TypedDict):
    num_samples: Count
    num_requests: Count
    output_tokens: Count
    latency_seconds: Seconds
    throughput_tokens_per_second: float
    accept_length: NotRequired[Length | None]
    spec_verify_count: NotRequired[Count | None]


class _Task(TypedDict):
    name: str


class _Run(TypedDict):
    config: dict[str, Any] | None
    task: _Task
    metrics: _Metrics


class _Report(TypedDict):
    model: str
    concurrency: Count
    runs: Annotated[list[_Run], Field(min_length=1)]


def write_report(measured: Measured) -> str:
    """A run for each category; its requests ran one after the other."""
    runs = []
    for name, records in measured.by_category():
        turns = [turn for record in records for turn in record.turns]
        tokens, seconds = sum(len(turn.ids) for turn in turns), whole_s(turns)
        steps = 0 if measured.plain else sum(len(turn.accept) for turn in turns)
        metrics = {
            "num_samples": len(records),
            "num_requests": len(turns),
            "output_tokens": tokens,
            "latency_seconds": seconds,
            "throughput_tokens_per_second": tokens / seconds,
            "accept_length": tokens / steps if steps else None,
            "spec_verify_count": steps or None,
            "accuracy": None,
            "num_scored": 0,
        }
        runs.append({"config": {"label": measured.method}, "task": {"name": name}, "metrics": metrics})
    about = {
        "model": measured.facts.model,
        "draft_model": None,
        "sampling": {"temperature": measured.facts.temperature},
    }
    report = {**about, "concurrency": 1, "created_at": measured.created, "runs": runs}
    return json.dumps(report, indent=2, sort_keys=True) + "\n"


def read_report(raw: bytes, where: str) -> list[Figures]:
    """A group a run. Raises InputError, also where a length is not what its counts give."""
    found: _Report = parse(_Report, raw, where, "SpecForge")
    groups = []
    for place, run in enumerate(found["runs"]):
        metrics, config = run["metrics"], run["config"]
        steps, length = metrics.get("spec_verify_count"), metrics.get("accept_length")
        if steps:
            due, key = metrics["output_tokens"] / steps, f"runs.{place}.metrics.accept_length"
            check_close(where, key, length, due, "output_tokens / spec_verify_count")
        label = f"{config['label']}, " if config and "label" in config else ""
        name, speed = f"{label}{run['task']['name']}", metrics["throughput_tokens_per_second"]
        counts = (metrics["num_requests"], metrics["output_tokens"], steps)
        groups.append(Figures(name, *counts, length=length, tokens_per_s=speed))
    return groups
