"""A table of methods from a frame: its columns are declared, and cells, intervals, blanks and the best follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.records.record import CONTROL
from specbench.report.frames.reported import ROW
from specbench.report.frames.rows import mark_few
from specbench.report.text.label import Cell, format_interval, format_number, label
from specbench.report.text.table import Table, without_blanks
from specbench.stats import MIN_CASES

INTERVALS = f"Intervals: 95 % bootstrap over cases (other prompts of this kind); none under {MIN_CASES} cases."
Row = Mapping[str, Any]
Alone = Callable[[str, Row], bool]  # (figure, row of the best) -> whether it is told apart from all others


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a table, from a column of a frame. title: as printed.

    figure: its name there; its interval is in ``<figure>_low`` and ``<figure>_high`` where it has one. write, spread:
    figure and interval as printed. bold: the best is bold. few: the cases of a figure, in brackets where too few.
    """

    title: str
    figure: str
    write: Callable[[Any], str] = format_number
    bold: bool = False
    spread: Callable[[float, float], str] = format_interval
    few: str = ""

    def cell(self, row: Row) -> Cell:
        """The figure of a row of the frame."""
        low, high = (float(row.get(f"{self.figure}_{side}", math.nan)) for side in ("low", "high"))
        text = self.write(row.get(self.figure, math.nan))
        text = mark_few(text, {"cases": row.get(self.few, math.nan)}) if self.few else text
        return Cell(text, self.spread(low, high))


def method_table(
    name: str,
    text: tuple[str, str],
    frame: pd.DataFrame,
    columns: Sequence[Heading],
    first: Sequence[Heading] = (),
    alone: Alone | None = None,
) -> Table:
    """A row a method: what stands first, its names, then the columns that have a figure. text: where and meaning.

    alone: of the columns in which the best is bold; without it nothing is.
    """
    rows = frame.to_dict("records")
    names = {column.title: [column.cell(row) for row in rows] for column in first} | name_columns(frame)
    cells = [[column.cell(row) for row in rows] for column in columns]
    best = {
        (row, len(names) + place)
        for place, column in enumerate(columns)
        if column.bold and alone is not None
        for row in _find_best(rows, column.figure, [cell.text for cell in cells[place]], alone)
    }
    header = (*names, *(column.title for column in columns))
    stacked = tuple(zip(*names.values(), *cells, strict=True))
    return without_blanks(Table(name, *text, header, stacked, frozenset(best), len(names)))


def name_columns(rows: pd.DataFrame) -> dict[str, list[Cell]]:
    """Title -> cells, of rows with model, suite, method, variant; model and suite only where there are several."""
    varying = [column for column in ("model", "suite") if rows[column].nunique() > 1]
    columns = {column.capitalize(): [Cell(str(value)) for value in rows[column]] for column in varying}
    pairs = zip(rows["method"], rows["variant"], strict=True)
    return columns | {"Method": [Cell(label(method, variant)) for method, variant in pairs]}


def _find_best(rows: Sequence[Row], figure: str, printed: Sequence[str], alone: Alone) -> list[int]:
    """Places of the best of each model, suite and category; those that print alike are all best, the control never."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        if row["method"] != CONTROL and not math.isnan(row.get(figure, math.nan)):
            groups.setdefault((row["model"], row["suite"], row.get("category")), []).append(place)
    found: list[int] = []
    for places in groups.values():
        top = max(places, key=lambda place: float(rows[place][figure]))
        if len(places) > 1 and alone(figure, rows[top]):
            found += [place for place in places if printed[place] == printed[top]]
    return found


def widen(frame: pd.DataFrame, across: str, figures: Sequence[str]) -> pd.DataFrame:
    """A row a method, in the order of the frame, with a column 'VALUE FIGURE' for each value of the column across."""
    wide = frame.set_index([*ROW, across])[list(figures)].unstack(across)
    wide = wide.reindex(pd.MultiIndex.from_frame(frame[list(ROW)].drop_duplicates()))
    wide.columns = pd.Index([f"{value} {figure}" for figure, value in wide.columns])
    return wide.reset_index()
