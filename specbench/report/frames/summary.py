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
from numpy.typing import NDArray

from specbench import stats
from specbench.records.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.report.frames.control import BLOCK, read_control
from specbench.report.frames.facts import Facts
from specbench.report.frames.predict import MODELLED, Prediction
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.trials import BLANK, DRAFTER_PHASES, Column, Columns, Trials, fold_cases, ratio
from specbench.report.table import KEYS

TASKS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")  # Spec-Bench's, in its order
COLUMNS = (
    *KEYS,
    *("cases", "tokens", "steps", "mat", "mat_low", "mat_high", "tokens_per_s", "decode_tokens_per_s"),
    *("speedup", "speedup_low", "speedup_high", "speedup_hf", "decode_speedup", "predicted_speedup"),
    *("predicted_speedup_low", "predicted_speedup_high", "efficiency", "cost_per_million"),
    "joules_per_token",
    *("time_only_speedup", "time_only_speedup_low", "time_only_speedup_high", "time_only_step_ms"),
    *("acceptance_rate", "draft_rate", "mean_draft"),
    *("tokens_fed", "target_compute", *(f"{phase}_ms" for phase in PHASES), "prefill_ms", "state_bytes"),
    *("lossless", "equal", "violations", "close_steps", "errors"),
    "load",
)


def category_order(names: Sequence[str] | pd.Series) -> list[str]:
    """Spec-Bench's tasks in its order, then any others by name."""
    present = set(names)
    return [*(task for task in TASKS if task in present), *sorted(present - set(TASKS))]


def of_place(frame: pd.DataFrame, model: str, suite: str) -> pd.DataFrame:
    """The rows of one model and suite."""
    return frame[(frame["model"] == model) & (frame["suite"] == suite)]


