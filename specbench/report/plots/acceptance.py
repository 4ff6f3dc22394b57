"""Lines over the draft's positions: how likely the target agrees that deep."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.report.plots.canvas import GRID, add_legend, head
from specbench.report.plots.scene import Scene, Series

MIN_STEPS = 20  # a share of fewer steps is noise and is not drawn; the csv has it
_INCH = (3.8, 4.0)
_MOST_TICKS = 10
_FAINT = 0.01  # positions deeper than any method's last share above this are a flat line and are cut off
_PANELS = (
    ("drafted", "of steps that drafted this deep"),
    ("reached", "of steps that accepted all before it"),
)


def shown(frame: pd.DataFrame, base: str) -> pd.DataFrame:
    """The positions with enough steps behind them."""
    return frame[frame[base] >= MIN_STEPS]


def draw_accept_positions(scene: Scene) -> Figure:
    """Above: the share that was accepted to this depth. Below: the chance at this depth once everything before held."""
    frame = scene.detail["accept_positions"]
    canvas = Figure(figsize=_INCH)
    panels = canvas.subplots(2, 1, sharey=True, sharex=True)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0.18)
    drawn: dict[str, tuple[Series, object]] = {}
    deepest = _deepest(shown(frame, "drafted"))
    for axes, (base, title) in zip(panels, _PANELS, strict=True):
        for series in scene.series:
            method, variant = series.rows["method"].iloc[0], series.rows["variant"].iloc[0]
            own = frame[(frame["method"] == method) & (frame["variant"] == variant)]
            points = shown(own, base)
            if len(points):
                drawn.setdefault(series.name, (series, _line(axes, points, base, series)))
        _dress(axes, title, deepest)
    panels[1].set_xlabel("draft position")
    note = f"{scene.where}; position 1 follows the last emitted token; positions of under {MIN_STEPS} steps not drawn"
    head(canvas, "Acceptance by position in the draft", note)
    add_legend(canvas, list(drawn), [line for _, line in drawn.values()])
    return canvas


def _deepest(points: pd.DataFrame) -> int:
    seen = points.loc[points["accepted_of_drafted"] >= _FAINT, "position"]
    return int(seen.max()) if len(seen) else int(points["position"].max())


def _line(axes: Axes, points: pd.DataFrame, base: str, series: Series) -> object:
    look = series.style
    (line,) = axes.plot(
        points["position"],
        100 * points[f"accepted_of_{base}"],
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
    )
    return line


def _dress(axes: Axes, title: str, deepest: int) -> None:
    axes.set_title(title, loc="left", fontsize=8.5, pad=4)
    axes.set_ylim(0, 104)
    axes.set_xlim(0.5, deepest + 0.5)
    step = max(1, int(np.ceil(deepest / _MOST_TICKS)))
    axes.set_xticks(range(1, deepest + 1, step))
    axes.set_ylabel("accepted [%]")
    axes.grid(color=GRID, linewidth=0.6)
