"""The forms of a printed table: ``WRITERS`` has Markdown, LaTeX and its notes, HTML for a page, and
a terminal's.

A new form is one more entry, and one in ``FILES`` if a report stores it as a file. A csv has the
unrounded figures of a frame, and is written by ``to_csv``.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Sheet
from rich.text import Text

from specbench.names import printable
from specbench.records.record import CONTROL
from specbench.records.store import RunError, remove_partials, write_atomically
from specbench.report.label import BLANK, break_lines, display_name, label, raise_first
from specbench.report.page.parts import part
from specbench.report.table import Table

_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        BLANK: "--",
        "\N{MICRO SIGN}": r"\ensuremath{\mu}",
    },
    **{
        "\N{MULTIPLICATION SIGN}": r"\ensuremath{\times}",
        "\N{PLUS-MINUS SIGN}": r"\ensuremath{\pm}",
    },
    **{"\N{NO-BREAK SPACE}": "~"},
}
_HEADER_CHARS = 10
_SMALL_COLUMNS = 9
_SMALL, _SMALLER = (
    r"\small\setlength{\tabcolsep}{3.5pt}",
    r"\footnotesize\setlength{\tabcolsep}{2.5pt}",
)
# No wider than the line that it is pasted to; without graphicx the width is unchanged.
_FITTED = (
    r"\ifdefined\resizebox\ifdim\wd0>\linewidth"
    r"\sbox0{\resizebox{\linewidth}{!}{\usebox0}}\fi\fi\usebox0"
)
_PACKAGES = "% needs \\usepackage{booktabs,graphicx}\n"
_MUST_SAY = re.compile("(Lossy|Modelled|Time only)[^.:]*")
_FORMULA = re.compile(r"\s*(?=[-+=@\t\r])(?![-+]?[0-9.]+(e[-+]?[0-9]+)?$)")
_TINTS = 4  # shades of a table's figures in each direction
_LABEL_WIDTHS = (36, 24, 18, 13)  # of labels that must be broken, the first that fits
_UNLIMITED_WIDTH = 1 << 16
BOUNDED = "95 %"  # in the title of a column: a terminal prints its intervals
_MARKDOWN = re.compile(r"([\\|*`\[\]])")


def make_folder(folder: Path) -> None:
    """Make a folder of a report. Raises RunError if it is a link: a report writes into its own
    folder only.
    """
    if folder.is_symlink():
        raise RunError(
            f"{folder}: is a link; a report writes into its own folder only: remove it, or give"
            " --output"
        )
    folder.mkdir(parents=True, exist_ok=True)
    remove_partials(folder)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text under its file name. Returns the files."""
    make_folder(folder)
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]


def write_tables(
    output: Path, name: str, tables: Sequence[Table], **csv: pd.DataFrame
) -> list[Path]:
    """Write tables/<name> in each form of ``FILES``, and frames as csv; nothing without a table.
    Returns the files.
    """
    if not tables:
        return []
    texts = {f"{name}.{kind}": WRITERS[kind](tables) for kind in FILES}
    return write_texts(
        output / "tables", texts | {f"{file}.csv": to_csv(frame) for file, frame in csv.items()}
    )


