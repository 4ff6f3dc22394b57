"""A table ready to print, and its spelling in Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace

from specbench.report.label import BLANK, Cell

_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", BLANK: "--", "\N{MICRO SIGN}": r"\ensuremath{\mu}"},
}
_MARKDOWN = re.compile(r"([\\|*`\[\]])")


@dataclass(frozen=True, slots=True)
class Table:
    """Printed cells. where, meaning: the caption's two halves, what was run and what the figures are.

    rows: one tuple of cells a row, the first ``labels`` of them names (left-aligned). best: (row, column) printed bold.
    spread: Markdown and LaTeX print intervals too (a page always does).
    """

    name: str
    where: str
    meaning: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]]
    labels: int = 1
    spread: bool = True

    @property
    def caption(self) -> str:
        """A table that is pasted elsewhere has to say it all."""
        return f"{self.where} {self.meaning}".strip()


def without_blanks(table: Table) -> Table:
    """The table without the columns of figures that are blank in every row."""
    kept = [
        column
        for column in range(len(table.header))
        if column < table.labels or not table.rows or any(row[column].text != BLANK for row in table.rows)
    ]
    return replace(
        table,
        header=tuple(table.header[column] for column in kept),
        rows=tuple(tuple(row[column] for column in kept) for row in table.rows),
        best=frozenset((row, kept.index(column)) for row, column in table.best if column in kept),
    )


def to_markdown(table: Table) -> str:
    """A GitHub table under its caption."""
    align = [":--" if column < table.labels else "--:" for column in range(len(table.header))]
    lines = [_escape_markdown(table.caption), "", _markdown_row([_escape_markdown(name) for name in table.header])]
    lines.append(_markdown_row(align))
    for index, row in enumerate(table.rows):
        lines.append(_markdown_row([_markdown_cell(table, index, column, cell) for column, cell in enumerate(row)]))
    return "\n".join(lines) + "\n"


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(table: Table, row: int, column: int, cell: Cell) -> str:
    text = _escape_markdown(cell.text)
    text = f"**{text}**" if (row, column) in table.best else text
    return f"{text} \\[{cell.interval}\\]" if table.spread and cell.interval else text


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", html.escape(text, quote=False))


def to_latex(table: Table) -> str:
    """A ``table`` environment; needs ``\\usepackage{booktabs}``."""
    align = "l" * table.labels + "r" * (len(table.header) - table.labels)
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{escape_latex(table.caption)}}}",
        rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', table.name.lower())}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _latex_row([escape_latex(name) for name in table.header]),
        r"\midrule",
    ]
    for index, row in enumerate(table.rows):
        lines.append(_latex_row([_latex_cell(table, index, column, cell) for column, cell in enumerate(row)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(table: Table, row: int, column: int, cell: Cell) -> str:
    text = escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if (row, column) in table.best else text
    # The braces keep a bracket that opens a cell from being read as the optional argument of the \\ before it.
    return rf"{text} {{\scriptsize[{cell.interval}]}}" if table.spread and cell.interval else text


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it verbatim in a paragraph."""
    return "".join(_LATEX.get(char, char) for char in text)
