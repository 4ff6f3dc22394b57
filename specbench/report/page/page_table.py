"""A printed table as a page shows it: its meaning above, its intervals small under the figures, ready to be sorted."""

from __future__ import annotations

import html
import re

from specbench.report.text.label import Cell
from specbench.report.text.table import Table


def table_html(table: Table) -> str:
    """The page's head says what was run, so only what the figures mean stands above."""
    kinds = ["name" if column < table.labels else "" for column in range(len(table.header))]
    head = "".join(tag("th", kind, html.escape(name)) for kind, name in zip(kinds, table.header, strict=True))
    body = ""
    for index, row in enumerate(table.rows):
        cells = (
            tag("td", kind, cell_html(cell, (index, column) in table.best))
            for column, (kind, cell) in enumerate(zip(kinds, row, strict=True))
        )
        body += f"<tr>{''.join(cells)}</tr>\n"
    return (
        f'<p class="soft">{html.escape(table.meaning)}</p>\n<div class="scroll"><table class="sortable">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def tag(name: str, kind: str, inner: str) -> str:
    """An element; inner: HTML."""
    return f'<{name} class="{kind}">{inner}</{name}>' if kind else f"<{name}>{inner}</{name}>"


def cell_html(cell: Cell, best: bool) -> str:
    """A figure with its interval, bold where it is the best; a long name may break at its separators."""
    text = re.sub("," if "," in cell.text else "_", r"\g<0><wbr>", html.escape(cell.text))
    small = f"<small>[{html.escape(cell.interval)}]</small>" if cell.interval else ""
    return (f"<b>{text}</b>" if best else text) + small
