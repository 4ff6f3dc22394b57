"""A printed table: declared columns make it from a frame, and ``WRITERS`` turn it into Markdown and LaTeX.

The other two forms are ``page.elements.table_html`` and ``tables.terminal.print_table``.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.names import printable
from specbench.records.record import CONTROL
from specbench.records.store import RunError, remove_partials, write_atomically
from specbench.report.label import BLANK, Cell, display_name, format_interval, format_number, label
from specbench.stats import MIN_CASES

ROW = ("model", "suite", "method", "variant")  # the columns that name a row of a method
KEYS = ("model", "suite", "category", "method", "variant")
FEW = f"In brackets: fewer than {MIN_CASES} cases, too few to say how far chance moves the figure."
INTERVALS = f"Intervals: 95 % bootstrap over cases (other prompts of this kind); none under {MIN_CASES} cases."
Row = Mapping[str, Any]
Alone = Callable[[str, Row], bool]  # (figure, row of the best) -> whether it differs from all others
_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", BLANK: "--", "\N{MICRO SIGN}": r"\ensuremath{\mu}"},
    **{"\N{MULTIPLICATION SIGN}": r"\ensuremath{\times}", "\N{PLUS-MINUS SIGN}": r"\ensuremath{\pm}"},
    **{"\N{NO-BREAK SPACE}": "~"},
}
_HEADER_CHARS = 10
_SMALL_COLUMNS = 9
_SMALL, _SMALLER = r"\small\setlength{\tabcolsep}{3.5pt}", r"\footnotesize\setlength{\tabcolsep}{2.5pt}"
# No wider than the line that it is pasted to; without graphicx the width is unchanged.
_FITTED = r"\ifdefined\resizebox\ifdim\wd0>\linewidth\sbox0{\resizebox{\linewidth}{!}{\usebox0}}\fi\fi\usebox0"
_PACKAGES = "% needs \\usepackage{booktabs,graphicx}\n"
_MUST_SAY = re.compile("(Lossy|Modelled|Time only)[^.:]*")
_FORMULA = re.compile(r"\s*(?=[-+=@\t\r])(?![-+]?[0-9.]+(e[-+]?[0-9]+)?$)")
_MARKDOWN = re.compile(r"([\\|*`\[\]])")


@dataclass(frozen=True, slots=True)
class Table:
    """Printed cells.

    where, meaning: the caption's two halves, what was run and what the figures are. rows: one tuple of cells a row, the
    first ``labels`` of them names (left-aligned). best: (row, column) printed bold. spread: Markdown and LaTeX print
    intervals too (a page always does).
    """

    name: str
    where: str
    meaning: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    labels: int = 1
    spread: bool = True

    @property
    def caption(self) -> str:
        """Both halves: a table may be pasted into another document."""
        return f"{self.where} {self.meaning}".strip()


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a table, from a column of a frame. title: as printed.

    figure: its name there; its interval is in ``<figure>_low`` and ``<figure>_high`` if it has one. write, spread:
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


def mark_few(text: str, row: Mapping[str, Any]) -> str:
    """A printed figure of a row of the summary, in brackets where it has too few cases for an interval."""
    return f"({text})" if row.get("cases", MIN_CASES) < MIN_CASES and text != BLANK else text


def method_table(
    name: str,
    text: tuple[str, str],
    frame: pd.DataFrame,
    columns: Sequence[Heading],
    first: Sequence[Heading] = (),
    alone: Alone | None = None,
) -> Table:
    """A row a method: the ``first`` columns, its names, then the columns that have a figure. text: where and meaning.

    Model and suite are named only if there are several. alone: of the columns in which the best is bold; without it
    nothing is.
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


