"""Speedup and MAT by the tokens in the context, a pair of columns a bin."""

from __future__ import annotations

import pandas as pd

from specbench.record import CONTROL, VANILLA
from specbench.report.data.reported import ROW
from specbench.report.text.label import Cell, format_interval, format_number
from specbench.report.text.table import Table, name_columns, without_blanks

_MEANING = (
    "By the tokens in the context before a step, in bins from the number on. Speedup: vanilla's time per token of the"
    " decode steps in the bin over the method's, over the cases in which both have some, and its 95 % interval over"
    " cases; MAT: of the method's steps there."
)


def lengths_tables(frame: pd.DataFrame, where: str = "") -> list[Table]:
    """A row a method; none without speedups, or where all contexts lie in one bin. frame: the detail ``by_length``."""
    frame = frame[(frame["axis"] == "context") & ~frame["method"].isin([VANILLA, CONTROL])]
    if frame["from"].nunique() < 2 or frame["speedup"].isna().all():
        return []
    rows = frame[list(ROW)].drop_duplicates()
    names, header, columns = name_columns(rows), list[str](), list[list[Cell]]()
    for edge in sorted(frame["from"].unique()):
        own = rows.merge(frame[frame["from"] == edge], "left", list(ROW))
        bounds = zip(own["speedup_low"].astype(float), own["speedup_high"].astype(float), strict=True)
        speedups = zip(own["speedup"].astype(float), bounds, strict=True)
        columns.append([Cell(format_number(value), format_interval(*pair)) for value, pair in speedups])
        columns.append([Cell(format_number(float(value))) for value in own["mat"]])
        header += [f"Speedup {edge:,}", f"MAT {edge:,}"]
    cells = tuple(zip(*names.values(), *columns, strict=True))
    return [without_blanks(Table("by_length", where, _MEANING, (*names, *header), cells, frozenset(), len(names)))]
