"""Layout and files of every plot: one sheet as wide as fits a paper's column, a png to look at and
a pdf to print.

The look is ``paper.mplstyle``. A sheet is at most SHEET_INCH wide, names and legend included, with
no text below 8 pt, so that scaled to a column of COLUMN_INCH nothing is below 6 pt.
"""

from __future__ import annotations

import contextlib
import io
import logging
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from specbench.names import printable
from specbench.records.store import write_atomically
from specbench.report.label import break_lines
from specbench.report.plots import PAPER, SCREEN
from specbench.report.plots.scene import DPI
from specbench.report.writers import make_folder

STYLE = Path(__file__).with_name("paper.mplstyle")
FORMATS = ("png", "pdf")
CAPTIONS = "captions.txt"
COLUMN_INCH = 3.3
SHEET_INCH = 4.4
NOTE = "#555555"
# the line of vanilla
REFERENCE: dict[str, Any] = {"color": "black", "linewidth": 0.9, "linestyle": (0, (4, 3))}
# a figure stays legible on the dashed line
OVER_LINE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_PAD_INCH = 0.05
# of a plot with one row per method
_ROWS_INCH, _ROW_INCH, _BAR_INCH, _ROW_CHARS = 4.0, 0.3, 0.24, 24
_HEAD = "head"  # marks the texts above a plot, which a paper has in its own caption
_SERIF = ["Times New Roman", "Nimbus Roman", "Liberation Serif", "STIXGeneral"]
_NOTE_CHARS, _TITLE_CHARS = 75, 50  # of a line as wide as the sheet
_LEGEND_CHARS = 56
_LEGEND_ENTRY_INCH, _CHAR_INCH = 0.62, 0.068
_LEAST_INCH = 1.2  # axes never shrink below this, however long the names next to them

# name of its files -> its figure; None: there is nothing to draw
Drawing = tuple[str, Callable[[], Figure | None]]


def plain(text: str) -> str:
    """Text that is drawn unchanged: a dollar sign would start mathematics."""
    return printable(text).replace("$", r"\$")


