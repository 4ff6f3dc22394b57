"""AIPerf's ``profile_export.jsonl``: a line a request, with its acceptance where the server told of it.

Source: ai-dynamo/aiperf 017c63d, src/aiperf/common/models/record_models.py (metadata); 0786f0c,
src/aiperf/common/models/spec_decode_models.py; 13992db, docs/tutorials/working-with-profile-exports.md (metrics).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines
from specbench.records.record import Count, Nodes, TurnRecord
from specbench.report.exchange.figures import (
    Figures,
    Length,
    Measured,
    Share,
    at,
    check_close,
    count_values,
    parse,
    survival,
    token_s,
)
from specbench.report.frames.counting import drafted_steps, first_s

_NS = 1_000_000_000
_OF = "spec_decode_acceptance"
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
    """A line a request. The clock begins at 0 and counts the requests alone, one after the other."""
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
            told = {} if measured.plain else _acceptance(turn)
            line = {"metadata": metadata, "metrics": _metrics(turn), **told, "error": None}
            lines.append(json.dumps(line, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _metrics(turn: TurnRecord) -> dict[str, Any]:
    found = {
        "input_sequence_length": (turn.prompt_tokens, "tokens"),
        "output_sequence_length": (len(turn.ids), "tokens"),
        "request_latency": (1e3 * turn.wall_s, "ms"),
        "time_to_first_token": (1e3 * first_s(turn), "ms"),
    }
    if (each_s := token_s(turn)) is not None:
        found["inter_token_latency"] = (1e3 * each_s, "ms")
    return {name: {"value": value, "unit": unit} for name, (value, unit) in found.items()}


def _acceptance(turn: TurnRecord) -> dict[str, Any]:
    """Nothing where no step had a draft."""
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
    return {_OF: found} if steps else {}


def read_requests(raw: bytes, where: str) -> Sequence[Figures]:
    """One group: the requests of the profiling phase that succeeded. Raises InputError naming the line and the key."""
    good, told = [], []
    for number, text in numbered_lines(raw):
        place = f"{where}, line {number}"
        line: _Line = parse(_Line, text, place, "AIPerf")
        if not line.get("error") and line["metadata"]["benchmark_phase"] == "profiling":
            good.append(line)
            if found := line.get("spec_decode_acceptance"):
                told.append(_checked(found, place))
    if not good:
        raise InputError(f"{where}: no request of the profiling phase succeeded; expected some")
    tokens = [line["metrics"].tokens if line["metrics"] else None for line in good]
    total = None if None in tokens else sum(filter(None, tokens))
    clocks = [line["metadata"] for line in good]
    span_ns = max(clock["request_end_ns"] for clock in clocks) - min(clock["request_start_ns"] for clock in clocks)
    rate = total * _NS / span_ns if total and span_ns > 0 else None
    return [Figures(requests=len(good), tokens=total, tokens_per_s=rate, **_pool(told))]


def _checked(found: _Acceptance, where: str) -> _Acceptance:
    taken = sum(each * count for each, count in found.histogram.items())
    steps = sum(found.histogram.values())
    check_close(where, f"{_OF}.num_spec_steps", found.steps, steps, "the number of steps in acceptance_histogram", 0.0)
    check_close(where, f"{_OF}.num_accepted_draft_tokens", found.accepted, taken, "that of acceptance_histogram", 0.0)
    key, due = f"{_OF}.mean_acceptance_length", 1 + taken / max(steps, 1)
    check_close(where, key, found.length, due, "1 + accepted / steps")
    return found


def _pool(told: Sequence[_Acceptance]) -> dict[str, Any]:
    """Lengths and rates are means over requests, as AIPerf prints them."""
    if not told:
        return {}
    pooled: Counter[int] = Counter()
    for each in told:
        pooled.update(each.histogram)
    counts = {name: sum(getattr(each, name) for each in told) for name in ("steps", "drafted", "accepted")}
    means = {name: float(np.mean([getattr(each, name) for each in told])) for name in ("length", "rate")}
    return {**counts, **means, "positions": survival(pooled)}
