"""What is taken from vLLM's counters: the result of ``vllm bench serve``, and ``acceptance.csv`` of speculators.

Source: vllm-project/vllm 009e6d4, vllm/benchmarks/serve.py; vllm-project/speculators 0977f3e,
scripts/evaluate/perf_utils.py (extract_spec_decode_metrics), and 01dd14e, scripts/evaluate/evaluate.py.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NotRequired

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError, decode_text
from specbench.record import OVERALL, Count, TurnRecord
from specbench.report.exchange.figures import (
    Figures,
    Length,
    Measured,
    Share,
    check_close,
    check_falling,
    count_drafts,
    first_s,
    parse,
    whole_s,
)

Rate = Annotated[float, Field(ge=0, le=1e12)]
_COUNTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_AT = "acceptance_at_pos_"


class _Result(TypedDict):
    completed: Count
    total_output_tokens: Count
    output_throughput: Rate
    spec_decode_acceptance_rate: NotRequired[Annotated[float, Field(ge=0, le=100)]]
    spec_decode_acceptance_length: NotRequired[Length]
    spec_decode_num_drafts: NotRequired[Count]
    spec_decode_draft_tokens: NotRequired[Count]
    spec_decode_accepted_tokens: NotRequired[Count]
    spec_decode_per_position_acceptance_rates: NotRequired[list[Share]]


def write_bench(measured: Measured) -> str:
    """A result without details, of requests that ran one after the other."""
    turns, seconds = measured.turns, whole_s(measured.turns)
    inputs, outputs = sum(turn.prompt_tokens for turn in turns), sum(len(turn.ids) for turn in turns)
    waits = {
        "ttft": [first_s(turn) for turn in turns],
        "tpot": [(whole_s([turn]) - first_s(turn)) / (len(turn.ids) - 1) for turn in turns if len(turn.ids) > 1],
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
        **({} if measured.plain else _counters(turns)),
    }
    return json.dumps(result, indent=2) + "\n"


def _counters(turns: Sequence[TurnRecord]) -> dict[str, Any]:
    counted = count_drafts(turns)
    if not counted.drafted or counted.rate is None:
        return {}
    return {
        "spec_decode_acceptance_rate": 100 * counted.rate,
        "spec_decode_acceptance_length": counted.length,
        "spec_decode_num_drafts": counted.steps,
        "spec_decode_draft_tokens": counted.drafted,
        "spec_decode_accepted_tokens": counted.accepted,
        "spec_decode_per_position_acceptance_rates": counted.positions,
    }


def _wait(name: str, seconds: Sequence[float]) -> dict[str, float]:
    figures = {"mean": np.mean(seconds), "median": np.median(seconds), "std": np.std(seconds)}
    figures["p99"] = np.percentile(seconds, 99)
    return {f"{statistic}_{name}_ms": 1e3 * float(value) for statistic, value in figures.items()}


def read_bench(raw: bytes, where: str) -> list[Figures]:
    """One group: all requests. Raises InputError, also where the counts contradict each other."""
    found: _Result = parse(_Result, raw, where, "vllm bench serve")
    steps, drafted = found.get("spec_decode_num_drafts"), found.get("spec_decode_draft_tokens")
    accepted = found.get("spec_decode_accepted_tokens")
    length, rate = found.get("spec_decode_acceptance_length"), found.get("spec_decode_acceptance_rate")
    positions = found.get("spec_decode_per_position_acceptance_rates", [])
    if steps and drafted and accepted is not None:
        _check(where, "spec_decode_", accepted / steps, length, positions)
        check_close(where, "spec_decode_acceptance_rate", rate, 100 * accepted / drafted, "100 accepted / drafted")
    whole = (OVERALL, found["completed"], found["total_output_tokens"], steps, drafted, accepted, length)
    return [Figures(*whole, None if rate is None else rate / 100, found["output_throughput"], tuple(positions))]


def _check(where: str, prefix: str, taken: float, length: float | None, positions: Sequence[float]) -> None:
    """taken: accepted draft tokens of a draft."""
    key = f"{prefix}acceptance_length"
    check_close(where, key, length, 1 + taken, "1 + accepted tokens / drafts")
    if positions:
        check_close(where, key, length, 1 + sum(positions), "1 + the sum of the rates by position")
    check_falling(where, "acceptance by position", positions)


def write_csv(measured: Measured) -> str:
    """A row a category."""
    rows = [
        (name, count_drafts([turn for each in records for turn in each.turns]))
        for name, records in measured.by_category()
    ]
    width = max(len(counted.positions) for _, counted in rows)
    header = ["subset", *_COUNTED, "acceptance_length", *(f"{_AT}{place}" for place in range(width))]
    cells = [
        (name, each.steps, each.drafted, each.accepted, each.length, *each.positions)
        for name, each in rows
        if each.steps
    ]
    frame = pd.DataFrame(cells).reindex(columns=range(len(header))).set_axis(header, axis=1)
    return frame.fillna(0.0).to_csv(index=False)


def read_csv(raw: bytes, where: str) -> list[Figures]:
    """A group a row. Raises InputError naming the line and the column."""
    lines = csv.DictReader(io.StringIO(decode_text(raw, where), newline=""))
    try:
        found = [_read_row(row, f"{where}, line {number}") for number, row in enumerate(lines, start=2)]
    except csv.Error as error:
        raise InputError(f"{where}: is not csv ({error}); expected a table as speculators writes it") from None
    if not found:
        raise InputError(f"{where}: has no row; expected one a subset, as speculators writes them")
    return found


def _read_row(row: dict[str, str | None], where: str) -> Figures:
    steps, drafted, accepted = (_number(row, key, where) for key in _COUNTED)
    length = _number(row, "acceptance_length", where)
    positions = [_number(row, key, where) for key in row if key and key.startswith(_AT)]
    if not steps or not drafted:
        raise InputError(f"{where}: num_drafts or num_draft_tokens is 0; expected rows of subsets with drafts")
    _check(where, "", accepted / steps, length, positions)
    figures = Figures(row.get("subset") or "", None, None, int(steps), int(drafted), int(accepted), length)
    return replace(figures, rate=accepted / drafted, positions=tuple(positions))


def _number(row: dict[str, str | None], key: str, where: str) -> float:
    try:
        value = float(row[key] or "")
        if math.isfinite(value) and value >= 0:
            return value
    except (KeyError, ValueError):
        pass
    raise InputError(f"{where}: {key} is {row.get(key)!r}; expected a number from 0, as speculators writes it")
