"""Files of specdec_bench, the harness of SPEED-Bench: speculation profile, acceptance rates and times.

Source: NVIDIA/Model-Optimizer, examples/specdec_bench/specdec_bench: speculation_profile.py (edf879d, schema 1.0),
metrics/acceptance_rate.py (037a9f6), metrics/specbench.py (55bcd7b), metrics/timing.py and base.py (1cb88ef).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError
from specbench.record import CaseRecord, Count
from specbench.report.data.counting import kept_lengths
from specbench.report.exchange.figures import (
    SLACK,
    Figures,
    Length,
    Measured,
    Share,
    check_close,
    check_falling,
    conditionals,
    count_values,
    first_s,
    parse,
    survival,
    whole_s,
)

_HARNESS = "specdec_bench"
_DIGITS = 6  # of a profile
_CONSISTENT = 0.02  # its tolerance of the mean
_BY_PATH = "verification by whole paths accepts no longest prefix"


class _Profile(TypedDict):
    measured: bool
    num_speculative_tokens: Annotated[int, Field(ge=1, le=1 << 16)]
    conditional_accept_rates: list[Share] | None
    marginal_accept_rates: list[Share] | None
    mean_accept_length: Length | None
    acceptance_length_histogram: NotRequired[dict[Count, Count] | None]
    per_category: NotRequired[dict[str, Length] | None]


class _Rates(TypedDict):
    Request_AL: Annotated[dict[str, Length | Annotated[dict[str, Length], Field(min_length=1)]], Field(min_length=1)]
    Average_AL: Length
    Acceptance_Length_Histogram: Annotated[dict[Annotated[int, Field(ge=1)], Count], Field(min_length=1)]
    Category_AL: NotRequired[dict[str, Length]]


_Times = TypedDict("_Times", {"Output TPS": Annotated[float, Field(ge=0, le=1e12)]})
_ListOfRates, _ListOfTimes = (Annotated[list[kind], Field(min_length=1)] for kind in (_Rates, _Times))  # type: ignore[valid-type]


def _kept(records: Sequence[CaseRecord]) -> list[int]:
    """The lengths of the steps that count."""
    return [length for record in records for turn in record.turns for length in kept_lengths(turn)]


def _mean_by_record(records: Sequence[CaseRecord]) -> float:
    return float(np.mean([np.mean(_kept([record])) for record in records]))


def write_profile(measured: Measured) -> str:
    """Accept rates by position and the histogram that they are of; what no record says is null."""
    lengths = _kept(measured.records)
    deepest = max((depth for turn in measured.turns for depth in turn.depth), default=0)
    size = max(deepest, max(lengths) - 1, 1)
    shares = [*survival(count_values(length - 1 for length in lengths)), *[0.0] * size][:size]
    marginals, each = ([round(share, _DIGITS) for share in rates] for rates in (shares, conditionals(shares)))
    mean, implied = round(float(np.mean(lengths)), _DIGITS), round(1 + sum(shares), _DIGITS)
    consistency = {"implied_mean_accept_length": implied, "reported_mean_accept_length": mean}
    consistency |= {"abs_delta": abs(implied - mean), "tolerance": _CONSISTENT, "passed": True}
    profile = {
        "schema_version": "1.0",
        "measured": True,
        "method": measured.method,
        "draft_checkpoint": None,
        "target_model": None,
        "num_speculative_tokens": size,
        "block_size": None,
        "max_supported_k": size,
        "verification_method": "block" if measured.by_path else "longest_prefix",
        "conditional_accept_rates": None if measured.by_path else each,
        "marginal_accept_rates": None if measured.by_path else marginals,
        **({"vectors_unavailable_reason": _BY_PATH} if measured.by_path else {}),
        "mean_accept_length": mean,
        "mean_accept_length_per_request": round(_mean_by_record(measured.records), _DIGITS),
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {str(size): mean},
        "acceptance_length_histogram": count_values(lengths),
        "per_category": {name: _mean_by_record(records) for name, records in measured.by_category()},
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


def read_profile(raw: bytes, where: str) -> list[Figures]:
    """A group of all, then the categories. Raises InputError, also where the rates contradict each other."""
    found: _Profile = parse(_Profile, raw, where, _HARNESS)
    mean, marginals = found["mean_accept_length"], found["marginal_accept_rates"]
    if not found["measured"] or mean is None:
        raise InputError(f"{where}: measured is false or mean_accept_length null; expected a measured profile")
    if marginals is not None:
        _check_vectors(found, marginals, where)
        implied = 1 + sum(marginals)
        check_close(where, "mean_accept_length", mean, implied, "1 + the sum of marginal_accept_rates", _CONSISTENT)
    steps = sum((found.get("acceptance_length_histogram") or {}).values()) or None
    rest = [Figures(name, length=length) for name, length in (found.get("per_category") or {}).items()]
    return [Figures(length=mean, steps=steps, positions=tuple(marginals or ())), *rest]


def _check_vectors(found: _Profile, marginals: Sequence[float], where: str) -> None:
    size, rates = found["num_speculative_tokens"], found["conditional_accept_rates"] or []
    for key, shares in (("conditional_accept_rates", rates), ("marginal_accept_rates", marginals)):
        if len(shares) != size:
            raise InputError(
                f"{where}: {key} has {len(shares)} entries; expected one a position, num_speculative_tokens is {size}"
            )
    check_falling(where, "marginal_accept_rates", marginals)
    for place, (before, got, after) in enumerate(zip((1.0, *marginals), rates, marginals, strict=False)):
        if before > SLACK:  # else too coarsely rounded to divide by
            formula = "that of marginal_accept_rates over the one before"
            check_close(where, f"conditional_accept_rates.{place}", got, after / before, formula)


def write_rates(measured: Measured) -> str:
    """A list of one measurement: mean lengths of questions, categories and all, and the rates of the histogram.

    Joint rates are products of the conditional ones, as in 037a9f6 (1cb88ef averages these products).
    """
    histogram = count_values(_kept(measured.records))
    steps = left = sum(histogram.values())
    joint = {}
    for length, count in histogram.items():
        joint[length], left = left / steps, left - count
    ratios = (after / before for before, after in pairwise((1.0, *joint.values())))
    cases: dict[str, list[CaseRecord]] = {}
    for record in measured.records:
        cases.setdefault(record.case, []).append(record)
    means = {case: float(np.mean(_kept(records))) for case, records in cases.items()}
    found = {
        "Request_AL": means,
        "Category_AL": {
            name: float(np.mean([means[case] for case in dict.fromkeys(record.case for record in records)]))
            for name, records in measured.by_category()
        },
        "Average_AL": float(np.mean([*means.values()])),
        "Acceptance_Length_Histogram": histogram,
        "Conditional_Acceptance_Rate": dict(zip(joint, ratios, strict=True)),
        "Joint_Acceptance_Rate": joint,
    }
    return json.dumps([found], indent=4) + "\n"


def read_rates(raw: bytes, where: str) -> list[Figures]:
    """The last measurement of the file: all, then its categories. Positions follow from the histogram alone."""
    found: _Rates = parse(_ListOfRates, raw, where, _HARNESS)[-1]
    requests = [[*each.values()] if isinstance(each, dict) else [each] for each in found["Request_AL"].values()]
    mean = float(np.mean([length for each in requests for length in each]))
    check_close(where, "Average_AL", found["Average_AL"], mean, "the mean of Request_AL")
    histogram = found["Acceptance_Length_Histogram"]
    steps = sum(histogram.values())
    if not steps:
        raise InputError(f"{where}: Acceptance_Length_Histogram has no step; expected counts above 0")
    positions = survival({length - 1: count for length, count in histogram.items()})
    rest = [Figures(name, length=length) for name, length in found.get("Category_AL", {}).items()]
    return [Figures(requests=len(requests), steps=steps, length=found["Average_AL"], positions=positions), *rest]


def write_times(measured: Measured) -> str:
    """A list of one measurement: statistics of requests that ran one after the other."""
    turns = measured.turns
    tokens = [len(turn.ids) for turn in turns]
    rest = [whole_s([turn]) - first_s(turn) for turn in turns]
    columns: dict[str, Sequence[float]] = {
        "E2E Request Time": [whole_s([turn]) for turn in turns],
        "TTFT Time": [first_s(turn) for turn in turns],
        "Request Generation Step Time": [seconds for turn in turns for seconds in turn.step_s],
        "Request Generation Tokens Per Second": [
            (count - 1) / left for count, left in zip(tokens, rest, strict=True) if count > 1 and left > 0
        ],
        "Number of Output Tokens": tokens,
    }
    found = {name: _statistics(values) for name, values in columns.items() if values}
    return json.dumps([{"Output TPS": sum(tokens) / whole_s(turns), **found}], indent=4) + "\n"


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    figures = {"min": np.min(values), "max": np.max(values), "mean": np.mean(values), "std": np.std(values)}
    quantiles = {str(share): f"{np.quantile(values, share):.4f}" for share in (0.25, 0.5, 0.75)}
    return {name: f"{value:.4f}" for name, value in figures.items()} | {"quantiles": quantiles}


def read_times(raw: bytes, where: str) -> list[Figures]:
    """The throughput of the last measurement of the file."""
    return [Figures(tokens_per_s=parse(_ListOfTimes, raw, where, _HARNESS)[-1]["Output TPS"])]
