"""Records to one row per (model, suite, category, method, variant): every figure that a report prints.

A figure that does not apply is blank (NaN), never 0 or 1. A case that failed under a method is left out of that
method's figures and of its pairing with vanilla, and is counted in ``errors``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench import stats
from specbench.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.data.cases import Cases, CasesOfRun
from specbench.report.data.control import BLOCK, read_control
from specbench.report.data.facts import Facts, read_facts
from specbench.report.data.predict import Prediction
from specbench.report.data.reported import ReportedRun
from specbench.report.data.rows import COLUMNS, unite
from specbench.report.data.trials import BLANK, DRAFTER_PHASES, Column, ratio, read_trials
from specbench.report.data.variant import name_variants
from specbench.store import Run

PAPERS_BASELINE = "hf_generate"  # the denominator of most papers' speedups


@dataclass(frozen=True, slots=True)
class _Scope:
    """The cases of one method in one category. cases: its own that succeeded; the baselines' beside them."""

    facts: Facts
    method: str
    cases: Cases
    vanilla: Cases
    papers: Cases
    errors: int
    drafts: bool  # the method proposed a node somewhere in the run
    prediction: Prediction | None = None
    retimed: stats.Estimate | None = None  # of the A/A control


def summarise(runs: Sequence[Run]) -> pd.DataFrame:
    """All runs' rows; overall first, then categories; vanilla first, its control, then methods in manifest order.

    Raises RunError where a manifest lacks its model, suite or methods.
    """
    trials = [read_trials(run.records) for run in runs]
    facts = [read_facts(run, each.methods) for run, each in zip(runs, trials, strict=True)]
    entries = zip(runs, trials, facts, name_variants(runs, facts), strict=True)
    reported = [ReportedRun(*entry) for entry in entries]
    return unite([summarise_run(entry, read_cases(entry)) for entry in reported])


def read_cases(reported: ReportedRun) -> CasesOfRun:
    """One run's cases, each folded over its rounds."""
    return CasesOfRun(reported.trials, reported.prediction)


