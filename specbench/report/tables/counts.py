"""Acceptance lengths and rates of the same steps, as engines and harnesses count them: a column a definition."""

from __future__ import annotations

import pandas as pd

from specbench.report.data.counting import DEFINITIONS
from specbench.report.text.label import Cell, format_number, format_share
from specbench.report.text.table import Table, method_table

_LENGTHS = "Acceptance length of the same steps, as each engine or harness counts it: "
_RATES = "Acceptance rate, likewise: "


def count_tables(frame: pd.DataFrame) -> tuple[Table, ...]:
    """Lengths, then rates; none without a method that drafts. frame: of ``accept_definitions``."""
    return (_table(frame, "length"), _table(frame, "rate")) if len(frame) else ()


def _table(frame: pd.DataFrame, figure: str) -> Table:
    keys = ["model", "suite", "method", "variant"]
    rows = frame[keys].drop_duplicates()
    wide = frame.pivot(index=keys, columns="counted_as", values=figure).loc[list(rows.itertuples(index=False))]
    write = format_share if figure == "rate" else lambda value: format_number(value, 3)
    columns = {name: [Cell(write(value)) for value in wide[name]] for name in DEFINITIONS}
    said = {
        name: each.rate_is if figure == "rate" else each.length_is
        for name, each in DEFINITIONS.items()
        if figure == "length" or each.rate
    }
    meaning = (_RATES if figure == "rate" else _LENGTHS) + "; ".join(f"{name}: {text}" for name, text in said.items())
    return method_table("counts", ("", f"{meaning}."), rows, columns)