def unite(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several runs of one model and suite side by side: category by category, methods in first-seen order."""
    frame = pd.concat(frames, ignore_index=True)
    categories = [OVERALL, *category_order(frame.loc[frame["category"] != OVERALL, "category"])]
    methods = [name for name in (VANILLA, CONTROL) if name in set(frame["method"])]
    orders = {
        "model": frame["model"].unique(),
        "suite": frame["suite"].unique(),
        "category": categories,
        "method": dict.fromkeys([*methods, *frame["method"]]),
    }
    ranks = {column: {name: rank for rank, name in enumerate(names)} for column, names in orders.items()}
    order = pd.DataFrame({column: frame[column].map(ranks[column]) for column in orders})
    return frame.loc[order.sort_values(list(orders), kind="stable").index].reset_index(drop=True)


def replayed(rows: pd.DataFrame) -> pd.Series:
    """True for rows of the summary whose target was replayed: drafters were timed, the target was not."""
    return rows["prefill_ms"].isna() & rows["draft_ms"].notna()


def with_drafting(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the summary with columns for printing: blank but for a replayed target.

    fed: tokens fed a step, of a target that was driven along a record too. draft_us, update_us: [us a step], then blank
    as ms. drafting_us: their sum.
    """
    own = replayed(rows)
    phases = {f"{phase}_us": (1e3 * rows[f"{phase}_ms"]).where(own) for phase in DRAFTER_PHASES}
    cost = sum(phases.values(), start=pd.Series(0.0, index=rows.index))
    blank = {f"{phase}_ms": rows[f"{phase}_ms"].mask(own) for phase in DRAFTER_PHASES}
    return rows.assign(
        fed=rows["tokens_fed"].where(own | rows["time_only_step_ms"].notna()), drafting_us=cost, **phases, **blank
    )


def drop_repeated_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without repeated ones: the controls of several runs, and replayed vanilla, whose MAT is always 1."""
    control = (rows["method"] == CONTROL) & (rows["variant"] != "")
    plain = (rows["method"] == VANILLA) & replayed(rows)
    again = plain & rows.assign(plain=plain).duplicated(["model", "suite", "category", "plain"])
    return rows.assign(variant=rows["variant"].mask(plain, ""))[~control & ~again]


Rows = NDArray[np.int32]

NOBODY = ""  # whose records there are none of
_NO_ROWS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Cases:
    """Some rows of the folded records, in their order. columns: of all rows. rows: (C,) those that are meant."""

    columns: Columns
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Column:
        """(C,) a column."""
        return self.columns[name][self.rows]

    def where(self, wanted: Column) -> Cases:
        """Those for which ``wanted``, (C,) bool, is true."""
        return Cases(self.columns, self.rows[wanted])

    def paired(self, other: Cases) -> tuple[Cases, Cases]:
        """The cases of both, in the order of this one: this method's and the other's."""
        _, ours, theirs = np.intersect1d(self["case"], other["case"], assume_unique=True, return_indices=True)
        order = np.argsort(ours)
        return Cases(self.columns, self.rows[ours[order]]), Cases(other.columns, other.rows[theirs[order]])


class CasesOfRun:
    """All cases of a run, by category and method."""

    def __init__(self, trials: Trials, prediction: Prediction | None) -> None:
        """prediction: its figures become columns.

        drafting: the methods that proposed a token in any case. categories: in the order that they are printed in.
        """
        self._names, self._labels = trials.cases, trials.categories
        predicted = prediction.cases if prediction else {}
        self._columns = {
            method: _with_modelled(fold_cases(trials.columns(method)), predicted.get(method))
            for method in (*trials.methods, NOBODY)
        }
        self.categories = category_order(self._labels)
        self._rows = {method: self._by_category(columns["category"]) for method, columns in self._columns.items()}
        self.drafting = {method for method, columns in self._columns.items() if columns["proposed"].any()}

    def _by_category(self, numbers: Column) -> dict[str, Rows]:
        groups = pd.Series(numbers).groupby(numbers).indices
        return {str(self._labels[number]): rows.astype(np.int32) for number, rows in groups.items()}

    def names(self, cases: Cases) -> Column:
        """(C,) which cases these are."""
        return self._names[cases["case"]]

    def categories_of(self, cases: Cases) -> Column:
        """(C,) their categories."""
        return self._labels[cases["category"]]

    def of(self, category: str, method: str) -> Cases:
        """A method's cases in a category, failed ones too."""
        columns = self._columns.get(method, self._columns[NOBODY])
        if category == OVERALL:
            return Cases(columns, np.arange(len(columns["case"]), dtype=np.int32))
        return Cases(columns, self._rows.get(method, {}).get(category, _NO_ROWS))


def _with_modelled(columns: Columns, predicted: pd.DataFrame | None) -> Columns:
    """The columns with those of a prediction, NaN where a case has none."""
    found = {name: np.full(len(columns["case"]), np.nan) for name in MODELLED}
    if predicted is not None:
        rows = pd.Index(columns["case"]).get_indexer(predicted["place"])
        for name, values in found.items():
            values[rows] = predicted[name]
    return {**columns, **found}


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


def read_cases(reported: ReportedRun) -> CasesOfRun:
    """One run's cases, each folded over its rounds."""
    return CasesOfRun(reported.trials, reported.prediction)


def summarise_run(reported: ReportedRun, cases: CasesOfRun) -> pd.DataFrame:
    """One run's rows."""
    rows = [
        _row(scope, spreads) | {"category": category, "variant": reported.variants.get(scope.method, "")}
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
    """What applies; all else is blank."""
    cases = scope.cases
    row: dict[str, Any] = dict.fromkeys(COLUMNS, BLANK) | {
        "model": scope.facts.model,
        "suite": scope.facts.suite,
        "method": scope.method,
        "cases": len(cases),
        "tokens": int(cases["all_tokens"].sum()),
        "steps": int(cases["steps"].sum()),
        "errors": scope.errors,
        "load": scope.facts.arrivals and f"each request, {scope.facts.arrivals}",
    }
    row |= _spread("mat", spreads["mat"]) | _drafting(scope) | _times(scope) | _verdict(scope)
    row |= _speed(scope, scope.retimed or spreads.get("speedup")) | _predicted(scope, spreads.get("predicted_speedup"))
    return row | (_time_only(scope, row) if scope.facts.time_only else {})


def _time_only(scope: _Scope, row: Mapping[str, Any]) -> dict[str, float]:
    """A model that was driven along recorded answers: its speedups are moved to columns of their own, never claimed.

    Where the drafts came from what it computed, nothing is known but what a step costs.
    """
    names = ("speedup", "speedup_low", "speedup_high")
    found = {f"time_only_{name}": row[name] for name in names}
    found |= dict.fromkeys((*names, "speedup_hf", "decode_speedup", "cost_per_million", "joules_per_token"), BLANK)
    if scope.method in scope.facts.unaccepted:
        unknown = ("mat", "acceptance_rate", "tokens_per_s", "decode_tokens_per_s", "predicted_speedup", "efficiency")
        bounds = [f"{name}_{side}" for name in ("mat", "predicted_speedup") for side in ("low", "high")]
        found = dict.fromkeys((*found, *unknown, *bounds), BLANK)
    return found | {"time_only_step_ms": 1e3 * ratio(scope.cases["decode_time_s"].sum(), scope.cases["steps"].sum())}


def _spread(name: str, estimate: stats.Estimate) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), (estimate.value, *estimate.bounds), strict=True))


