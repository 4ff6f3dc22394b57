"""The leaderboard of a page: every method's figures, overall and by category, to be sorted and filtered in place.

Without a script it is the plain table of the overall figures; lossy methods have a table of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.frames.facts import Facts
from specbench.report.frames.pairs import Contest, is_alone
from specbench.report.frames.summary import OVERALL_COLUMNS, category_order, drop_repeated_rows, with_drafting
from specbench.report.page.elements import cell_html, escape, sheet_html, tag
from specbench.report.table import Heading, Row, Table, method_table
from specbench.report.tables.summary import meaning, split_lossy

_MARKS = {VANILLA: "reference", CONTROL: "control"}


def leaderboard(summary: pd.DataFrame, facts: Sequence[Facts], contests: Sequence[Contest]) -> str:
    """Filters, the table of lossless methods, then that of lossy ones where there are any."""
    rows = with_drafting(drop_repeated_rows(summary))
    overall = rows[rows["category"] == OVERALL]
    rows = rows.assign(counted=rows["cases"].where(rows["category"] != OVERALL))  # what may be in brackets
    columns = [
        replace(column, few="counted" if f"{column.figure}_low" in rows else "")
        for column in OVERALL_COLUMNS
        if overall.empty or overall[column.figure].notna().any()
    ]
    boards = (_board(part, columns, remark, contests) for part, remark in split_lossy(rows, facts))
    return _filters(rows) + "".join(boards)


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


def _where(row: Row) -> str:
    return f"{row['model']} on {row['suite']}"


def _board(rows: pd.DataFrame, columns: Sequence[Heading], remark: str, contests: Sequence[Contest]) -> str:
    """The rows of all categories; the best figures of each are bold."""
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys(rows["category"]))}
    rows = rows.sort_values("category", key=lambda names: names.map(ranks), kind="stable")

    def alone(figure: str, best: Row) -> bool:
        return is_alone(contests, best["category"], figure, best)

    table = method_table("board", ("", meaning(rows, remark)), rows, columns, alone=alone)
    figures = {column.title: column.figure for column in columns}
    lines = (_line(table, place, row, figures, bool(remark)) for place, row in enumerate(rows.to_dict("records")))
    return sheet_html(table.meaning, table.header, table.labels, "".join(lines), "sortable board")


def _line(table: Table, place: int, row: Row, figures: Mapping[str, str], lossy: bool) -> str:
    """A row of the board. figures: title -> column of the summary, whose value a figure is sorted by."""
    mark = "lossy" if lossy else _MARKS.get(row["method"], "")
    chip = f' <span class="chip">{mark}</span>' if mark else ""
    cells = [tag("td", "name", cell_html(cell, False)) for cell in table.rows[place][: table.labels - 1]]
    cells.append(tag("td", "name", cell_html(table.rows[place][table.labels - 1], False) + chip))
    for column in range(table.labels, len(table.header)):
        value = float(row[figures[table.header[column]]])
        key = "" if math.isnan(value) else f' data-v="{value:.6g}"'
        cells.append(f"<td{key}>{cell_html(table.rows[place][column], (place, column) in table.best)}</td>")
    hidden = "" if row["category"] == OVERALL else " hidden"
    where = f'data-category="{escape(row["category"])}" data-where="{escape(_where(row))}"'
    return f"<tr {where}{hidden}>{''.join(cells)}</tr>\n"
