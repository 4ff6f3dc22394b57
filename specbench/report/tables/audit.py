"""What a drafter is worth, as tables: agreement, cost, and what it would take to win; and agreement by category."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from specbench.record import OVERALL
from specbench.report.data.detail import AUDIT
from specbench.report.data.findings import Findings
from specbench.report.data.rows import KEYS
from specbench.report.tables.tables import INTERVALS, interval_of
from specbench.report.text.label import Cell, format_milliseconds, format_number, format_share
from specbench.report.text.table import Table, method_table, name_columns

_MEANING = (
    "First accepted: of the steps with a draft, those that accepted its first token or one of its first level."
    " In vocabulary: emitted tokens that the drafter can draft at all. Overlap: 1 less the total variation distance of"
    " the drafter's and the target's distribution behind the root, of cases whose drafts were kept."
    " Drafted token: the drafter's time over its nodes. To win: the MAT at this time a step, or the drafter's time a"
    " step at this MAT, with which the method is as fast as vanilla; below 0 the forward alone is too slow. As run and"
    " oracle: decode speedups by one price of forwards, a latency profile or the run's own mean steps; in each step"
    " the oracle drafts what was accepted, or nothing: no policy of draft lengths can do better on these drafts."
)
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "mat": ("MAT", format_number),
    "tokens_fed": ("Tokens fed", format_number),
    "draft_ms": ("Draft \N{MICRO SIGN}s", lambda value: format_number(1e3 * value, 1)),
    "speedup": ("Speedup", format_number),
    "predicted_speedup": ("Predicted (modelled)", format_number),
    "first_accepted": ("First accepted", format_share),
    "acceptance_rate": ("Acceptance rate", format_share),
    "in_vocabulary": ("In vocabulary", format_share),
    "overlap": ("Overlap", format_number),
    "drafted_us": ("Drafted token \N{MICRO SIGN}s", lambda value: format_number(value, 1)),
    "break_even_mat": ("MAT to win", format_number),
    "break_even_draft_ms": ("Draft ms to win", format_milliseconds),
    "as_run": ("As run", format_number),
    "oracle": ("Oracle", format_number),
}
_BY_CATEGORY = {
    "first_accepted": "First accepted, by category.",
    "in_vocabulary": "Emitted tokens in the drafter's vocabulary, by category.",
}


def audit_tables(findings: Findings, where: str = "") -> list[Table]:
    """All cases together, then by category what may differ there; none without a method that drafts."""
    frame = findings.detail[AUDIT]
    overall = frame[frame["category"] == OVERALL]
    if overall.empty:
        return []
    shown = [column for column in findings.summary if column not in frame or column in KEYS]
    rows = overall.merge(findings.summary[shown], on=list(KEYS), how="left")
    columns = {
        title: [Cell(write(float(row[name])), interval_of(row, name)) for row in rows.to_dict("records")]
        for name, (title, write) in _COLUMNS.items()
    }
    whole = method_table(AUDIT, (where, f"{_MEANING} {INTERVALS}"), rows, columns)
    shown = [name for name in _BY_CATEGORY if frame[name].notna().any()]
    return [whole, *(_by_category(frame, name) for name in shown)]


def _by_category(frame: pd.DataFrame, figure: str) -> Table:
    keys = ["model", "suite", "method", "variant"]
    frame = frame[frame.groupby(keys)[figure].transform("count") > 0]
    rows = frame[keys].drop_duplicates()
    names, categories = name_columns(rows), list(dict.fromkeys(frame["category"]))
    known = {(*(row[key] for key in keys), row["category"]): float(row[figure]) for row in frame.to_dict("records")}
    columns = [
        [Cell(format_share(known.get((*row, category), math.nan))) for row in rows.itertuples(index=False, name=None)]
        for category in categories
    ]
    cells = tuple(zip(*names.values(), *columns, strict=True))
    return Table(f"audit_{figure}", "", _BY_CATEGORY[figure], (*names, *categories), cells, frozenset(), len(names))
