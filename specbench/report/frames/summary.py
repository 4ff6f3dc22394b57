"""Records to one row per (model, suite, category, method, variant): every figure that a report
prints.

A case that failed under a method is left out of that method's figures and of its pairing with
vanilla, and is counted in ``errors``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from specbench import stats
from specbench.records.record import CONTROL, DRAFTER_PHASES, OVERALL, VANILLA
from specbench.report.columns import COLUMNS, PAPERS_BASELINE, RESULT, Scope
from specbench.report.frames.cases import CasesOfRun, list_categories
from specbench.report.frames.facts import without_run
from specbench.report.frames.reported import BLOCK, ReportedRun, read_control
from specbench.report.frames.trials import Values
from specbench.report.table import KEYS

_PLACE = ["model", "suite", "category"]


def summarise_run(reported: ReportedRun, cases: CasesOfRun) -> pd.DataFrame:
    """One run's rows."""
    rows: list[dict[str, float | str]] = []
    for category in (OVERALL, *cases.categories):
        for scope in _with_intervals(list(_scopes(reported, cases, category))):
            model, suite, method, variant = reported.key(scope.method)
            rows.append(dict(zip(KEYS, (model, suite, category, method, variant), strict=True)))
            for column in RESULT:
                rows[-1] |= column.fill(scope)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _scopes(reported: ReportedRun, cases: CasesOfRun, category: str) -> Iterator[Scope]:
    """A scope for each method with a record in the category."""
    facts, trials = reported.facts, reported.trials
    vanilla, papers = (cases.of(category, name).succeeded() for name in (VANILLA, PAPERS_BASELINE))
    for name in facts.methods:
        if not len(every := cases.of(category, name)):
            continue
        control = None
        if name == CONTROL and facts.timed:  # as the verdict on the whole run counts it
            control = reported.control if category == OVERALL else None
            if control is None:
                own = np.full(len(trials.categories), category == OVERALL) | (
                    trials.categories == category
                )
                pair = (trials.columns(each) for each in (VANILLA, CONTROL))
                control = read_control(
                    *({key: rows[key][own[rows["category"]]] for key in BLOCK} for rows in pair)
                )
        good = every.succeeded()
        retimed = control.retimed if control else None
        errors, drafts = len(every) - len(good), name in cases.drafting
        yield Scope(
            facts, name, good, vanilla, papers, errors, drafts, reported.prediction, retimed
        )


def _with_intervals(scopes: Sequence[Scope]) -> Iterator[Scope]:
    """Each scope with its estimates; all are resampled together."""
    names: list[list[str]] = [[] for _ in scopes]

    # one figure's at a time: they are as long as the run
    def columns() -> Iterator[tuple[Values, ...]]:
        for scope, known in zip(scopes, names, strict=True):
            for name, figure in scope.resampled():
                known.append(name)
                yield figure

    found = iter(stats.estimates(columns()))
    for scope, known in zip(scopes, names, strict=True):
        yield replace(scope, estimates={name: next(found) for name in known})


def of_place(frame: pd.DataFrame, model: str, suite: str) -> pd.DataFrame:
    """The rows of one model and suite."""
    return frame[(frame["model"] == model) & (frame["suite"] == suite)]


def unite(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several runs of one model and suite side by side: category by category, methods in
    first-seen order.
    """
    frame = pd.concat(frames, ignore_index=True)
    categories = [OVERALL, *list_categories(frame)]
    methods = [name for name in (VANILLA, CONTROL) if name in set(frame["method"])]
    orders = {
        "model": frame["model"].unique(),
        "suite": frame["suite"].unique(),
        "category": categories,
        "method": dict.fromkeys([*methods, *frame["method"]]),
    }
    ranks = {
        column: {name: rank for rank, name in enumerate(names)} for column, names in orders.items()
    }
    order = pd.DataFrame({column: frame[column].map(ranks[column]) for column in orders})
    return frame.loc[order.sort_values(list(orders), kind="stable").index].reset_index(drop=True)


def replayed(rows: pd.DataFrame) -> pd.Series:
    """True for rows of the summary whose target was replayed: drafters were timed, the target was
    not.
    """
    return rows["prefill_ms"].isna() & rows["draft_ms"].notna()


def with_drafting(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the summary with columns for printing: blank except for a replayed target.

    fed: tokens fed a step, also of a target that was driven along a record. draft_us, update_us:
    [us a step], then blank as ms. drafting_us: their sum.
    """
    own = replayed(rows)
    phases = {f"{phase}_us": (1e3 * rows[f"{phase}_ms"]).where(own) for phase in DRAFTER_PHASES}
    cost = sum(phases.values(), start=pd.Series(0.0, index=rows.index))
    blank = {f"{phase}_ms": rows[f"{phase}_ms"].mask(own) for phase in DRAFTER_PHASES}
    return rows.assign(
        fed=rows["tokens_fed"].where(own | rows["time_only_step_ms"].notna()),
        drafting_us=cost,
        **phases,
        **blank,
    )


def drop_repeated_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without repeated ones: the controls of several runs, and vanilla of runs that differ in
    methods only.

    Replayed vanilla, whose MAT is always 1, has one row. Where it was timed, one row has the means
    of the runs that are set alike; a vanilla with failed cases keeps its row.
    """
    control = (rows["method"] == CONTROL) & (rows["variant"] != "")
    plain = (rows["method"] == VANILLA) & replayed(rows)
    again = plain & rows.assign(plain=plain).duplicated([*_PLACE, "plain"])
    rows = rows.assign(variant=rows["variant"].mask(plain, ""))[~control & ~again]
    return unite_vanilla(rows)


def unite_vanilla(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with one of vanilla for all runs that are set alike, with the means of their
    figures.
    """
    alike = rows["variant"].map(without_run)
    timed = rows[(rows["method"] == VANILLA) & (alike != rows["variant"]) & (rows["errors"] == 0)]
    if timed.empty:
        return rows.sort_index()
    groups = timed.groupby([*_PLACE, "cases", alike.rename("alike")], sort=False)
    sizes = groups["method"].transform("size").astype(str)
    named = [
        ", ".join(filter(None, (alike[row], f"mean of {sizes[row]} runs"))) for row in timed.index
    ]
    kinds = {
        name: dtype
        for name, dtype in timed.select_dtypes("number").dtypes.items()
        if name != "cases"
    }
    figures = groups[list(kinds)].transform("mean")
    counted = {
        name: figures[name].round() if kind.kind == "i" else figures[name]
        for name, kind in kinds.items()
    }
    united = timed.assign(**counted).astype(kinds).assign(variant=named)
    kept = [
        rows[~rows.index.isin(timed.index[sizes != "1"])],
        united[(groups.cumcount() == 0) & (sizes != "1")],
    ]
    return pd.concat(kept).sort_index()