def summarise_run(reported: ReportedRun, cases: CasesOfRun) -> pd.DataFrame:
    """One run's rows."""
    rows = [
        {"category": category, "variant": reported.variants.get(scope.method, ""), **_row(scope, spreads)}
        for category in (OVERALL, *cases.categories)
        for scope, spreads in _with_intervals(list(_scopes(reported, cases, category)))
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _scopes(reported: ReportedRun, cases: CasesOfRun, category: str) -> Iterator[_Scope]:
    """A scope for each method with a record in the category."""
    vanilla, papers = (_succeeded(cases.of(category, name)) for name in (VANILLA, PAPERS_BASELINE))
    for name in reported.facts.methods:
        chosen = cases.of(category, name)
        if len(chosen):
            good = _succeeded(chosen)
            errors = len(chosen) - len(good)
            retimed = _retime(reported, category) if name == CONTROL and reported.facts.timed else None
            drafts, prediction = name in cases.drafting, reported.prediction
            yield _Scope(reported.facts, name, good, vanilla, papers, errors, drafts, prediction, retimed)


def _retime(reported: ReportedRun, category: str) -> stats.Estimate | None:
    """The A/A control of a category, as the verdict on the whole run counts it; None where no block has both."""
    found = reported.control if category == OVERALL else None
    if found is None:
        trials = reported.trials
        own = np.ones(len(trials.categories), bool) if category == OVERALL else trials.categories == category
        pair = (trials.columns(name) for name in (VANILLA, CONTROL))
        found = read_control(*({key: rows[key][own[rows["category"]]] for key in BLOCK} for rows in pair))
    return found.retimed if found else None


def _succeeded(cases: Cases) -> Cases:
    return cases.where(cases["ok"])


def _with_intervals(scopes: Sequence[_Scope]) -> Iterator[tuple[_Scope, Mapping[str, stats.Estimate]]]:
    """Each scope with its figures that have an interval; all are resampled together."""
    names: list[list[str]] = [[] for _ in scopes]

    def columns() -> Iterator[tuple[Column, ...]]:  # one figure's at a time: they are as long as the run
        for scope, known in zip(scopes, names, strict=True):
            for name, figure in _resampled(scope):
                known.append(name)
                yield figure

    found = iter(stats.estimates(columns()))
    for scope, known in zip(scopes, names, strict=True):
        yield scope, {name: next(found) for name in known}


def _resampled(scope: _Scope) -> Iterator[tuple[str, tuple[Column, ...]]]:
    """(figure, its columns) as ``stats.estimates`` takes them."""
    cases = scope.cases
    yield "mat", (cases["emitted"], cases["steps"])
    if scope.facts.timed and scope.retimed is None:
        yield "speedup", _paired(scope.vanilla, cases)
    if scope.prediction is not None:
        rows = cases.where(~np.isnan(cases["method_ms"]))
        yield "predicted_speedup", (rows["vanilla_ms"], rows["emitted"], rows["method_ms"], rows["emitted"])


def _row(scope: _Scope, spreads: Mapping[str, stats.Estimate]) -> dict[str, Any]:
    cases = scope.cases
    row: dict[str, Any] = {
        "model": scope.facts.model,
        "suite": scope.facts.suite,
        "method": scope.method,
        "cases": len(cases),
        "tokens": int(cases["all_tokens"].sum()),
        "steps": int(cases["steps"].sum()),
        "violations": BLANK,
        "close_steps": BLANK,
        "errors": scope.errors,
        "load": scope.facts.arrivals and f"each request, {scope.facts.arrivals}",
    }
    row |= _spread("mat", spreads["mat"]) | _drafting(scope) | _times(scope) | _verdict(scope)
    row |= _speed(scope, scope.retimed or spreads.get("speedup")) | _predicted(scope, spreads.get("predicted_speedup"))
    return row | _time_only(scope, row)


def _time_only(scope: _Scope, row: Mapping[str, Any]) -> dict[str, float]:
    """A model that was driven along recorded answers: its speedups are moved to columns of their own, never claimed.

    Where the drafts came from what it computed, nothing is known but what a step costs.
    """
    names = ("speedup", "speedup_low", "speedup_high")
    if not scope.facts.time_only:
        return dict.fromkeys((*(f"time_only_{name}" for name in names), "time_only_step_ms"), BLANK)
    found = {f"time_only_{name}": row[name] for name in names}
    found |= dict.fromkeys((*names, "speedup_hf", "decode_speedup", "cost_per_million", "joules_per_token"), BLANK)
    found["time_only_step_ms"] = 1e3 * ratio(scope.cases["decode_time_s"].sum(), scope.cases["steps"].sum())
    if scope.method in scope.facts.unaccepted:
        unknown = ("mat", "acceptance_rate", "tokens_per_s", "decode_tokens_per_s", "predicted_speedup", "efficiency")
        gone = [name for name in (*unknown, *found) if name != "time_only_step_ms"]
        bounds = [f"{name}_{side}" for name in ("mat", "predicted_speedup") for side in ("low", "high")]
        found |= dict.fromkeys((*gone, *bounds), BLANK)
    return found


def _spread(name: str, estimate: stats.Estimate) -> dict[str, float]:
    low, high = (BLANK if bound is None else bound for bound in (estimate.low, estimate.high))
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def _drafting(scope: _Scope) -> dict[str, float]:
    """How much was proposed and taken; blank for vanilla, for methods that never proposed, and for silent peers."""
    cases = scope.cases
    steps, proposed = cases["steps"].sum(), cases["proposed"].sum()
    peer = scope.method in scope.facts.peers
    silent = peer and not scope.drafts  # it does not say what it proposes
    fed = BLANK if silent else ratio(cases["fed"].sum(), steps)
    parameters = scope.facts.parameters
    row = {
        "tokens_fed": fed,
        "target_compute": BLANK if parameters is None else parameters * 1e-9 * fed,
        "state_bytes": BLANK if peer or not len(cases) else float(cases["state_bytes"].max()),
    }
    if silent or not scope.drafts or scope.method in (VANILLA, CONTROL):
        return row | dict.fromkeys(("acceptance_rate", "draft_rate", "mean_draft"), BLANK)
    return row | {
        "acceptance_rate": ratio(cases["emitted"].sum() - steps, proposed),
        "draft_rate": ratio(cases["drafted_steps"].sum(), steps),
        "mean_draft": ratio(proposed, steps),
    }


def _speed(scope: _Scope, speedup: stats.Estimate | None) -> dict[str, float]:
    cases = scope.cases
    if speedup is None:  # no model was timed
        names = ("tokens_per_s", "decode_tokens_per_s", "speedup", "speedup_low", "speedup_high", "speedup_hf")
        return dict.fromkeys((*names, "decode_speedup", "cost_per_million", "joules_per_token"), BLANK)
    against = _spread("speedup", speedup)
    if scope.method == VANILLA or scope.facts.load:  # 1 by definition; cases that slow each other are no sample
        against |= {"speedup_low": BLANK, "speedup_high": BLANK}
    price = BLANK if scope.facts.price is None else scope.facts.price
    return {
        "tokens_per_s": ratio(cases["tokens"].sum(), cases["time_s"].sum()),
        "cost_per_million": 1e6 * price / 3600 * ratio(cases["time_s"].sum(), cases["tokens"].sum()),
        "joules_per_token": ratio(cases["energy_j"].sum(), cases["all_tokens"].sum()),
        "decode_tokens_per_s": ratio(cases["decode_tokens"].sum(), cases["decode_time_s"].sum()),
        **against,
        "speedup_hf": stats.estimates([_paired(scope.papers, cases)], resamples=0)[0].value,
        "decode_speedup": _decode_speedup(scope),
    }


def _decode_speedup(scope: _Scope) -> float:
    """The same without prefills: for comparison with a prediction, which has decode steps only."""
    ours, theirs = scope.cases.paired(scope.vanilla)
    spent, before = (ratio(each["decode_time_s"].sum(), each["decode_tokens"].sum()) for each in (ours, theirs))
    return ratio(before, spent)


def _predicted(scope: _Scope, found: stats.Estimate | None) -> dict[str, float]:
    """Modelled from the steps with a latency profile (``predict``); blank without, and for vanilla."""
    blank = dict.fromkeys(("predicted_speedup", "predicted_speedup_low", "predicted_speedup_high", "efficiency"), BLANK)
    if scope.prediction is None or found is None or not found.count:
        return blank
    rows = scope.cases.where(~np.isnan(scope.cases["method_ms"]))
    ideal = ratio(rows["vanilla_ideal_ms"].sum(), rows["ideal_ms"].sum())
    measured = _decode_speedup(scope) if scope.prediction.own else BLANK
    return _spread("predicted_speedup", found) | {"efficiency": ratio(measured, ideal)}


def _paired(baseline: Cases, cases: Cases) -> tuple[Column, ...]:
    """Columns of the speedup over the cases that both finished."""
    ours, theirs = cases.paired(baseline)
    return theirs["time_s"], theirs["tokens"], ours["time_s"], ours["tokens"]


def _times(scope: _Scope) -> dict[str, float]:
    """Mean milliseconds a step by phase, and a turn for the prefill; a phase that was not recorded is blank.

    Of a replayed target only the phases are real in which a drafter runs.
    """
    cases = scope.cases
    steps, turns = cases["steps"].sum(), cases["turns"].sum()
    row = {f"{phase}_ms": 1e3 * ratio(_sum_known(cases[f"{phase}_s"]), steps) for phase in PHASES}
    row["prefill_ms"] = 1e3 * ratio(cases["prefill_s"].sum(), turns)
    if scope.facts.timed:
        return row
    return dict.fromkeys(row, BLANK) | {f"{phase}_ms": row[f"{phase}_ms"] for phase in DRAFTER_PHASES}


def _sum_known(seconds: Column) -> float:
    """Of the cases that recorded it; blank where none did."""
    return BLANK if np.isnan(seconds).all() else float(np.nansum(seconds))


def _verdict(scope: _Scope) -> dict[str, float]:
    """Shares of the judged cases; blank when none was judged, and lossless blank when sampling."""
    judged = scope.cases.where(scope.cases["judged"])
    if not len(judged):
        return {"lossless": BLANK, "equal": BLANK}
    row = {"equal": float(judged["equal"].mean())}
    if scope.facts.temperature > 0:
        return row | {"lossless": BLANK}
    counted = judged.where(~np.isnan(judged["close_steps"]))
    return row | {
        "lossless": float(judged["held"].mean()),
        "violations": float(judged["violations"].sum()),
        "close_steps": ratio(counted["close_steps"].sum(), counted["steps"].sum()),
    }
