"""Speedup against MAT, under the frontier that it could reach if a step cost no more than vanilla's.

A method emits MAT tokens a step where vanilla emits one. If its steps took as long as vanilla's its speedup were MAT:
the frontier. On the line k lie speedups of MAT / k, so that k, what a step costs in vanilla's steps, is the overhead:
a wider forward, drafting, and the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.record import OVERALL, VANILLA
from specbench.report.plots.canvas import GRID, add_legend, fit, head
from specbench.report.plots.points import Point, mark, write_names
from specbench.report.plots.scene import Scene, Series

_INCH = (3.7, 3.2)
_COSTS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)  # of a step, in vanilla's
_MOST_LINES = 6
_VANILLA = (1.0, 1.0)
_GREY: dict[str, Any] = {"textcoords": "offset points", "color": "#777777", "fontsize": 8}
_TITLES = {"speedup": "Speedup against MAT", "predicted_speedup": "Predicted speedup against MAT (modelled)"}
_LABELS = {"speedup": "speedup over vanilla", "predicted_speedup": "predicted speedup"}


@dataclass(frozen=True, slots=True)
class Gain:
    """A method that has both figures, and their 95 % intervals, NaN where there are too few cases."""

    series: Series
    at: Point  # (MAT, speedup)
    mat: Point
    speedup: Point


def gained(scene: Scene) -> tuple[str, list[Gain]]:
    """(the speedup that is drawn, its points): as measured, else as predicted; no points where there is neither."""
    for figure in _TITLES:
        rows = [(series, series.rows.loc[OVERALL]) for series in scene.series]
        found = [
            Gain(series, *((float(row["mat"]), float(row[figure])), _bounds(row, "mat"), _bounds(row, figure)))
            for series, row in rows
            if np.isfinite(row["mat"]) and np.isfinite(row[figure])
        ]
        if found:
            return figure, found
    return "speedup", []


def _bounds(row: pd.Series, figure: str) -> Point:
    return float(row[f"{figure}_low"]), float(row[f"{figure}_high"])


def draw_frontier(scene: Scene) -> Figure:
    """Right is more tokens a step, up is faster; the further below the first line, the more a step costs."""
    figure, gains = gained(scene)
    canvas = Figure(figsize=_INCH)
    axes = canvas.add_axes((0, 0, 1, 1))
    _dress(axes, gains)
    axes.set_ylabel(_LABELS[figure])
    fit(canvas)  # names are placed on axes as wide as they stay
    axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    marks, bars = [], [((axes.get_xlim()[0], 1.0), (axes.get_xlim()[1], 1.0))]
    for gain in gains:
        whiskers = _whiskers(gain)
        for (left, low), (right, top) in whiskers:
            axes.plot([left, right], [low, top], color=gain.series.style.colour, linewidth=1.0, zorder=2)
        marks.append(mark(axes, gain.at, gain.series.style))
        bars += whiskers
    names = [gain.series.name for gain in gains]
    crowded = write_names(axes, [_VANILLA, *(gain.at for gain in gains)], [VANILLA, *names], lines=bars)
    below = {name: drawn for name, drawn in zip(names, marks, strict=True) if name in crowded}
    note = f"{scene.where}; grey k: speedup if a step costs k of vanilla's, prefill aside; 1: the frontier"
    note += f"; {scene.profile}" if figure != "speedup" else ""
    note += "; whiskers: 95\N{NO-BREAK SPACE}% over cases" if any(map(_whiskers, gains)) else ""
    head(canvas, _TITLES[figure], note)
    if below:
        add_legend(canvas, list(below), list(below.values()))
    return canvas


def _whiskers(gain: Gain) -> list[tuple[Point, Point]]:
    """The intervals as lines; one without width (a MAT of 1) is none."""
    mat, speedup = gain.at
    lines = (((gain.mat[0], speedup), (gain.mat[1], speedup)), ((mat, gain.speedup[0]), (mat, gain.speedup[1])))
    return [line for line in lines if np.isfinite(line).all() and line[0] != line[1]]


def _dress(axes: Axes, gains: list[Gain]) -> None:
    """Limits that hold every whisker, and the lines of equal cost that end inside them, each with its cost."""
    corners = np.array(
        [_VANILLA, *(gain.at for gain in gains), *(p for g in gains for line in _whiskers(g) for p in line)]
    )
    (left, low), (right, top) = corners.min(axis=0), corners.max(axis=0)
    left, right = min(0.9, left), right + 0.08 * (right - min(0.9, left))
    top *= 1.12
    axes.set_xlim(left, right)
    axes.set_ylim(0.8 * low, top)
    axes.set_xlabel("mean accepted tokens (MAT)")
    axes.grid(color=GRID, linewidth=0.6)
    axes.axhline(1.0, color="black", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for cost in _chosen(max(gain.at[0] / gain.at[1] for gain in gains)):
        axes.plot([0, right], [0, right / cost], color="#999999", linewidth=1.6 if cost == 1 else 0.7, zorder=1)
        if right / cost > top:
            axes.annotate(f"{cost:g}", (top * cost, top), (0, 2), ha="center", va="bottom", **_GREY)
        else:
            axes.annotate(f"{cost:g}", (right, right / cost), (3, 0), ha="left", va="center", **_GREY)


def _chosen(worst: float) -> list[float]:
    """Costs up to the first one that no method exceeds, the frontier among them, not too many."""
    needed = [cost for cost, before in zip(_COSTS, (0.0, *_COSTS), strict=False) if before < worst]
    return [1.0, *needed[1:][-(_MOST_LINES - 1) :]]
