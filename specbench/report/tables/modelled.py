"""What a latency profile predicts of every method, as tables: speedup beside the measured one, and under load."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specbench.record import OVERALL
from specbench.report.data.findings import Findings
from specbench.report.data.load import FEW, LABELLED, MOST, Load
from specbench.report.data.reported import ROW
from specbench.report.text.label import Cell, format_interval, format_number
from specbench.report.text.table import Table, method_table

_MEANING = (
    "Modelled, decode steps only, with drafting time, the median a step. Measured: without prefills, as a prediction"
    " is. Efficiency: measured over what the forwards alone would give; both only where the profile is of the run's own"
    " machine."
)


def prediction_table(findings: Findings) -> Table | None:
    """A row a method that has a prediction; None without any."""
    rows = findings.summary
    rows = rows[(rows["category"] == OVERALL) & rows["predicted_speedup"].notna()]
    if rows.empty:
        return None
    figures = zip(*map(_cells, rows.to_dict("records")), strict=True)
    columns = dict(zip(("MAT", "Tokens fed", "Predicted", "Measured", "Efficiency"), figures, strict=True))
    return method_table("predicted", (f"{findings.profiles}.", _MEANING), rows, columns)


def _cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    spread = format_interval(row["predicted_speedup_low"], row["predicted_speedup_high"])
    measured = row["decode_speedup"] if pd.notna(row["efficiency"]) else float("nan")
    return (
        *(Cell(format_number(row[name])) for name in ("mat", "tokens_fed")),
        Cell(format_number(row["predicted_speedup"]), spread),
        *(Cell(format_number(value)) for value in (measured, row["efficiency"])),
    )


def crossover_table(found: Load) -> Table:
    """Methods down, numbers of requests across; the last column has the most at which it pays."""
    counts = sorted(found.speedups["concurrency"].unique())
    rows = []
    for entry in found.pays.itertuples(index=False):
        own = found.speedups
        for column in ROW:
            own = own[own[column] == getattr(entry, column)]
        cells = own.set_index("concurrency")
        words = [_at_load(cells.loc[count]) for count in counts]
        rows.append(list(map(Cell, (f"{entry.mat:.2f}", *words, _spell(entry.pays_to)))))
    far = (found.speedups["outside"] > FEW).any()
    star = " *: more than one step in 20 beyond what the profile measured." if far else ""
    meaning = (
        f"{LABELLED}: speedup over vanilla by requests that share a forward, without drafting time; in brackets with"
        f" it, each request's median a step, one request after the other.{star}"
    )
    header = ("MAT", *(f"{count} at once" for count in counts), "Pays up to")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return method_table("crossover", (f"{found.where}.", meaning), found.pays, columns)


def _at_load(row: pd.Series) -> str:
    star = "*" if row["outside"] > FEW else ""
    return f"{row['modelled_speedup']:.2f}{star} ({row['with_drafting']:.2f})"


def _spell(pays_to: int) -> str:
    if pays_to == 0:
        return "never"
    return f"{MOST} or more" if pays_to >= MOST else str(pays_to)
