"""What is taken from vLLM's counters: the result of ``vllm bench serve``, and ``acceptance.csv`` of speculators.

Source: vllm-project/vllm 009e6d4, vllm/benchmarks/serve.py; vllm-project/speculators 0977f3e,
scripts/evaluate/perf_utils.py (extract_spec_decode_metrics), and 01dd14e, scripts/evaluate/evaluate.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, ValidationError

from specbench.input import InputError, decode_text, describe
from specbench.records.record import LARGEST, Count
from specbench.report.exchange.figures import (
    Figures,
    Length,
    Measured,
    Rate,
    Share,
    at,
    check_close,
    parse,
    token_s,
)
from specbench.report.frames.counting import first_s

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
    """A result without details, of requests that ran one after the other."""
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
        **_counters(measured.count_drafts()),
    }
    return json.dumps(result, indent=2) + "\n"


def _counters(counted: Figures) -> dict[str, Any]:
    """Nothing where nothing was drafted."""
    found = {
        "acceptance_rate": 100 * (counted.rate or 0.0),
        "acceptance_length": counted.length,
        "num_drafts": counted.steps,
        "draft_tokens": counted.drafted,
        "accepted_tokens": counted.accepted,
        "per_position_acceptance_rates": counted.positions,
    }
    return {f"{_OF}{name}": value for name, value in found.items()} if counted.drafted else {}


def _wait(name: str, seconds: Sequence[float]) -> dict[str, float]:
    figures = {each: getattr(np, each)(seconds) for each in ("mean", "median", "std")}
    figures["p99"] = np.percentile(seconds, 99)
    return {f"{statistic}_{name}_ms": 1e3 * float(value) for statistic, value in figures.items()}


def read_bench(raw: bytes, where: str) -> Sequence[Figures]:
    """One group: all requests. Raises InputError, also where the counts contradict each other."""
    found: _Result = parse(_Result, raw, where, "vllm bench serve")
    if found.steps and found.drafted and found.accepted is not None:
        found.check_length(where, _OF)
        due, key = found.accepted / found.drafted, f"{_OF}acceptance_rate"
        check_close(where, f"{key} / 100", found.rate, due, "accepted / drafted")
    return [found]


def write_csv(measured: Measured) -> str:
    """A row a category."""
    rows = []
    for name, part in measured.by_category().items():
        found = part.count_drafts()
        if found.steps:
            counts = zip(_COUNTED, (found.steps, found.drafted, found.accepted), strict=True)
            positions = {f"{_AT}{place}": share for place, share in enumerate(found.positions)}
            rows.append({"subset": name, **dict(counts), "acceptance_length": found.length, **positions})
    return pd.DataFrame(rows).fillna(0.0).to_csv(index=False)


def read_csv(raw: bytes, where: str) -> Sequence[Figures]:
    """A group a row. Raises InputError naming the line and the column."""
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
