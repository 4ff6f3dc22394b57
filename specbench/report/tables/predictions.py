"""What a latency profile makes of every method, as a table: predicted beside measured, and the efficiency."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specbench.record import OVERALL
from specbench.report.data.facts import TIME_ONLY
from specbench.report.data.findings import Findings
from specbench.report.text.label import Cell, interval, number
from specbench.report.text.table import Table, name_columns, without_blanks

_MEANING = (
    "Modelled, decode steps only. Measured: without prefills, as a prediction is. Efficiency: measured over what the"
    " forwards alone would give; both only where the profile is of the run's own machine."
)


def prediction_table(findings: Findings) -> Table | None:
    """A row a method that has a prediction; None without any."""
    rows = findings.summary
    rows = rows[(rows["category"] == OVERALL) & rows["predicted_speedup"].notna()]
    if rows.empty:
        return None
    names = name_columns(rows)
    header = (*names, "MAT", "Tokens fed", "Predicted", "Measured", "Efficiency")
    figures = zip(*map(_cells, rows.to_dict("records")), strict=True)
    cells = tuple(zip(*names.values(), *figures, strict=True))
    where = f"{profiles_of(findings)}."
    return without_blanks(Table("predicted", where, _MEANING, header, cells, frozenset(), len(names)))


def profiles_of(findings: Findings) -> str:
    """What predictions were made with, and of which kind of runs."""
    priced = [facts for facts in findings.facts if facts.profile]
    some = TIME_ONLY if all(facts.time_only for facts in priced) else f"some runs {TIME_ONLY}"
    told = [some] if any(facts.time_only for facts in priced) else []
    return "; ".join([*dict.fromkeys(facts.profile for facts in priced), *told])


def _cells(row: dict[str, Any]) -> tuple[Cell, ...]:
    spread = interval(row["predicted_speedup_low"], row["predicted_speedup_high"])
    measured = row["decode_speedup"] if pd.notna(row["efficiency"]) else float("nan")
    return (
        *(Cell(number(row[name])) for name in ("mat", "tokens_fed")),
        Cell(number(row["predicted_speedup"]), spread),
        *(Cell(number(value)) for value in (measured, row["efficiency"])),
    )
