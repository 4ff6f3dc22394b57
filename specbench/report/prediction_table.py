"""What a latency profile makes of every method, as a table: predicted beside measured, and the efficiency."""

from __future__ import annotations

import pandas as pd

from specbench.report.findings import Findings
from specbench.report.label import Cell, interval, label, number
from specbench.report.summary import OVERALL
from specbench.report.table import Table, without_blanks

_MEANING = (
    "Modelled, decode steps only. Measured: without prefills, as a prediction is. Efficiency: measured over what the"
    " forwards alone would give."
)


def prediction_table(findings: Findings) -> Table | None:
    """A row a method that has a prediction; None without any."""
    rows = findings.summary
    rows = rows[(rows["category"] == OVERALL) & rows["predicted_speedup"].notna()]
    if rows.empty:
        return None
    where = "; ".join(dict.fromkeys(facts.profile for facts in findings.facts if facts.profile))
    header = ("Method", "MAT", "Tokens fed", "Predicted", "Measured", "Efficiency")
    cells = tuple(_cells(row) for _, row in rows.iterrows())
    return without_blanks(Table("predicted", f"{where}.", _MEANING, header, cells, frozenset()))


def _cells(row: pd.Series) -> tuple[Cell, ...]:
    spread = interval(row["predicted_speedup_low"], row["predicted_speedup_high"])
    return (
        Cell(label(row["method"], row["variant"])),
        *(Cell(number(row[name])) for name in ("mat", "tokens_fed")),
        Cell(number(row["predicted_speedup"]), spread),
        *(Cell(number(row[name])) for name in ("decode_speedup", "efficiency")),
    )