def to_csv(frame: pd.DataFrame) -> str:
    """Full figures. A name that a spreadsheet would take for a formula gets an apostrophe in front
    of it.
    """

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return f"'{printable(value)}" if _FORMULA.match(value) else printable(value)

    texts = frame.select_dtypes(exclude="number").columns
    shown = frame.assign(**{str(name): frame[name].map(cell) for name in texts})
    return str(shown.rename(columns=cell).to_csv(index=False))


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub tables, each under its caption."""
    return "\n".join(map(_markdown, tables))


def _markdown(table: Table) -> str:

    def escape(text: str) -> str:
        return _MARKDOWN.sub(r"\\\1", html.escape(_one_line(text), quote=False))

    align = [":--" if column < table.labels else "--:" for column in range(len(table.header))]
    lines = [[escape(name) for name in table.header], align]
    for index, row in enumerate(table.rows):
        lines.append([])
        for column, cell in enumerate(row):
            text = (
                f"**{escape(cell.text)}**" if (index, column) in table.best else escape(cell.text)
            )
            lines[-1].append(
                f"{text} \\[{cell.interval}\\]" if table.spread and cell.interval else text
            )
    return (
        "\n".join([escape(table.caption), "", *(f"| {' | '.join(cells)} |" for cells in lines)])
        + "\n"
    )


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ")


def to_latex(tables: Sequence[Table]) -> str:
    """``table`` environments; they need the packages booktabs and, to fit a line that is too short
    for them, graphicx.

    The caption has the table's name, what was run, and what no reader may miss of the meaning. The
    variant is below its method and the interval below its figure, in small. The braces keep a
    bracket that opens a cell from being read as the optional argument of the row before it.
    """
    return _PACKAGES + "\n".join(map(_latex, tables))


def _latex(table: Table) -> str:
    must = _MUST_SAY.match(table.meaning)
    title = table.name.partition(" ")[0].replace("_", " ").replace("mat ", "MAT ")
    where = f"{table.where} {must[0]}." if must else table.where or table.meaning
    align = "l" * table.labels + "r" * (len(table.header) - table.labels)
    lines = [
        r"\begin{table}[t]",
        rf"\centering{_SMALL if len(table.header) <= _SMALL_COLUMNS else _SMALLER}",
        rf"\caption{{{escape_latex(f'{raise_first(title)}: {where}')}}}",
        rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', table.name.lower())}}}",
        rf"\sbox0{{\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _latex_row(
            [_latex_title(name, side) for name, side in zip(table.header, align, strict=True)]
        ),
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
    """Returns the meanings of the figures in tables, each once: for a footnote or the text below a
    table.
    """
    notes = dict.fromkeys(escape_latex(table.meaning) for table in tables if table.meaning)
    return "{\\footnotesize\n" + "\n\n".join(notes) + "\n}\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_title(name: str, side: str) -> str:
    """A column's name on lines as wide as its longest word. side: l or r."""
    filled = textwrap.fill(name, _HEADER_CHARS, break_long_words=False, break_on_hyphens=False)
    lines = [escape_latex(line) for line in filled.split("\n")]
    inside = r"\\".join(lines)
    return lines[0] if len(lines) == 1 else rf"\shortstack[{side}]{{{inside}}}"


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it verbatim in a paragraph."""
    return "".join(_LATEX.get(char, char) for char in _one_line(text))


def to_html(tables: Sequence[Table]) -> Markup:
    """Tables of a page, each under the meaning of its figures; what was run is in the page's
    head.
    """
    return Markup("").join(
        part("table", table, _tints(table) if table.shaded else {}) for table in tables
    )


def _tints(table: Table) -> dict[str, str]:
    """Printed figure -> its class: gain1 to gain4 above 1, loss1 to loss4 below 1; none for a
    figure in brackets.
    """
    figures = [cell.text for row in table.rows for cell in row[table.labels :]]
    logs = {
        text: math.log(float(text)) for text in figures if text[:1].isdigit() and float(text) > 0
    }
    widest = max(map(abs, logs.values()), default=0.0)
    levels = {text: round(_TINTS * value / widest) for text, value in logs.items() if widest}
    return {
        text: f"{'gain' if level > 0 else 'loss'}{abs(level)}"
        for text, level in levels.items()
        if level
    }


@dataclass(frozen=True, slots=True)
class TerminalTables:
    """Tables that are laid out for the terminal that prints them; to be printed with
    ``crop=False``.
    """

    tables: Sequence[Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields each table under its caption, rather too wide than with a figure cut short.

        The names of a table without a caption were already broken for this terminal.
        """
        unlimited = options.update(width=_UNLIMITED_WIDTH)
        for table in self.tables:
            sheet = _make_sheet(table, None)
            if not table.caption:
                yield sheet
                continue
            yield to_text(table.where, style="bold")
            yield to_text(table.meaning, style="dim")
            for width in _LABEL_WIDTHS:
                if console.measure(sheet, options=unlimited).maximum > options.max_width:
                    sheet = _make_sheet(table, width)
            sheet.width = console.measure(sheet, options=unlimited).maximum
            yield sheet


def _make_sheet(table: Table, width: int | None) -> Sheet:
    """A name that several rows share is printed once. width: of labels, which are broken to it;
    None: unbroken.
    """
    sheet = Sheet(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for column, title in enumerate(table.header):
        sheet.add_column(
            to_text(title), justify="left" if column < table.labels else "right", no_wrap=True
        )
    names = [row[0].text for row in table.rows if row[0].text]
    apart = len(set(names)) < len(names) or width is not None  # a name of several lines or rows
    previous = ""
    for row in table.rows:
        labels = [
            cell.text if width is None else break_lines(cell.text, width)
            for cell in row[: table.labels]
        ]
        if row[0].text == previous:
            labels[0] = ""
        elif previous and apart:
            sheet.add_section()
        previous = row[0].text
        figures = [
            f"{cell.text} [{cell.interval}]" if cell.interval and BOUNDED in title else cell.text
            for title, cell in zip(table.header[table.labels :], row[table.labels :], strict=True)
        ]
        of_control = previous.replace("\n", " ") == label(CONTROL)
        sheet.add_row(*map(to_text, (*labels, *figures)), style="dim" if of_control else "")
    return sheet


def to_text(text: str, style: str = "") -> Text:
    """Text of a run for a terminal: as characters, never as markup or as an escape sequence."""
    return Text(printable(text), style=style)


FILES = ("md", "tex", "notes.tex")  # forms that are files of tables/, and their endings
WRITERS: Mapping[str, Callable[[Sequence[Table]], Any]] = {  # form -> tables one below the other
    "md": to_markdown,
    "tex": to_latex,
    "notes.tex": to_notes,
    "html": to_html,
    "terminal": TerminalTables,
}
