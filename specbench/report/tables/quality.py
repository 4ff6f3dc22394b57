"""Quality beside speed: what a method's answers lose against vanilla's, and what it gains in time."""

from __future__ import annotations

from pathlib import Path

from specbench.record import OVERALL
from specbench.report.data.detail import QUALITY
from specbench.report.data.findings import Findings
from specbench.report.data.reported import ROW
from specbench.report.tables.tables import INTERVALS, interval_of
from specbench.report.text.label import BLANK, Cell, format_interval, format_number, format_share
from specbench.report.text.table import Table, format_tables, name_columns, without_blanks, write_texts

_MEANING = (
    "Correct: answers with the reference's number, of the cases whose reference has one. Less vanilla's: in points, on"
    " the same cases; a lossless method at temperature 0 loses nothing. Speedup and MAT: of all cases."
)


def quality_table(findings: Findings, where: str = "") -> Table | None:
    """A row a method; None where no answer was checked."""
    frame = findings.detail[QUALITY]
    if frame.empty:
        return None
    overall = findings.summary[findings.summary["category"] == OVERALL]
    beside = overall[[*ROW, "speedup", "speedup_low", "speedup_high", "mat"]]
    rows = frame.merge(beside, on=list(ROW), how="left").to_dict("records")
    figures = [
        (
            Cell(str(row["cases"])),
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
    names = name_columns(frame)
    header = (*names, "Cases", "Correct", "Less vanilla's", "Speedup", "MAT")
    cells = tuple((*row, *own) for *row, own in zip(*names.values(), figures, strict=True))
    return without_blanks(Table(QUALITY, where, f"{_MEANING} {INTERVALS}", header, cells, frozenset(), len(names)))


def _points(share: float) -> str:
    return BLANK if share != share else f"{100 * share:+.1f}"


def write_quality(findings: Findings, output: Path, where: str) -> list[Path]:
    """tables/quality.md and quality.tex. Returns the files."""
    table = quality_table(findings, where)
    texts = {f"{QUALITY}.{kind}": text for kind, text in format_tables([table]).items()} if table else {}
    return write_texts(output / "tables", texts) if texts else []