def _drafting(scope: _Scope) -> dict[str, float]:
    """How much was proposed and taken; blank for vanilla, for methods that never proposed, and for silent peers."""
    cases = scope.cases
    steps, proposed = cases["steps"].sum(), cases["proposed"].sum()
    row = {}
    peer = scope.method in scope.facts.peers
    if not peer and len(cases):
        row["state_bytes"] = float(cases["state_bytes"].max())
    if not peer or scope.drafts:  # a silent peer does not say what it proposes
        row["tokens_fed"] = ratio(cases["fed"].sum(), steps)
        parameters = BLANK if scope.facts.parameters is None else scope.facts.parameters
        row["target_compute"] = parameters * 1e-9 * row["tokens_fed"]
    if scope.drafts and scope.method not in (VANILLA, CONTROL):
        row["acceptance_rate"] = ratio(cases["emitted"].sum() - steps, proposed)
        row["draft_rate"] = ratio(cases["drafted_steps"].sum(), steps)
        row["mean_draft"] = ratio(proposed, steps)
    return row


def _speed(scope: _Scope, speedup: stats.Estimate | None) -> dict[str, float]:
    """Nothing where no model was timed."""
    if speedup is None:
        return {}
    cases = scope.cases
    against = _spread("speedup", speedup)
    if scope.method == VANILLA or scope.facts.load:  # 1 by definition; cases that slow each other are no sample
        against = {"speedup": speedup.value}
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
    """Modelled from the steps with a latency profile (``predict``); nothing without, and for vanilla."""
    if scope.prediction is None or found is None or not found.count:
        return {}
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
    cases, phases = scope.cases, PHASES if scope.facts.timed else DRAFTER_PHASES
    row = {f"{phase}_ms": 1e3 * ratio(_sum_known(cases[f"{phase}_s"]), cases["steps"].sum()) for phase in phases}
    if scope.facts.timed:
        row["prefill_ms"] = 1e3 * ratio(cases["prefill_s"].sum(), cases["turns"].sum())
    return row


def _sum_known(seconds: Column) -> float:
    """Of the cases that recorded it; blank where none did."""
    return BLANK if np.isnan(seconds).all() else float(np.nansum(seconds))


def _verdict(scope: _Scope) -> dict[str, float]:
    """Shares of the judged cases; nothing when none was judged, and ``equal`` alone when sampling."""
    judged = scope.cases.where(scope.cases["judged"])
    row = {"equal": float(judged["equal"].mean())} if len(judged) else {}
    if row and not scope.facts.temperature > 0:
        counted = judged.where(~np.isnan(judged["close_steps"]))
        row["lossless"] = float(judged["held"].mean())
        row["violations"] = float(judged["violations"].sum())
        row["close_steps"] = ratio(counted["close_steps"].sum(), counted["steps"].sum())
    return row
