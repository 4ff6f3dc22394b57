"""The growth curve: what a method gains as it remembers more, a line a run, its cases as faint dots."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from specbench.report.bars import add_legend
from specbench.report.canvas import GRID, head_page
from specbench.report.growth import HELD, running, window_of
from specbench.report.scene import Scene
from specbench.report.series import Series
from specbench.stats import MIN_CASES

_PANEL_INCH = (5.4, 2.9)
_GAP_INCH = 0.75
_FAINT = 0.22
_COVERED = 0.98  # of the dots: the few far above would flatten the lines


def growing(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of methods that held more in some cases than in others, in enough cases for a line."""
    groups = frame.groupby(["method", "variant"], sort=False)[HELD]
    return frame[(groups.transform("nunique") > 1) & (groups.transform("size") >= MIN_CASES)]


def draw_growth(scene: Scene) -> Figure:
    """MAT against tokens held; beside it tokens/s where the target was timed."""
    frame = growing(scene.detail.growth)
    panels = [("mean accepted tokens (MAT)", "emitted", "steps")]
    if frame["time_s"].notna().any():
        panels.append(("tokens/s", "tokens", "time_s"))
    width = _PANEL_INCH[0] * len(panels) + _GAP_INCH * (len(panels) - 1)
    canvas = Figure(figsize=(width, _PANEL_INCH[1]))
    sheets = canvas.subplots(1, len(panels), squeeze=False)[0]
    canvas.subplots_adjust(left=0, right=1, bottom=0.16, top=1, wspace=_GAP_INCH / _PANEL_INCH[0])
    drawn: dict[str, tuple[Series, Any]] = {}
    for axes, (title, above, below) in zip(sheets, panels, strict=True):
        for series in scene.series:
            method, variant = series.rows["method"].iloc[0], series.rows["variant"].iloc[0]
            own = frame[(frame["method"] == method) & (frame["variant"] == variant)]
            if len(own) and own[below].notna().any():
                drawn.setdefault(series.name, (series, _line(axes, own, above, below, series)))
        _dress(axes, frame, title, above, below)
    sizes = sorted({window_of(count) for count in frame.groupby(["method", "variant"]).size()})
    line = f"line: over {' or '.join(map(str, sizes))} neighbouring cases"
    note = f"{scene.where}; dots: cases (the highest 2 % not all shown), {line}"
    head_page(canvas, "Growth with what is remembered", note)
    add_legend(canvas, [series for series, _ in drawn.values()], [line for _, line in drawn.values()], width)
    return canvas


def _line(axes: Axes, rows: pd.DataFrame, above: str, below: str, series: Series) -> Any:
    look = series.style
    axes.scatter(rows[HELD], rows[above] / rows[below], s=9, color=look.colour, alpha=_FAINT, linewidths=0)
    (line,) = axes.plot(*running(rows, above, below), color=look.colour, linestyle=look.line, linewidth=1.8)
    return line


def _dress(axes: Axes, frame: pd.DataFrame, title: str, above: str, below: str) -> None:
    figures = (frame[above] / frame[below]).dropna()
    low = 0.9 if above == "emitted" else 0.0
    axes.set_ylim(low, low + 1.1 * (max(1.0, float(figures.quantile(_COVERED))) - low))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("tokens held when the case began")
    axes.set_ylabel(title)
    if above == "emitted":
        axes.axhline(1.0, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.grid(color=GRID, linewidth=0.6)
