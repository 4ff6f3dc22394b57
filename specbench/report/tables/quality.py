"""Quality beside speed: what a method's answers lose against vanilla's, and what it gains in time."""

from __future__ import annotations

import math

from specbench.records.record import OVERALL
from specbench.report.frames.detail import QUALITY
from specbench.report.frames.findings import Findings
from specbench.report.frames.reported import ROW
from specbench.report.tables.columns import INTERVALS, Heading, method_table
from specbench.report.text.label import BLANK, format_interval, format_share
from specbench.report.text.table import Table

_MEANING = (
    "Correct: answers with the reference's number, or code that passed a sandbox's tests (--passed), of the checked"
    " cases alone: those whose reference has a number, or that have a result. Less vanilla's: in points, on the same"
    " cases; a lossless method at temperature 0 loses nothing. Speedup and MAT: of all cases."
)


def quality_tables(findings: Findings, where: str = "") -> list[Table]:
    """A row a method; none where no answer was checked."""
    frame = findings.detail[QUALITY]
    if frame.empty:
        return []
    overall = findings.summary[findings.summary["category"] == OVERALL]
    beside = overall[[*ROW, "cases", "speedup", "speedup_low", "speedup_high", "mat"]]
    rows = frame.merge(beside, on=list(ROW), how="left", suffixes=("", "_all"))
    rows["checked"] = [f"{checked} of {cases}" for checked, cases in zip(rows["cases"], rows["cases_all"], strict=True)]
    columns = (
        Heading("Checked cases", "checked", str),
        Heading("Correct", "correct", format_share, spread=_points_interval),
        Heading("Less vanilla's", "difference", _points, spread=_points_interval),
        Heading("Speedup", "speedup"),
        Heading("MAT", "mat"),
    )
    return [method_table(QUALITY, (where, f"{_MEANING} {INTERVALS}"), rows, columns)]


def _points(share: float) -> str:
    return BLANK if math.isnan(share) else f"{100 * share:+.1f}"


def _points_interval(low: float, high: float) -> str:
    return format_interval(100 * low, 100 * high, 1)
