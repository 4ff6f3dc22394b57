"""A printed table, and how declared columns make it from a frame; ``writers.WRITERS`` has its
forms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from specbench.records.record import CONTROL
from specbench.report.label import BLANK, Cell, format_interval, format_number, label
from specbench.stats import MIN_CASES

ROW = ("model", "suite", "method", "variant")  # the columns that name a row of a method
KEYS = ("model", "suite", "category", "method", "variant")
FEW = f"In brackets: fewer than {MIN_CASES} cases, too few to say how far chance moves the figure."
INTERVALS = (
    f"Intervals: 95 % bootstrap over cases (other prompts of this kind); none under {MIN_CASES}"
    " cases."
)
# table -> its figures
MEANINGS = yaml.safe_load(Path(__file__).with_name("meanings.yaml").read_text(encoding="utf-8"))
Row = Mapping[str, Any]
# (figure, row of the best) -> whether it differs from all others
Alone = Callable[[str, Row], bool]


@dataclass(frozen=True, slots=True)
class Table:
    """Printed cells.

    where, meaning: the caption's two halves, what was run and what the figures are. rows: one tuple
    of cells a row, the first ``labels`` of them names (left-aligned). best: (row, column) printed
    bold. spread: Markdown and LaTeX print intervals too (a page always does). shaded: a page tints
    figures above 1 in one colour and those below 1 in another, by their logarithm.
    """

    name: str
    where: str
    meaning: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    labels: int = 1
    spread: bool = True
    shaded: bool = False

    @property
    def caption(self) -> str:
        """Both halves: a table may be pasted into another document."""
        return f"{self.where} {self.meaning}".strip()


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a table, from a column of a frame. title: as printed.

    figure: its name there; its interval is in ``<figure>_low`` and ``<figure>_high`` if it has one.
    write, spread: figure and interval as printed. bold: the best is bold. few: the cases of a
    figure, in brackets where too few.
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


def mark_few(text: str, row: Mapping[str, Any]) -> str:
    """A printed figure of a row of the summary, in brackets where it has too few cases for an
    interval.
    """
    return f"({text})" if row.get("cases", MIN_CASES) < MIN_CASES and text != BLANK else text


def method_table(
    name: str,
    text: tuple[str, str],
    frame: pd.DataFrame,
    columns: Sequence[Heading],
    first: Sequence[Heading] = (),
    alone: Alone | None = None,
) -> Table:
    """A row a method: the ``first`` columns, its names, then the columns that have a figure. text:
    where and meaning.

    Model and suite are named only if there are several. alone: of the columns in which the best is
    bold; without it nothing is.
    """
    rows = frame.to_dict("records")
    names = {column.title: [column.cell(row) for row in rows] for column in first}
    for column in ("model", "suite"):
        if frame[column].nunique() > 1:
            names[column.capitalize()] = [Cell(str(value)) for value in frame[column]]
    names["Method"] = [Cell(label(row["method"], row["variant"])) for row in rows]
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


def _find_best(rows: Sequence[Row], figure: str, printed: Sequence[str], alone: Alone) -> list[int]:
    """Places of the best of each model, suite and category; those that print alike are all best,
    the control never.
    """
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
    """A row a method, in the order of the frame, with a column 'VALUE FIGURE' for each value of the
    column across.
    """
    wide = frame.set_index([*ROW, across])[list(figures)].unstack(across)
    wide = wide.reindex(pd.MultiIndex.from_frame(frame[list(ROW)].drop_duplicates()))
    wide.columns = pd.Index([f"{value} {figure}" for figure, value in wide.columns])
    return wide.reset_index()


def without_blanks(table: Table) -> Table:
    """The table without the columns of figures that are blank in every row."""
    kept = [
        column
        for column in range(len(table.header))
        if column < table.labels
        or not table.rows
        or any(row[column].text != BLANK for row in table.rows)
    ]
    meaning = table.meaning
    for column in {*range(len(table.header))}.difference(kept):  # is not explained either
        meaning = re.sub(
            rf"(^|(?<=\. )){re.escape(table.header[column])}: [^:]*?\.(\s+|$)", "", meaning
        )
    return replace(
        table,
        meaning=meaning.strip(),
        header=tuple(table.header[column] for column in kept),
        rows=tuple(tuple(row[column] for column in kept) for row in table.rows),
        best=frozenset((row, kept.index(column)) for row, column in table.best if column in kept),
    )
