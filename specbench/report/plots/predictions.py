"""Predicted against measured speedup: every method a point; on the diagonal the profile says it all."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from specbench.record import OVERALL
from specbench.report.plots.canvas import GRID, add_legend, head
from specbench.report.plots.points import mark
from specbench.report.plots.scene import Scene, Series

_INCH = 3.3


def both(scene: Scene) -> list[tuple[Series, float, float]]:
    """(series, measured, predicted) of the methods that have both, by a profile of the run's own machine."""
    found = []
    for series in scene.series:
        row = series.rows.loc[OVERALL]
        if np.isfinite(row[["decode_speedup", "predicted_speedup", "efficiency"]].to_numpy(dtype=float)).all():
            found.append((series, float(row["decode_speedup"]), float(row["predicted_speedup"])))
    return found


def median_error(points: list[tuple[Series, float, float]]) -> float:
    """Median over methods of |predicted / measured - 1|."""
    return float(np.median([abs(predicted / measured - 1) for _, measured, predicted in points]))


def _whiskers(points: list[tuple[Series, float, float]]) -> list[float]:
    """Low and high of the predicted speedups that have an interval."""
    columns = ["predicted_speedup_low", "predicted_speedup_high"]
    rows = [series.rows.loc[OVERALL, columns].to_list() for series, _, _ in points]
    return [float(bound) for row in rows if np.isfinite(row).all() for bound in row]


def draw_predicted(scene: Scene) -> Figure:
    """Above the diagonal: slower than the forwards and the drafter's own time explain."""
    points = both(scene)
    canvas = Figure(figsize=(_INCH, _INCH))
    axes = canvas.add_axes((0, 0, 1, 1))
    ends = [1.0, *(figure for _, *figures in points for figure in figures), *_whiskers(points)]
    margin = 0.05 * (max(ends) - min(ends))
    low, top = min(ends) - margin, max(ends) + margin
    axes.plot([low, top], [low, top], color="#999999", linewidth=1)
    marks = []
    for series, measured, predicted in points:
        look = series.style
        bounds = _whiskers([(series, measured, predicted)])
        if bounds:
            axes.vlines(measured, bounds[0], bounds[1], color=look.colour, linewidth=1.0)
        marks.append(mark(axes, (measured, predicted), look))
    axes.set_xlim(low, top)
    axes.set_ylim(low, top)
    axes.set_xlabel("measured speedup, decode steps")
    axes.set_ylabel("predicted speedup (modelled)")
    axes.grid(color=GRID, linewidth=0.6)
    note = f"{scene.where}; profile: {scene.profile}; line: equal"
    note += "; whiskers: 95\N{NO-BREAK SPACE}% over cases" if _whiskers(points) else ""
    note += "; median absolute error"
    note += f" {100 * median_error(points):.1f}\N{NO-BREAK SPACE}%"
    head(canvas, "Predicted against measured speedup", note)
    add_legend(canvas, [series.name for series, _, _ in points], marks)
    return canvas
