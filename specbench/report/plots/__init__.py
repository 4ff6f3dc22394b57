"""The styles of a report's plots: for a screen, for a paper, or from a style file of matplotlib."""

from __future__ import annotations

from pathlib import Path

from specbench.input import decode_text, read_file
from specbench.records.store import RunError

SCREEN, PAPER = "screen", "paper"
_SUFFIX = ".mplstyle"


def check_style(style: str) -> None:
    """Raises InputError if it is neither a look nor a style file."""
    if style in (SCREEN, PAPER):
        return
    if not style.endswith(_SUFFIX):
        raise RunError(
            f"report.style={style}: expected {SCREEN}, {PAPER}, or a style file of matplotlib"
            f" (*{_SUFFIX})"
        )
    fix = "expected a style file of matplotlib"
    decode_text(read_file(Path(style), "report.style=", fix), f"report.style={style}")