def make_folder(folder: Path) -> None:
    """Make a folder of a report. Raises RunError if it is a link: a report writes into its own folder only."""
    if folder.is_symlink():
        raise RunError(f"{folder}: is a link; a report writes into its own folder only: remove it, or give --output")
    folder.mkdir(parents=True, exist_ok=True)
    remove_partials(folder)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text under its file name. Returns the files."""
    make_folder(folder)
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]


def write_tables(output: Path, name: str, tables: Sequence[Table], **csv: pd.DataFrame) -> list[Path]:
    """Write tables/<name> in the form of each writer, and frames as csv; nothing without a table. Returns the files."""
    if not tables:
        return []
    texts = {f"{name}.{kind}": write(tables) for kind, write in WRITERS.items()}
    return write_texts(output / "tables", texts | {f"{file}.csv": to_csv(frame) for file, frame in csv.items()})


def to_csv(frame: pd.DataFrame) -> str:
    """Full figures. A name that a spreadsheet would take for a formula gets an apostrophe in front of it."""

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return f"'{printable(value)}" if _FORMULA.match(value) else printable(value)

    texts = frame.select_dtypes(exclude="number").columns
    shown = frame.assign(**{str(name): frame[name].map(cell) for name in texts})
    return str(shown.rename(columns=cell).to_csv(index=False))


def to_markdown(table: Table) -> str:
    """A GitHub table under its caption."""

    def escape(text: str) -> str:
        return _MARKDOWN.sub(r"\\\1", html.escape(_one_line(text), quote=False))

    align = [":--" if column < table.labels else "--:" for column in range(len(table.header))]
    lines = [[escape(name) for name in table.header], align]
    for index, row in enumerate(table.rows):
        lines.append([])
        for column, cell in enumerate(row):
            text = f"**{escape(cell.text)}**" if (index, column) in table.best else escape(cell.text)
            lines[-1].append(f"{text} \\[{cell.interval}\\]" if table.spread and cell.interval else text)
    return "\n".join([escape(table.caption), "", *(f"| {' | '.join(cells)} |" for cells in lines)]) + "\n"


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ")


def to_latex(table: Table) -> str:
    """A ``table`` environment; needs the packages booktabs and, to fit a line that is too short for it, graphicx.

    The caption has what was run, and what no reader may miss of the meaning. Below a method stands its variant, below a
    figure its interval, in small; the braces keep a bracket that opens a cell from being read as the optional argument
    of the row before it.
    """
    must = _MUST_SAY.match(table.meaning)
    caption = f"{table.where} {must[0]}." if must else table.where or table.meaning
    align = "l" * table.labels + "r" * (len(table.header) - table.labels)
    lines = [
        r"\begin{table}[t]",
        rf"\centering{_SMALL if len(table.header) <= _SMALL_COLUMNS else _SMALLER}",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', table.name.lower())}}}",
        rf"\sbox0{{\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _latex_row([_latex_title(name, side) for name, side in zip(table.header, align, strict=True)]),
        r"\midrule",
    ]
    for index, row in enumerate(table.rows):
        above, below = [], []
        for column, cell in enumerate(row):
            text, small = cell.text, f"[{cell.interval}]" if table.spread and cell.interval else ""
            if column < table.labels:  # 'pld [max_ngram=3]' -> 'PLD', '[max_ngram=3]'
                method, bracket, variant = cell.text.partition(" [")
                text, small = display_name(method), f"[{variant}" if bracket else ""
            text = escape_latex(text)
            above.append(rf"\textbf{{{text}}}" if (index, column) in table.best else text)
            below.append(rf"{{\scriptsize {escape_latex(small)}}}" if small else "")
        lines.append(_latex_row(above))
        if any(below):
            lines += [_latex_row(below), r"\addlinespace[2pt]"]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", _FITTED, r"\end{table}"]) + "\n"


def to_notes(tables: Sequence[Table]) -> str:
    """Returns the meanings of the figures in tables, each once: for a footnote or the text below a table."""
    notes = dict.fromkeys(escape_latex(table.meaning) for table in tables if table.meaning)
    return "{\\footnotesize\n" + "\n\n".join(notes) + "\n}\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_title(name: str, side: str) -> str:
    """A column's name on lines that hold its longest word. side: l or r."""
    filled = textwrap.fill(name, _HEADER_CHARS, break_long_words=False, break_on_hyphens=False)
    lines = [escape_latex(line) for line in filled.split("\n")]
    inside = r"\\".join(lines)
    return lines[0] if len(lines) == 1 else rf"\shortstack[{side}]{{{inside}}}"


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it verbatim in a paragraph."""
    return "".join(_LATEX.get(char, char) for char in _one_line(text))


WRITERS: Mapping[str, Callable[[Sequence[Table]], str]] = {  # ending of a file -> tables one below the other
    "md": lambda tables: "\n".join(map(to_markdown, tables)),
    "tex": lambda tables: _PACKAGES + "\n".join(map(to_latex, tables)),
    "notes.tex": to_notes,
}
