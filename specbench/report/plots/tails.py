"""The plots of waiting: percentiles as dots on a line a method, and figures along the answer and the context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from specbench.record import VANILLA
from specbench.report.data.detail import PERCENTILES, drop_repeats
from specbench.report.plots.acceptance import MIN_STEPS
from specbench.report.plots.canvas import GRID, REFERENCE, add_legend, plain, write_head
from specbench.report.plots.palette import style_of
from specbench.report.plots.scene import Scene
from specbench.report.text.label import break_lines, label

_WIDTH_INCH = 4.0
_ROW_INCH = 0.3
_NAME_CHARS = 22
_MARKS = {50: "o", 95: "D", 99: "s"}
_PANELS = (("burst", "inter-token latency, ms"), ("per_token", "ms a token"))
_AXES = {"position": "tokens emitted before", "context": "tokens in the context"}
_FIGURES = {"mat": "MAT", "step_ms": "ms a step", "speedup": "speedup"}


def draw_tails(scene: Scene) -> Figure:
    """A row a method, a dot a percentile: left the waits between bursts, right the time a token."""
    frame = drop_repeats(scene.detail["tails"])
    names = [
        plain(break_lines(label(*key), _NAME_CHARS)) for key in zip(frame["method"], frame["variant"], strict=True)
    ]
    room = max(_ROW_INCH, 0.15 * max(name.count("\n") + 1 for name in names))
    canvas = Figure(figsize=(_WIDTH_INCH, max(0.8, room * len(names))))
    panels = canvas.subplots(1, 2, sharey=True)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, wspace=0.06)
    places = np.arange(len(names))
    for axes, (wait, title) in zip(panels, _PANELS, strict=True):
        values = frame[[f"{wait}_p{share}_ms" for share in PERCENTILES]].to_numpy(dtype=float)
        axes.hlines(places, np.nanmin(values, axis=1), np.nanmax(values, axis=1), color="#aaaaaa", linewidth=1.2)
        for column, share in enumerate(PERCENTILES):
            colour = style_of(column).colour
            axes.plot(values[:, column], places, _MARKS[share], color=colour, markersize=5, label=f"p{share}")
        axes.set_xlabel(title)
        axes.set_xlim(0, 1.05 * axes.get_xlim()[1])  # else the rightmost marker is cut
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(places, names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    note = f"{scene.where}; a burst: the tokens of a step; a token: a request's mean; p99 only of 100 values or more"
    write_head(canvas, "Waiting: the tails", note)
    handles, shares = panels[0].get_legend_handles_labels()
    add_legend(canvas, shares, handles)
    return canvas


def no_lengths(scene: Scene) -> str:
    """Why the plot along the answer is missing: the answers do not reach over two bins with enough steps."""
    frame = scene.detail["by_length"]
    bins = frame[(frame["axis"] == "position") & (frame["steps"] >= MIN_STEPS)]
    return "" if bins["from"].nunique() > 1 else "answers too short, or too few"


def draw_lengths(scene: Scene) -> Figure:
    """MAT, and below it ms a step and speedup where they were timed, by output position and by context length."""
    frame = scene.detail["by_length"][scene.detail["by_length"]["steps"] >= MIN_STEPS]
    figures = [name for name in _FIGURES if frame[name].notna().any()]
    canvas = Figure(figsize=(_WIDTH_INCH, 1.7 * len(figures)))
    sheet = canvas.subplots(len(figures), 2, sharey="row", sharex="col", squeeze=False)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, wspace=0.08, hspace=0.12)
    lines: dict[str, Any] = {}
    for row, figure in enumerate(figures):
        for column, axis in enumerate(_AXES):
            axes = sheet[row, column]
            own = frame[frame["axis"] == axis]
            drawn = ((series, points) for series in scene.series if len(points := series.of(own)))
            lines |= {series.name: _line(axes, points, figure, series.style) for series, points in drawn}
            vanilla = own[own["method"] == VANILLA].drop_duplicates("from")
            axes.plot(_knots(vanilla), vanilla[figure], **REFERENCE)
            _dress(axes, own)
        sheet[row, 0].set_ylabel(_FIGURES[figure])
        sheet[row, 0].set_ylim(bottom=0)
    for axes, title in zip(sheet[-1], _AXES.values(), strict=True):
        axes.set_xlabel(title)
    note = f"{scene.where}; a point a bin from this length on, of at least {MIN_STEPS} steps; dashed: vanilla"
    write_head(canvas, "Along the answer and the context", note)
    add_legend(canvas, list(lines), list(lines.values()))
    return canvas


def _knots(points: pd.DataFrame) -> np.ndarray:
    """Places on the axis, one a power of two."""
    return np.log2(np.maximum(points["from"].to_numpy(dtype=float), 8))


def _line(axes: Axes, points: pd.DataFrame, figure: str, look: Any) -> Any:
    (line,) = axes.plot(_knots(points), points[figure], color=look.colour, linestyle=look.line, marker=look.marker)
    return line


def _dress(axes: Axes, own: pd.DataFrame) -> None:
    edges = sorted(own["from"].unique())
    every = 1 + len(edges) // 5  # names of neighbours would touch
    named = {0, *range(len(edges) - 1, 0, -every)}
    names = [f"{edge:g}" if place in named else "" for place, edge in enumerate(edges)]
    axes.set_xticks(np.log2(np.maximum(np.array(edges, dtype=float), 8)), names)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(color=GRID, linewidth=0.6)
