"""The leaderboard of a page: every method's figures, overall and by category, to be sorted and filtered in place.

Without a script it is the plain table of the overall figures; lossy methods have a table of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd

from specbench.record import CONTROL, OVERALL, VANILLA
from specbench.report.data.facts import Facts
from specbench.report.data.pairs import Contest, is_alone
from specbench.report.data.rows import category_order, drop_repeated_rows, mark_few, with_drafting
from specbench.report.page.elements import cell_html, escape, tag
from specbench.report.tables.tables import (
    INTERVALS,
    OVERALL_COLUMNS,
    Columns,
    Row,
    best_of,
    interval_of,
    meaning,
)
from specbench.report.text.label import Cell, label

_MARKS = {VANILLA: "reference", CONTROL: "control"}


def leaderboard(summary: pd.DataFrame, facts: Sequence[Facts], contests: Sequence[Contest]) -> str:
    """Filters, the table of lossless methods, then that of lossy ones where there are any."""
    lossy = frozenset(name for fact in facts for name in fact.lossy)
    rows = with_drafting(drop_repeated_rows(summary))
    overall = rows[rows["category"] == OVERALL]
    columns = tuple(entry for entry in OVERALL_COLUMNS if overall.empty or overall[entry[1]].notna().any())
    parts = [(rows[~rows["method"].isin(lossy)], "")]
    if rows["method"].isin(lossy).any():
        parts.append((rows[rows["method"].isin(lossy)], "Lossy methods: their output may differ from vanilla's. "))
    tables = "".join(
        _table(part, columns, f"{remark}{meaning(part)} {INTERVALS}", bool(remark), contests) for part, remark in parts
    )
    return _filters(rows) + tables


def _filters(rows: pd.DataFrame) -> str:
    """Hidden until the script runs that they need."""
    categories = [OVERALL, *category_order(rows.loc[rows["category"] != OVERALL, "category"])]
    places = list(dict.fromkeys(_where(row) for row in rows.to_dict("records")))
    selects = _select("category", "Category", categories) if len(categories) > 1 else ""
    if len(places) > 1:
        selects += _select("where", "Model and suite", ["", *places])
    hint = '<span class="soft" role="status" id="board-status"></span>'
    return f'<div class="controls" id="board-filters" hidden>{selects}{hint}</div>\n'


def _select(name: str, title: str, values: Sequence[str]) -> str:
    options = "".join(f'<option value="{escape(value)}">{escape(value or "all")}</option>' for value in values)
    return f'<label>{title} <select data-filter="{name}">{options}</select></label>'


def _where(row: dict[str, object]) -> str:
    return f"{row['model']} on {row['suite']}"


def _table(rows: pd.DataFrame, columns: Columns, text: str, lossy: bool, contests: Sequence[Contest]) -> str:
    names = [column for column in ("model", "suite") if rows[column].nunique() > 1]
    header = [*(name.capitalize() for name in names), "Method", *(entry[0] for entry in columns)]
    head = "".join(tag("th", "name" if place <= len(names) else "", escape(name)) for place, name in enumerate(header))
    groups: dict[str, list[Row]] = {}
    for row in rows.to_dict("records"):
        groups.setdefault(row["category"], []).append(row)
    body = "".join(_rows(group, columns, names, lossy, contests) for group in groups.values())
    return (
        f'<p class="soft">{escape(text)}</p>\n<div class="scroll"><table class="sortable board">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _rows(rows: Sequence[Row], columns: Columns, names: Sequence[str], lossy: bool, contests: Sequence[Contest]) -> str:
    """The rows of one category; the best figures among them are bold."""
    best: set[tuple[int, str]] = set()
    values = {column: [float(row[column]) for row in rows] for _, column, _, _ in columns}
    printed = {column: [write(value) for value in values[column]] for _, column, write, _ in columns}
    for column in (column for _, column, _, bold in columns if bold):
        alone = partial(is_alone, contests, rows[0]["category"], column)
        found = best_of(rows, values[column], printed[column], alone)
        best |= {(place, column) for place in found}
    lines: list[str] = []
    for place, row in enumerate(rows):
        mark = "lossy" if lossy else _MARKS.get(row["method"], "")
        chip = f' <span class="chip">{mark}</span>' if mark else ""
        cells = [tag("td", "name", escape(str(row[name]))) for name in names]
        cells.append(tag("td", "name", cell_html(Cell(label(row["method"], row["variant"])), False) + chip))
        for _, column, _, _ in columns:
            value = values[column][place]
            key = "" if math.isnan(value) else f' data-v="{value:.6g}"'
            few = f"{column}_low" in row and row["category"] != OVERALL
            shown = mark_few(printed[column][place], row) if few else printed[column][place]
            text = cell_html(Cell(shown, interval_of(row, column)), (place, column) in best)
            cells.append(f"<td{key}>{text}</td>")
        hidden = "" if row["category"] == OVERALL else " hidden"
        where = f'data-category="{escape(row["category"])}" data-where="{escape(_where(row))}"'
        lines.append(f"<tr {where}{hidden}>{''.join(cells)}</tr>\n")
    return "".join(lines)
