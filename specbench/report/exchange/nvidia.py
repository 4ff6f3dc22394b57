"""Files of specdec_bench, the harness of SPEED-Bench: speculation profile, acceptance rates and
times.

Source: NVIDIA/Model-Optimizer, examples/specdec_bench/specdec_bench: speculation_profile.py
(edf879d, schema 1.0), metrics/acceptance_rate.py (037a9f6), metrics/specbench.py (55bcd7b),
metrics/timing.py and base.py (1cb88ef).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from specbench.input import InputError
from specbench.records.record import Count
from specbench.report.exchange.figures import (
    Figures,
    Length,
    Measured,
    Rate,
    Share,
    at,
    conditionals,
    count_values,
    parse,
    survival,
    token_s,
)
from specbench.report.frames.counting import first_s, kept_lengths

_DIGITS = 6  # of a profile
_CONSISTENT = 0.02  # its tolerance of the mean
_SOME = Field(min_length=1)
Size = Annotated[int, Field(ge=1, le=1 << 16)]
_BY_PATH = "verification by whole paths accepts no longest prefix"


class _Profile(Figures, frozen=True):
    measured: bool
    positions: tuple[Share, ...] | None = at("marginal_accept_rates")  # type: ignore[assignment]
    length: Length | None = at("mean_accept_length")
    histogram: dict[Count, Count] | None = at("acceptance_length_histogram", default=None)
    categories: dict[str, Length] | None = at("per_category", default=None)


class _Rates(Figures, frozen=True):
    lengths: Annotated[dict[str, Any], _SOME] = at("Request_AL")
    length: Length = at("Average_AL")
    histogram: Annotated[dict[Size, Count], _SOME] = at("Acceptance_Length_Histogram")
    categories: dict[str, Length] = at("Category_AL", default={})


class _Times(Figures, frozen=True):
    tokens_per_s: Rate = at("Output TPS")


def _kept(measured: Measured) -> pd.DataFrame:
    """One row per step that counts: length, and the place of its record, its case and its
    category.
    """
    rows = [
        (record.category, record.case, number, length)
        for number, record in enumerate(measured.records)
        for turn in record.turns
        for length in kept_lengths(turn)
    ]
    return pd.DataFrame(rows, columns=["category", "case", "record", "length"])


def write_profile(measured: Measured) -> str:
    """Accept rates by position and the histogram that they are of; what no record says is null."""
    kept = _kept(measured)
    histogram, means = (
        count_values(kept["length"]),
        kept.groupby(["category", "record"])["length"].mean(),
    )
    size = max(measured.deepest, max(histogram) - 1, 1)
    shares = survival({length - 1: steps for length, steps in histogram.items()}, size)
    marginals, each = (
        [round(share, _DIGITS) for share in rates] for rates in (shares, conditionals(shares))
    )
    mean, implied = round(float(kept["length"].mean()), _DIGITS), round(1 + sum(shares), _DIGITS)
    consistency = {"implied_mean_accept_length": implied, "reported_mean_accept_length": mean}
    consistency |= {"abs_delta": abs(implied - mean), "tolerance": _CONSISTENT, "passed": True}
    profile = {
        "schema_version": "1.0",
        "measured": True,
        "method": measured.method,
        "draft_checkpoint": _describe(measured.draft),
        "target_model": _describe(measured.target),
        "num_speculative_tokens": size,
        "block_size": None,
        "max_supported_k": size,
        "verification_method": "block" if measured.by_path else "longest_prefix",
        "conditional_accept_rates": None if measured.by_path else each,
        "marginal_accept_rates": None if measured.by_path else marginals,
        **({"vectors_unavailable_reason": _BY_PATH} if measured.by_path else {}),
        "mean_accept_length": mean,
        "mean_accept_length_per_request": round(float(means.mean()), _DIGITS),
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {str(size): mean},
        "acceptance_length_histogram": histogram,
        "per_category": means.groupby("category").mean().to_dict(),
        "measurement_conditions": {
            "engine": "specbench",
            "model": measured.facts.model,
            "dataset": measured.facts.suite,
            "temperature": measured.facts.temperature,
        },
        "validation": {
            "mean_consistency": consistency,
            "marginal_monotonicity": {"passed": True, "violations": []},
        },
    }
    return json.dumps(profile, indent=2) + "\n"


def _describe(checkpoint: tuple[str, str | None] | None) -> dict[str, str | None] | None:
    """A checkpoint by the last two parts of its path, which are its id on the hub: a profile is
    published.
    """
    if checkpoint is None:
        return None
    path, fingerprint = checkpoint
    return {"id": "/".join(PurePosixPath(path).parts[-2:]), "fingerprint": fingerprint}


def read_profile(raw: bytes, where: str) -> Sequence[Figures]:
    """A group of all, then the categories. Raises InputError."""
    found: _Profile = parse(_Profile, raw, where)
    if not found.measured or found.length is None:
        raise InputError(
            f"{where}: measured is false or mean_accept_length null; expected a measured profile"
        )
    steps = sum((found.histogram or {}).values()) or None
    rest = [Figures(group=name, length=length) for name, length in (found.categories or {}).items()]
    return [found.model_copy(update={"steps": steps, "positions": found.positions or ()}), *rest]


def write_rates(measured: Measured) -> str:
    """A list of one measurement: mean lengths of questions, categories and all, and the rates of
    the histogram.

    Joint rates are products of the conditional ones, as in 037a9f6 (1cb88ef averages these
    products).
    """
    kept = _kept(measured)
    histogram, means = (
        count_values(kept["length"]),
        kept.groupby(["category", "case"], sort=False)["length"].mean(),
    )
    shares = (1.0, *survival({length - 1: steps for length, steps in histogram.items()}))
    joint = {length: shares[length - 1] for length in histogram}
    found = {
        "Request_AL": means.droplevel("category").to_dict(),
        "Category_AL": means.groupby("category").mean().to_dict(),
        "Average_AL": float(means.mean()),
        "Acceptance_Length_Histogram": histogram,
        "Conditional_Acceptance_Rate": dict(
            zip(joint, conditionals([*joint.values()]), strict=True)
        ),
        "Joint_Acceptance_Rate": joint,
    }
    return json.dumps([found], indent=4) + "\n"


def read_rates(raw: bytes, where: str) -> Sequence[Figures]:
    """The last measurement of the file: all, then its categories. Positions follow from the
    histogram alone.
    """
    found: _Rates = parse(Annotated[list[_Rates], _SOME], raw, where)[-1]
    steps = sum(found.histogram.values())
    if not steps:
        raise InputError(
            f"{where}: Acceptance_Length_Histogram has no step; expected counts above 0"
        )
    positions = survival({length - 1: count for length, count in found.histogram.items()})
    rest = [Figures(group=name, length=length) for name, length in found.categories.items()]
    return [
        found.model_copy(
            update={"requests": len(found.lengths), "steps": steps, "positions": positions}
        ),
        *rest,
    ]


def write_times(measured: Measured) -> str:
    """A list of one measurement: statistics of requests that ran one after the other."""
    turns = measured.turns
    each_s = [token_s(turn) for turn in turns]
    columns: dict[str, Sequence[float]] = {
        "E2E Request Time": [turn.wall_s for turn in turns],
        "TTFT Time": [first_s(turn) for turn in turns],
        "Request Generation Step Time": [seconds for turn in turns for seconds in turn.step_s],
        "Request Generation Tokens Per Second": [1 / seconds for seconds in each_s if seconds],
        "Number of Output Tokens": [len(turn.ids) for turn in turns],
    }
    found: dict[str, Any] = {"Output TPS": measured.tokens / measured.seconds}
    for title, values in ((title, values) for title, values in columns.items() if values):
        figures = {
            name: f"{getattr(np, name)(values):.4f}" for name in ("min", "max", "mean", "std")
        }
        quantiles = {str(share): f"{np.quantile(values, share):.4f}" for share in (0.25, 0.5, 0.75)}
        found[title] = {**figures, "quantiles": quantiles}
    return json.dumps([found], indent=4) + "\n"


def read_times(raw: bytes, where: str) -> Sequence[Figures]:
    """The throughput of the last measurement of the file."""
    found: list[_Times] = parse(Annotated[list[_Times], _SOME], raw, where)
    return found[-1:]
