"""The growth curve: MAT and speed of a method against the tokens that it holds, cases as faint dots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from specbench.report.frames.detail import CACHED
from specbench.report.plots.canvas import REFERENCE, finish, make_sheet
from specbench.report.plots.scene import Scene, Series
from specbench.stats import MIN_CASES

_PANEL_INCH = (3.8, 2.2)
_FAINT = 0.22
_COVERED = 0.98  # of the dots: the few far above would flatten the lines


_WINDOWS = 12  # a window holds this part of the cases, within the bounds below
_LEAST, _MOST = MIN_CASES, 50


def choose_window(cases: int) -> int:
    """Cases in a window of the running mean."""
    return int(np.clip(cases // _WINDOWS, _LEAST, _MOST))


def average_windows(rows: pd.DataFrame, above: str, below: str) -> tuple[np.ndarray, np.ndarray]:
    """(W,) mean tokens held and (W,) sum of ``above`` over sum of ``below``, a window of cases by tokens held each.

    Empty where there are fewer cases than a window holds.
    """
    rows = rows.sort_values(CACHED, kind="stable")
    sums = rows[[CACHED, above, below]].rolling(choose_window(len(rows))).sum().dropna()
    return sums[CACHED].to_numpy() / choose_window(len(rows)), (sums[above] / sums[below]).to_numpy()


def keep_growing(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of methods that held more in some cases than in others, in enough cases for a line."""
    groups = frame.groupby(["method", "variant"], sort=False)[CACHED]
    return frame[(groups.transform("nunique") > 1) & (groups.transform("size") >= MIN_CASES)]


def draw_growth(scene: Scene) -> Figure | str:
    """MAT against tokens held; below it tokens/s where the target was timed."""
    if scene.detail["growth"].empty:
        return "no method records how many tokens it holds"
    frame = keep_growing(scene.detail["growth"])
    if frame.empty:
        return "no method holds more from case to case, or too few cases"
    panels = [("mean accepted tokens (MAT)", "emitted", "steps")]
    if frame["time_s"].notna().any():
        panels.append(("tokens/s", "tokens", "time_s"))
    canvas, sheets = make_sheet((_PANEL_INCH[0], _PANEL_INCH[1] * len(panels)), len(panels), 1, (0.0, 0.1), sharex=True)
    lines: dict[str, Any] = {}
    sheets[-1, 0].set_xlabel("tokens held when the case began")
    for axes, (title, above, below) in zip(sheets.flat, panels, strict=True):
        for series in scene.series:
            own = series.of(frame)
            if len(own) and own[below].notna().any():
                lines.setdefault(series.name, _line(axes, own, above, below, series))
        _dress(axes, frame, title, above, below)
    sizes = sorted({choose_window(count) for count in frame.groupby(["method", "variant"]).size()})
    line = f"line: over {' or '.join(map(str, sizes))} neighbouring cases"
    note = f"{scene.where}; dots: cases (the highest 2 % not all shown), {line}"
    return finish(canvas, "Growth with the tokens held", note, lines)


def _line(axes: Axes, rows: pd.DataFrame, above: str, below: str, series: Series) -> Any:
    look = series.style
    axes.scatter(rows[CACHED], rows[above] / rows[below], s=9, color=look.colour, alpha=_FAINT, linewidths=0)
    (line,) = axes.plot(*average_windows(rows, above, below), color=look.colour, linestyle=look.line, linewidth=1.8)
    return line


def _dress(axes: Axes, frame: pd.DataFrame, title: str, above: str, below: str) -> None:
    figures = (frame[above] / frame[below]).dropna()
    low = 0.9 if above == "emitted" else 0.0
    axes.set_ylim(low, low + 1.1 * (max(1.0, float(figures.quantile(_COVERED))) - low))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel(title)
    if above == "emitted":
        axes.axhline(1.0, **REFERENCE)
    axes.grid()
