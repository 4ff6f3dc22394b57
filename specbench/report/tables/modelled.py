"""What a latency profile predicts of every method, as tables: speedup beside the measured one, and under load."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specbench.records.record import OVERALL
from specbench.report.frames.findings import Findings
from specbench.report.frames.load import FEW, LABELLED, MOST, Load
from specbench.report.frames.reported import ROW
from specbench.report.tables.columns import Heading, method_table, widen
from specbench.report.text.table import Table

_MEANING = (
    "Modelled, decode steps only, with drafting time, the median a step. Measured: without prefills, as a prediction"
    " is. Efficiency: measured over what the forwards alone would give; both only where the profile is of the run's own"
    " machine."
)
_COLUMNS = (
    Heading("MAT", "mat"),
    Heading("Tokens fed", "tokens_fed"),
    Heading("Predicted", "predicted_speedup"),
    Heading("Measured", "decode_speedup"),
    Heading("Efficiency", "efficiency"),
)


def prediction_table(findings: Findings) -> Table | None:
    """A row a method that has a prediction; None without any."""
    rows = findings.summary
    rows = rows[(rows["category"] == OVERALL) & rows["predicted_speedup"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(decode_speedup=rows["decode_speedup"].where(rows["efficiency"].notna()))
    rows = rows.drop(columns=["mat_low", "mat_high"])  # printed without an interval
    error = (rows["predicted_speedup"] / rows["decode_speedup"] - 1).abs().median()
    median = "" if pd.isna(error) else f" Median absolute error: {100 * error:.1f} %."
    return method_table("predicted", (f"{findings.profiles}.", _MEANING + median), rows, _COLUMNS)


def crossover_table(found: Load) -> Table:
    """Methods down, numbers of requests across; the last column has the most at which it pays."""
    speedups = found.speedups.assign(at_load=[_at_load(row) for row in found.speedups.to_dict("records")])
    counts = sorted(speedups["concurrency"].unique())
    far = (speedups["outside"] > FEW).any()
    star = " *: more than one step in 20 beyond what the profile measured." if far else ""
    meaning = (
        f"{LABELLED}: speedup over vanilla by requests that share a forward, without drafting time; in brackets with"
        f" it, each request's median a step, one request after the other.{star}"
    )
    columns = (
        Heading("MAT", "mat"),
        *(Heading(f"{count} at once", f"{count} at_load", str) for count in counts),
        Heading("Pays up to", "pays_to", _spell),
    )
    rows = found.pays.merge(widen(speedups, "concurrency", ["at_load"]), on=list(ROW))
    return method_table("crossover", (f"{found.where}.", meaning), rows, columns)


def _at_load(row: dict[str, Any]) -> str:
    star = "*" if row["outside"] > FEW else ""
    return f"{row['modelled_speedup']:.2f}{star} ({row['with_drafting']:.2f})"


def _spell(pays_to: int) -> str:
    if pays_to == 0:
        return "never"
    return f"{MOST} or more" if pays_to >= MOST else str(pays_to)