def set_log2(axes: Axes, ticks: Sequence[float] = ()) -> None:
    """Powers of two along x, or these ticks of a log scale, written unchanged."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)) if ticks else LogLocator(base=2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def fit(canvas: Figure) -> Bbox:
    """Narrow the figure until all that is drawn, names next to the axes too, fits the sheet.
    Returns its box [inch].
    """
    for _ in range(3):  # narrower axes may have other ticks
        box = canvas.get_tightbbox()
        over = box.width - inner_inch()
        if over <= 0.005 or canvas.get_figwidth() - over < _LEAST_INCH:
            return box
        canvas.set_figwidth(canvas.get_figwidth() - over)
    return canvas.get_tightbbox()


def make_sheet(
    inch: tuple[float, float] | None = None,
    rows: int = 1,
    columns: int = 1,
    gap: tuple[float, float] = (0.0, 0.0),
    **shared: Any,
) -> tuple[Figure, np.ndarray]:
    """A figure and its (rows, columns) axes, which fill it: names, titles and legend lie outside,
    and saving grows it.

    inch: the style's own without. gap: across and along, in parts of an axes. shared: sharex,
    sharey.
    """
    canvas = Figure(figsize=inch)
    sheets = canvas.subplots(rows, columns, squeeze=False, **shared)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, wspace=gap[0], hspace=gap[1])
    return canvas, sheets


def make_rows(names: Sequence[str], bars: int = 1) -> tuple[Figure, Axes]:
    """A figure with a named row a method, the first on top. bars: in a row, one below the other."""
    names = [plain(break_lines(name, _ROW_CHARS)) for name in names]
    row_inch = max(_ROW_INCH, _BAR_INCH * bars, 0.16 * max(name.count("\n") + 1 for name in names))
    canvas, [[axes]] = make_sheet((_ROWS_INCH, max(0.5, row_inch * len(names)) + 0.1))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    return canvas, axes


def write_ends(axes: Axes, ends: Sequence[float], texts: Sequence[str], shift: float = 0.0) -> None:
    """A figure behind each bar. shift: of the bars in their rows."""
    for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
        about: dict[str, Any] = {
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 8,
            "bbox": OVER_LINE,
        }
        axes.annotate(text, (end, place + shift), (5, 0), **about)


def finish(
    canvas: Figure, title: str, note: str, legend: Mapping[str, Any] | None = None
) -> Figure:
    """The figure, as wide as the sheet, with its title and in grey its note above, and its legend
    below.

    note: what was measured and how to read it. legend: name -> its mark, in as many columns as fit
    the sheet.
    """
    box = fit(canvas)
    lines = textwrap.wrap(note, _NOTE_CHARS)
    place: dict[str, Any] = {"gid": _HEAD, "va": "bottom", "ha": "left", "linespacing": 1.15}
    above = box.y1 + 0.09
    left, high = box.x0 / canvas.get_figwidth(), canvas.get_figheight()
    canvas.text(left, above / high, plain("\n".join(lines)), fontsize=8, color=NOTE, **place)
    above += 0.135 * len(lines) + 0.05
    canvas.text(
        left,
        above / high,
        plain(textwrap.fill(title, _TITLE_CHARS)),
        fontsize=10,
        fontweight="bold",
        **place,
    )
    if not legend:
        return canvas
    box = fit(canvas)
    names = [plain(break_lines(name, _LEGEND_CHARS)) for name in legend]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = int(
        np.clip(inner_inch() / (_CHAR_INCH * longest + _LEGEND_ENTRY_INCH), 1, len(names))
    )
    canvas.legend(
        [*legend.values()], names, loc="upper left", ncols=columns, handlelength=2.6,
        columnspacing=1.4,
        bbox_to_anchor=(box.x0 / canvas.get_figwidth(), (box.y0 - 0.08) / canvas.get_figheight()),
        borderaxespad=0, borderpad=0,
    )  # fmt: skip
    return canvas


@contextlib.contextmanager
def drawing(style: str = SCREEN) -> Iterator[None]:
    """Draw and save inside this. style: screen, paper, or a file, whose figure.figsize has the
    width of a sheet.
    """
    # logs a page of font tables at INFO, which would bury a run's own log
    fonts = logging.getLogger("fontTools")
    level = fonts.level
    with mpl.rc_context(fname=STYLE):
        fonts.setLevel(logging.WARNING)
        mpl.rc("figure", figsize=(SHEET_INCH if style == SCREEN else COLUMN_INCH, COLUMN_INCH))
        if style == SCREEN:
            # Type 42 is what publishers ask for; to subset it takes two thirds of the saving
            mpl.rc("pdf", fonttype=3)
            mpl.rc("ps", fonttype=3)  # by which matplotlib 3.11 sizes a pdf's subsets
        else:
            mpl.rc("font", family="serif", serif=_SERIF)
            mpl.rc("mathtext", fontset="stix")
        if style not in (SCREEN, PAPER):
            mpl.rc_file(style, use_default_template=False)
        try:
            yield
        finally:
            fonts.setLevel(level)


def inner_inch() -> float:
    """The drawn width of a sheet: all plots are laid out for the widest sheet, and narrowed if it
    is less.
    """
    return min(SHEET_INCH, float(mpl.rcParams["figure.figsize"][0])) - 2 * _PAD_INCH


def take_caption(figure: Figure) -> str:
    """Title and note of a plot in one line, taken off it: a paper has them in its caption."""
    heads = [text for text in figure.texts if text.get_gid() == _HEAD]
    for text in heads:
        text.remove()
    note, title = (" ".join(text.get_text().replace(r"\$", "$").split()) for text in heads)
    return f"{title}: {note}."


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a file of each format in FORMATS, each in one step."""
    files = []
    figure.set_dpi(DPI)  # a text's width depends on it
    # "tight" would lay the sheet out anew for each format
    box = figure.get_tightbbox().padded(_PAD_INCH)
    for kind in FORMATS:
        memory = io.BytesIO()
        # the same figures give the same bytes
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(memory, format=kind, dpi=DPI, bbox_inches=box, metadata=metadata)
        path = stem.with_name(f"{stem.name}.{kind}")
        write_atomically(path, memory.getvalue())
        files.append(path)
    return files


def save_all(drawings: Sequence[Drawing], folder: Path, style: str = SCREEN) -> list[Path]:
    """Draw each and save it under its name.

    For a paper their titles and notes go to captions.txt, one line per file.
    """
    make_folder(folder)
    files, captions = list[Path](), []
    for name, draw in drawings:
        if figure := draw():
            if style != SCREEN:
                captions.append(f"{name}: {take_caption(figure)}")
            files += save(figure, folder / name)
    path = folder / CAPTIONS
    if captions:
        known = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        lines = {line.partition(":")[0]: line for line in [*known, *captions]}
        write_atomically(path, "\n".join(lines.values()) + "\n")
    return [*files, *([path] if captions else [])]
