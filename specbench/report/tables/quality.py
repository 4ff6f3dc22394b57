"""Quality beside speed: what a method's answers lose against vanilla's, and what it gains in time."""

from __future__ import annotations

from specbench.record import OVERALL
from specbench.report.data.detail import QUALITY
from specbench.report.data.findings import Findings
from specbench.report.data.reported import ROW
from specbench.report.tables.tables import INTERVALS, interval_of
from specbench.report.text.label import BLANK, Cell, format_interval, format_number, format_share
from specbench.report.text.table import Table, method_table

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
    rows = frame.merge(beside, on=list(ROW), how="left", suffixes=("", "_all")).to_dict("records")
    figures = [
        (
            Cell(f"{row['cases']} of {row['cases_all']}"),
            Cell(format_share(row["correct"]), format_interval(100 * row["correct_low"], 100 * row["correct_high"], 1)),
            Cell(
                _points(row["difference"]),
                format_interval(100 * row["difference_low"], 100 * row["difference_high"], 1),
            ),
            Cell(format_number(row["speedup"]), interval_of(row, "speedup")),
            Cell(format_number(row["mat"])),
        )
        for row in rows
    ]
    header = ("Checked cases", "Correct", "Less vanilla's", "Speedup", "MAT")
    columns = dict(zip(header, zip(*figures, strict=True), strict=True))
    return [method_table(QUALITY, (where, f"{_MEANING} {INTERVALS}"), frame, columns)]


def _points(share: float) -> str:
    return BLANK if share != share else f"{100 * share:+.1f}"
