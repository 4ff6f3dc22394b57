"""How every plot is set and saved: one look for all, a png to look at and a pdf to print."""

from __future__ import annotations

import io
import logging
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.report.palette import DPI

NOTE = "#555555"
GRID = "#dddddd"
_NOTE_CHARS_PER_INCH = 15
_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text in the pdf
}


def plain(text: str) -> str:
    """Text that is drawn as it is: a dollar sign would start mathematics."""
    return text.replace("$", r"\$")


def slug(name: str) -> str:
    """A name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name)


def head(axes: Axes, title: str, note: str, width_inch: float) -> None:
    """The title, and under it in grey what was measured and how to read it."""
    lines = textwrap.wrap(note, int(width_inch * _NOTE_CHARS_PER_INCH))
    axes.annotate(
        plain("\n".join(lines)), (0, 1), (0, 5), "axes fraction", "offset points", fontsize=8, color=NOTE, va="bottom"
    )
    axes.set_title(plain(title), loc="left", fontweight="bold", fontsize=10.5, pad=9 + 11 * len(lines))


def head_page(canvas: Figure, title: str, note: str) -> None:
    """The same above a figure of several panels, which start at its top edge."""
    lines = textwrap.wrap(note, int(canvas.get_figwidth() * _NOTE_CHARS_PER_INCH))
    line_inch = 11.5 / 72
    height = canvas.get_figheight()
    above = 1 + (0.42 + line_inch * len(lines)) / height
    canvas.text(0.0, above, plain(title), fontweight="bold", fontsize=10.5, va="top")
    canvas.text(0.0, above - 0.22 / height, plain("\n".join(lines)), fontsize=8, color=NOTE, va="top")


@contextmanager
def drawing() -> Iterator[None]:
    """Draw and save inside this."""
    with mpl.rc_context(_LOOK), _quiet_fonts():
        yield


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Embedding text in a pdf logs a page of font tables at INFO, which would bury a run's own log."""
    logger = logging.getLogger("fontTools")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write png and pdf, each in one step."""
    files = []
    for kind in ("png", "pdf"):
        memory = io.BytesIO()
        metadata = {"CreationDate": None} if kind == "pdf" else None  # the same figures give the same bytes
        figure.savefig(memory, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
        path = stem.with_name(f"{stem.name}.{kind}")
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(memory.getvalue())
        partial.replace(path)
        files.append(path)
    return files
