"""Files of harnesses that benchmark servers: vLLM's counters, AIPerf's requests, SpecForge's report.

* ``vllm bench serve``, and ``acceptance.csv`` of speculators. Source: vllm-project/vllm 009e6d4,
  vllm/benchmarks/serve.py; vllm-project/speculators 0977f3e, scripts/evaluate/perf_utils.py
  (extract_spec_decode_metrics), and 01dd14e, scripts/evaluate/evaluate.py.
* AIPerf's ``profile_export.jsonl``: one line per request, with its acceptance if the server reported it. Source:
  ai-dynamo/aiperf 017c63d, src/aiperf/common/models/record_models.py (metadata); 0786f0c,
  src/aiperf/common/models/spec_decode_models.py; 13992db, docs/tutorials/working-with-profile-exports.md (metrics).
* SpecForge's benchmark report: a run for each configuration and task. Source: sgl-project/SpecForge 3a6c8d7,
  specforge/benchmarks/report.py; accept_length is output tokens over verify steps (2d3271d,
  specforge/benchmarks/runner.py).
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, ValidationError
from typing_extensions import TypedDict

from specbench.input import InputError, decode_text, describe, numbered_lines
from specbench.records.record import LARGEST, Count, Nodes, TurnRecord
from specbench.report.exchange.figures import (
    SLACK,
    Figures,
    Length,
    Measured,
    Rate,
    Share,
    at,
    check_close,
    count_values,
    parse,
    survival,
    token_s,
)
from specbench.report.frames.counting import drafted_steps, first_s

_COUNTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_OF = "spec_decode_"
_AT = "acceptance_at_pos_"
_Percent = Annotated[float, Field(ge=0, le=100), AfterValidator(lambda percent: percent / 100)]
_Some = Annotated[int, Field(gt=0, le=LARGEST)]


class _Result(Figures, frozen=True):
    requests: Count = at("completed")
    tokens: Count = at("total_output_tokens")
    steps: Count | None = at(f"{_OF}num_drafts", default=None)
    drafted: Count | None = at(f"{_OF}draft_tokens", default=None)
    accepted: Count | None = at(f"{_OF}accepted_tokens", default=None)
    length: Length | None = at(f"{_OF}acceptance_length", default=None)
    rate: _Percent | None = at(f"{_OF}acceptance_rate", default=None)
    tokens_per_s: Rate = at("output_throughput")
    positions: tuple[Share, ...] = at(f"{_OF}per_position_acceptance_rates", default=())


class _Row(Figures, frozen=True):
    group: str = at("subset", default="")
    steps: _Some = at("num_drafts")
    drafted: _Some = at("num_draft_tokens")
    accepted: Count = at("num_accepted_tokens")
    length: Length = at("acceptance_length")
    positions: tuple[Share, ...] = ()


def write_bench(measured: Measured) -> str:
    """Writes a result without details, of requests that ran in sequence."""
    turns, seconds, outputs = measured.turns, measured.seconds, measured.tokens
    inputs = sum(turn.prompt_tokens for turn in turns)
    waits = {
        "ttft": [first_s(turn) for turn in turns],
        "tpot": [each for turn in turns if (each := token_s(turn)) is not None],
        "itl": [step for turn in turns for step in turn.step_s[turn.in_prefill :]],
    }
    result = {
        "date": measured.created,
        "backend": "specbench",
        "label": measured.method,
        "model_id": measured.facts.model,
        "num_prompts": len(turns),
        "request_rate": "inf",
        "max_concurrency": 1,
        "duration": seconds,
        "completed": len(turns),
        "failed": 0,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(turns) / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        **{key: value for name, values in waits.items() if values for key, value in _wait(name, values).items()},
    }
    counted = measured.count_drafts()
    if counted.drafted:
        result |= {
            f"{_OF}acceptance_rate": 100 * (counted.rate or 0.0),
            f"{_OF}acceptance_length": counted.length,
            f"{_OF}num_drafts": counted.steps,
            f"{_OF}draft_tokens": counted.drafted,
            f"{_OF}accepted_tokens": counted.accepted,
            f"{_OF}per_position_acceptance_rates": counted.positions,
        }
    return json.dumps(result, indent=2) + "\n"


def _wait(name: str, seconds: Sequence[float]) -> dict[str, float]:
    figures = {each: getattr(np, each)(seconds) for each in ("mean", "median", "std")}
    figures["p99"] = np.percentile(seconds, 99)
    return {f"{statistic}_{name}_ms": 1e3 * float(value) for statistic, value in figures.items()}


def read_bench(raw: bytes, where: str) -> Sequence[Figures]:
    """Returns one group: all requests. Raises InputError, also if the counts contradict each other."""
    found: _Result = parse(_Result, raw, where, "vllm bench serve")
    if found.steps and found.drafted and found.accepted is not None:
        found.check_length(where, _OF)
        due, key = found.accepted / found.drafted, f"{_OF}acceptance_rate"
        check_close(where, f"{key} / 100", found.rate, due, "accepted / drafted")
    return [found]


def write_csv(measured: Measured) -> str:
    """Writes one row per category."""
    rows = []
    for name, part in measured.by_category().items():
        found = part.count_drafts()
        if found.steps:
            counts = zip(_COUNTED, (found.steps, found.drafted, found.accepted), strict=True)
            positions = {f"{_AT}{place}": share for place, share in enumerate(found.positions)}
            rows.append({"subset": name, **dict(counts), "acceptance_length": found.length, **positions})
    return pd.DataFrame(rows).fillna(0.0).to_csv(index=False)


def read_csv(raw: bytes, where: str) -> Sequence[Figures]:
    """Returns one group per row. Raises InputError naming the line and the column."""
    lines = csv.DictReader(io.StringIO(decode_text(raw, where), newline=""))
    try:
        found = [_read_row(row, f"{where}, line {number}") for number, row in enumerate(lines, start=2)]
    except csv.Error as error:
        raise InputError(f"{where}: is not csv ({error}); expected a table as speculators writes it") from None
    if not found:
        raise InputError(f"{where}: has no row; expected one a subset, as speculators writes them")
    return found


def _read_row(cells: dict[str, str | None], where: str) -> Figures:
    named = {key: value for key, value in cells.items() if key and value is not None}
    shares = tuple(value for key, value in named.items() if key.startswith(_AT))
    try:
        row = _Row.model_validate(named | {"positions": shares})
    except ValidationError as error:
        raise InputError(f"{where}: {describe(error)}; expected a table as speculators writes it") from None
    row.check_length(where)
    return row.model_copy(update={"rate": row.accepted / row.drafted})


_NS = 1_000_000_000
_ACCEPTANCE = "spec_decode_acceptance"
_Clock = Annotated[int, Field(ge=0)]


class _Acceptance(Figures, frozen=True):
    length: Length = at("mean_acceptance_length")
    rate: Share = at("draft_acceptance_rate")
    histogram: dict[Nodes, Count] = at("acceptance_histogram")
    accepted: Count = at("num_accepted_draft_tokens")
    drafted: Count = at("num_draft_tokens")
    steps: Count = at("num_spec_steps")


class _Metadata(TypedDict):
    request_start_ns: _Clock
    request_end_ns: _Clock
    benchmark_phase: str


class _Metrics(Figures, frozen=True):
    tokens: Count | None = at("output_sequence_length", "value", default=None)


class _Line(TypedDict):
    metadata: _Metadata
    metrics: _Metrics | None
    spec_decode_acceptance: NotRequired[_Acceptance | None]
    error: NotRequired[dict[str, Any] | None]


def write_requests(measured: Measured) -> str:
    """Writes one line per request. The clock begins at 0 and counts only the requests, in sequence."""
    lines, now_s = [], 0.0
    for number, record in enumerate(measured.records):
        for place, turn in enumerate(record.turns):
            start_s, now_s = now_s, now_s + turn.wall_s
            metadata = {
                "session_num": number,
                "conversation_id": record.case,
                "turn_index": place,
                "request_start_ns": round(start_s * _NS),
                "request_end_ns": round(now_s * _NS),
                **dict.fromkeys(("worker_id", "record_processor_id"), "specbench"),
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            }
            found = {
                "input_sequence_length": (turn.prompt_tokens, "tokens"),
                "output_sequence_length": (len(turn.ids), "tokens"),
                "request_latency": (1e3 * turn.wall_s, "ms"),
                "time_to_first_token": (1e3 * first_s(turn), "ms"),
            }
            if (each_s := token_s(turn)) is not None:
                found["inter_token_latency"] = (1e3 * each_s, "ms")
            metrics = {name: {"value": value, "unit": unit} for name, (value, unit) in found.items()}
            reported = {} if measured.plain else _acceptance(turn)
            line = {"metadata": metadata, "metrics": metrics, **reported, "error": None}
            lines.append(json.dumps(line, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _acceptance(turn: TurnRecord) -> dict[str, Any]:
    """Returns nothing if no step had a draft."""
    steps = drafted_steps(turn)
    taken, drafted = [accepted for accepted, _ in steps], [nodes for _, nodes in steps]
    found = {
        "engine": "specbench",
        "mean_acceptance_length": 1 + sum(taken) / max(len(steps), 1),
        "draft_acceptance_rate": sum(taken) / max(sum(drafted), 1),
        "acceptance_histogram": count_values(taken),
        "num_accepted_draft_tokens": sum(taken),
        "num_draft_tokens": sum(drafted),
        "num_spec_steps": len(steps),
        "completion_tokens": len(turn.ids),
        "per_step_accepted": taken,
        "per_step_drafted": drafted,
    }
    return {_ACCEPTANCE: found} if steps else {}


def read_requests(raw: bytes, where: str) -> Sequence[Figures]:
    """Returns one group: the successful requests of the profiling phase. Raises InputError with line and key."""
    succeeded, reported = [], []
    for number, text in numbered_lines(raw):
        place = f"{where}, line {number}"
        line: _Line = parse(_Line, text, place, "AIPerf")
        if not line.get("error") and line["metadata"]["benchmark_phase"] == "profiling":
            succeeded.append(line)
            if found := line.get("spec_decode_acceptance"):
                _check_acceptance(found, place)
                reported.append(found)
    if not succeeded:
        raise InputError(f"{where}: no request of the profiling phase succeeded; expected some")
    tokens = [line["metrics"].tokens if line["metrics"] else None for line in succeeded]
    total = None if None in tokens else sum(filter(None, tokens))
    clocks = [line["metadata"] for line in succeeded]
    span_ns = max(clock["request_end_ns"] for clock in clocks) - min(clock["request_start_ns"] for clock in clocks)
    rate = total * _NS / span_ns if total and span_ns > 0 else None
    return [Figures(requests=len(succeeded), tokens=total, tokens_per_s=rate, **_pool(reported))]


def _check_acceptance(found: _Acceptance, where: str) -> None:
    taken = sum(each * count for each, count in found.histogram.items())
    steps = sum(found.histogram.values())
    for key, got, due, formula, slack in (
        ("num_spec_steps", found.steps, steps, "the number of steps in acceptance_histogram", 0.0),
        ("num_accepted_draft_tokens", found.accepted, taken, "that of acceptance_histogram", 0.0),
        ("mean_acceptance_length", found.length, 1 + taken / max(steps, 1), "1 + accepted / steps", SLACK),
    ):
        check_close(where, f"{_ACCEPTANCE}.{key}", got, due, formula, slack)


def _pool(reported: Sequence[_Acceptance]) -> dict[str, Any]:
    """Lengths and rates are means over requests, as AIPerf prints them."""
    if not reported:
        return {}
    pooled: Counter[int] = Counter()
    for each in reported:
        pooled.update(each.histogram)
    counts = {name: sum(getattr(each, name) for each in reported) for name in ("steps", "drafted", "accepted")}
    means = {name: float(np.mean([getattr(each, name) for each in reported])) for name in ("length", "rate")}
    return {**counts, **means, "positions": survival(pooled)}


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
    """Writes one run per category; its requests ran in sequence."""
    runs = []
    for name, part in measured.by_category().items():
        steps = 0 if part.plain else sum(len(turn.accept) for turn in part.turns)
        metrics = {
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
        runs.append({"config": {"label": part.method}, "task": {"name": name}, "metrics": metrics})
    report = {
        "model": measured.facts.model,
        "draft_model": None,
        "sampling": {"temperature": measured.facts.temperature},
        "concurrency": 1,
        "created_at": measured.created,
        "runs": runs,
    }
    return json.dumps(report, indent=2, sort_keys=True) + "\n"


def read_report(raw: bytes, where: str) -> Sequence[Figures]:
    """Returns one group per run. Raises InputError, also if a length is not what its counts give."""
    found: _Report = parse(_Report, raw, where, "SpecForge")
    groups = []
    for place, run in enumerate(found["runs"]):
        if run.steps:
            due, key = run.tokens / run.steps, f"runs.{place}.metrics.accept_length"
            check_close(where, key, run.length, due, "output_tokens / spec_verify_count")
        label = f"{run.config['label']}, " if run.config and "label" in run.config else ""
        groups.append(run.model_copy(update={"group": f"{label}{run.group}"}))
    return groups
