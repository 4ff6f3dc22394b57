"""AIPerf's ``profile_export.jsonl``: a line a request, with its acceptance where the server told of it.

Source: ai-dynamo/aiperf 017c63d, src/aiperf/common/models/record_models.py (metadata); 0786f0c,
src/aiperf/common/models/spec_decode_models.py; 13992db, docs/tutorials/working-with-profile-exports.md (metrics).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines
from specbench.record import Count, TurnRecord
from specbench.report.data.counting import drafted_steps
from specbench.report.exchange.figures import (
    Figures,
    Length,
    Measured,
    Share,
    check_close,
    count_drafts,
    count_values,
    first_s,
    parse,
    survival,
    whole_s,
)

_NS = 1_000_000_000


class _Acceptance(TypedDict):
    mean_acceptance_length: Length
    draft_acceptance_rate: Share
    acceptance_histogram: dict[Count, Count]
    num_accepted_draft_tokens: Count
    num_draft_tokens: Count
    num_spec_steps: Count


class _Metadata(TypedDict):
    request_start_ns: Annotated[int, Field(ge=0)]
    request_end_ns: Annotated[int, Field(ge=0)]
    benchmark_phase: str


class _Tokens(TypedDict):
    value: Count


class _Metrics(TypedDict):
    output_sequence_length: NotRequired[_Tokens]


class _Line(TypedDict):
    metadata: _Metadata
    metrics: _Metrics | None
    spec_decode_acceptance: NotRequired[_Acceptance | None]
    error: NotRequired[dict[str, Any] | None]


def write_requests(measured: Measured) -> str:
    """A line a request. The clock begins at 0 and counts the requests alone, one after the other."""
    lines, now_s = [], 0.0
    for number, record in enumerate(measured.records):
        for place, turn in enumerate(record.turns):
            start_s, now_s = now_s, now_s + whole_s([turn])
            about = {"session_num": number, "conversation_id": record.case, "turn_index": place}
            clock = {"request_start_ns": round(start_s * _NS), "request_end_ns": round(now_s * _NS)}
            workers = dict.fromkeys(("worker_id", "record_processor_id"), "specbench")
            line = {
                "metadata": {**about, **clock, **workers, "benchmark_phase": "profiling", "was_cancelled": False},
                "metrics": _metrics(turn),
                **({} if measured.plain else _acceptance(turn)),
                "error": None,
            }
            lines.append(json.dumps(line, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _metrics(turn: TurnRecord) -> dict[str, Any]:
    latency, first, tokens = 1e3 * whole_s([turn]), 1e3 * first_s(turn), len(turn.ids)
    found: dict[str, tuple[float, str]] = {
        "input_sequence_length": (turn.prompt_tokens, "tokens"),
        "output_sequence_length": (tokens, "tokens"),
        "request_latency": (latency, "ms"),
        "time_to_first_token": (first, "ms"),
        **({"inter_token_latency": ((latency - first) / (tokens - 1), "ms")} if tokens > 1 else {}),
    }
    return {name: {"value": value, "unit": unit} for name, (value, unit) in found.items()}


def _acceptance(turn: TurnRecord) -> dict[str, Any]:
    """Nothing where no step had a draft."""
    counted, steps = count_drafts([turn]), drafted_steps(turn)
    if not steps:
        return {}
    taken, drafted = map(list, zip(*steps, strict=True))
    found = {
        "engine": "specbench",
        "mean_acceptance_length": counted.length,
        "draft_acceptance_rate": counted.rate,
        "acceptance_histogram": count_values(taken),
        "num_accepted_draft_tokens": counted.accepted,
        "num_draft_tokens": counted.drafted,
        "num_spec_steps": counted.steps,
        "completion_tokens": len(turn.ids),
        "per_step_accepted": taken,
        "per_step_drafted": drafted,
    }
    return {"spec_decode_acceptance": found}


def read_requests(raw: bytes, where: str) -> list[Figures]:
    """One group: the requests of the profiling phase that succeeded. Raises InputError naming the line and the key."""
    listed = [(parse(_Line, line, f"{where}, line {number}", "AIPerf"), number) for number, line in numbered_lines(raw)]
    good = [
        (line, f"{where}, line {number}")
        for line, number in listed
        if not line.get("error") and line["metadata"]["benchmark_phase"] == "profiling"
    ]
    if not good:
        raise InputError(f"{where}: no request of the profiling phase succeeded; expected some")
    told = [(line["spec_decode_acceptance"], place) for line, place in good if line.get("spec_decode_acceptance")]
    pooled: Counter[int] = Counter()
    for acceptance, place in told:
        _check(acceptance, place)
        pooled.update(acceptance["acceptance_histogram"])
    tokens = [(line["metrics"] or {}).get("output_sequence_length", {}).get("value") for line, _ in good]
    total = None if None in tokens else sum(tokens)
    clocks = [line["metadata"] for line, _ in good]
    span_ns = max(clock["request_end_ns"] for clock in clocks) - min(clock["request_start_ns"] for clock in clocks)
    rate = total * _NS / span_ns if total and span_ns > 0 else None
    pool = _pool([acceptance for acceptance, _ in told], pooled) if told else {}
    return [Figures(requests=len(good), tokens=total, tokens_per_s=rate, **pool)]


def _check(found: _Acceptance, where: str) -> None:
    histogram, steps = found["acceptance_histogram"], found["num_spec_steps"]
    counts = {"num_spec_steps": (steps, sum(histogram.values()), "the number of steps in acceptance_histogram")}
    taken = sum(each * count for each, count in histogram.items())
    counts["num_accepted_draft_tokens"] = found["num_accepted_draft_tokens"], taken, "that of acceptance_histogram"
    for key, (got, due, formula) in counts.items():
        check_close(where, f"spec_decode_acceptance.{key}", got, due, formula, 0.0)
    key = "spec_decode_acceptance.mean_acceptance_length"
    check_close(where, key, found["mean_acceptance_length"], 1 + taken / max(steps, 1), "1 + accepted / steps")


def _pool(told: list[_Acceptance], pooled: Mapping[int, int]) -> dict[str, Any]:
    return {
        "steps": sum(pooled.values()),
        "drafted": sum(each["num_draft_tokens"] for each in told),
        "accepted": sum(each["num_accepted_draft_tokens"] for each in told),
        "length": float(np.mean([each["mean_acceptance_length"] for each in told])),
        "rate": float(np.mean([each["draft_acceptance_rate"] for each in told])),
        "positions": survival(pooled) if sum(pooled.values()) else (),
    }
