"""Figures along the answer and the context: MAT, and time a step and speedup where they were timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from specbench.records.record import VANILLA
from specbench.report.plots.acceptance import MIN_STEPS, with_enough_steps
from specbench.report.plots.canvas import REFERENCE, finish, make_sheet
from specbench.report.plots.scene import Scene

_WIDTH_INCH, _ROW_INCH = 4.0, 1.7
_AXES = {"position": "tokens emitted before", "context": "tokens in the context"}
_FIGURES = {"mat": "MAT", "step_ms": "ms a step", "speedup": "speedup"}


def draw_lengths(scene: Scene) -> Figure | str:
    """MAT, and below it ms a step and speedup where they were timed, by output position and by context length."""
    frame = with_enough_steps(scene.detail["by_length"], "steps")
    if frame.loc[frame["axis"] == "position", "from"].nunique() < 2:
        return "answers too short, or too few"
    figures = [name for name in _FIGURES if frame[name].notna().any()]
    inch = (_WIDTH_INCH, _ROW_INCH * len(figures))
    canvas, sheet = make_sheet(inch, len(figures), 2, (0.08, 0.12), sharey="row", sharex="col")
    lines: dict[str, Any] = {}
    for row, figure in enumerate(figures):
        for axes, axis in zip(sheet[row], _AXES, strict=True):
            own = frame[frame["axis"] == axis]
            for series, points in ((each, each.of(own)) for each in scene.series if len(each.of(own))):
                (lines[series.name],) = axes.plot(_knots(points["from"]), points[figure], **series.style.marks)
            vanilla = own[own["method"] == VANILLA].drop_duplicates("from")
            axes.plot(_knots(vanilla["from"]), vanilla[figure], **REFERENCE)
            _dress(axes, own)
        sheet[row, 0].set_ylabel(_FIGURES[figure])
        sheet[row, 0].set_ylim(bottom=0)
    for axes, title in zip(sheet[-1], _AXES.values(), strict=True):
        axes.set_xlabel(title)
    note = f"{scene.where}; a point a bin from this length on, of at least {MIN_STEPS} steps; dashed: vanilla"
    return finish(canvas, "Along the answer and the context", note, lines)


def _knots(edges: pd.Series) -> np.ndarray:
    """Places on the axis, one a power of two."""
    return np.log2(np.maximum(edges.to_numpy(dtype=float), 8))


def _dress(axes: Axes, own: pd.DataFrame) -> None:
    edges = own["from"].drop_duplicates().sort_values()
    every = 1 + len(edges) // 5  # names of neighbours would touch
    named = {0, *range(len(edges) - 1, 0, -every)}
    names = [f"{edge:g}" if place in named else "" for place, edge in enumerate(edges)]
    axes.set_xticks(_knots(edges), names)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid()
