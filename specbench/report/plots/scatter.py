"""Methods as points: MAT against tokens fed and what these cost, speedup against MAT, predicted against measured.

The frontier of speedup against MAT: a method emits MAT tokens a step where vanilla emits one. If its steps took as long
as vanilla's, its speedup would be MAT. On the line k lie speedups of MAT / k, so that k, what a step costs in vanilla's
steps, is the overhead: a wider forward, drafting, and the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.record import OVERALL, VANILLA
from specbench.report.data.choices import find_undominated
from specbench.report.plots.canvas import GRID, REFERENCE, add_legend, fit, set_log2, write_head
from specbench.report.plots.points import Point, draw_mark, write_names
from specbench.report.plots.scene import Scene, Series

_VANILLA = (1.0, 1.0)  # one token fed, one emitted
_COSTS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)  # of a step, in vanilla's
_MOST_LINES = 6
_GREY: dict[str, Any] = {"textcoords": "offset points", "color": "#777777", "fontsize": 8}
_FRONTIER_TITLES = {"speedup": "Speedup against MAT", "predicted_speedup": "Predicted speedup against MAT (modelled)"}
_FRONTIER_LABELS = {"speedup": "speedup over vanilla", "predicted_speedup": "predicted speedup"}


@dataclass(frozen=True, slots=True)
class Dot:
    """A method as a point. name: as printed, with its finished cases where some failed. whole: none failed.

    x_bounds, y_bounds: 95 % intervals, NaN where there is none.
    """

    series: Series
    name: str
    at: Point
    x_bounds: Point
    y_bounds: Point
    whole: bool

    @property
    def whiskers(self) -> list[tuple[Point, Point]]:
        """The intervals as lines; one without width (a MAT of 1) is none."""
        x, y = self.at
        (left, right), (low, high) = self.x_bounds, self.y_bounds
        lines = (((left, y), (right, y)), ((x, low), (x, high)))
        return [line for line in lines if np.isfinite(line).all() and line[0] != line[1]]


def find_dots(scene: Scene, x: str, y: str, *others: str) -> list[Dot]:
    """The methods that have the figures x and y, and the others; each a column of the summary."""
    found = []
    for series in scene.series:
        row = series.rows.loc[OVERALL]
        if row[[x, y, *others]].notna().all():
            part = f" ({row['cases']} of {row['cases'] + row['errors']} cases)" if row["errors"] else ""
            at, bounds = (float(row[x]), float(row[y])), (_bounds(row, x), _bounds(row, y))
            found.append(Dot(series, series.name + part, at, *bounds, not part))
    return found


def _bounds(row: pd.Series, figure: str) -> Point:
    low, high = (float(row.get(f"{figure}_{side}", float("nan"))) for side in ("low", "high"))
    return low, high


def find_prices(scene: Scene) -> list[Dot]:
    """MAT against tokens fed; peers have no point, since their drafts are not recorded."""
    return find_dots(scene, "tokens_fed", "mat")


def find_gains(scene: Scene) -> tuple[str, list[Dot]]:
    """(the speedup that is drawn, its points against MAT): as measured, else as predicted; no points without either."""
    for figure in _FRONTIER_TITLES:
        found = find_dots(scene, "mat", figure)
        if found:
            return figure, found
    return "speedup", []


def find_predicted(scene: Scene) -> list[Dot]:
    """Predicted against measured speedup of decode steps, by a profile of the run's own machine."""
    return find_dots(scene, "decode_speedup", "predicted_speedup", "efficiency")


def _draw_dot(axes: Axes, dot: Dot) -> Line2D:
    """A method's point, with the whisker of its height."""
    low, high = dot.y_bounds
    if dot.whiskers:
        axes.vlines(dot.at[0], low, high, color=dot.series.style.colour, linewidth=1.0, zorder=2)
    return draw_mark(axes, dot.at, dot.series.style)


def _note_whiskers(dots: Sequence[Dot]) -> str:
    return "; whiskers: 95\N{NO-BREAK SPACE}% over cases" if any(dot.whiskers for dot in dots) else ""


def draw_front(scene: Scene) -> Figure:
    """Up is better, left is cheaper; the line joins the points that none beats, vanilla the first."""
    entries = find_prices(scene)
    points = [_VANILLA, *(dot.at for dot in entries)]
    canvas = Figure(figsize=(3.8, 3.2))
    axes = canvas.add_axes((0, 0, 1, 1))
    bars = [line for dot in entries for line in dot.whiskers]
    _dress_front(axes, points, [height for line in bars for _, height in line])
    cost = _draw_cost(axes, scene)
    fit(canvas)  # names are placed on axes as wide as they stay
    whole = [0, *(place for place, each in enumerate(entries, start=1) if each.whole)]
    front = [whole[place] for place in find_undominated([points[place] for place in whole])]
    axes.step(*zip(*(points[place] for place in front), strict=True), where="post", color="#999999", linewidth=1.2)
    axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    marks = [_draw_dot(axes, dot) for dot in entries]
    for one, other in pairwise(points[place] for place in front):
        bars += [(one, (other[0], one[1])), ((other[0], one[1]), other)]
    crowded = write_names(axes, points, [VANILLA, *(each.name for each in entries)], front, bars)
    below = {each.series.name: mark for each, mark in zip(entries, marks, strict=True) if each.name in crowded}
    drawn = {each.series.name for each in entries}
    missing = [each.name for each in scene.series if each.name not in drawn]
    note = f"{scene.where}; fed: the last token and every node of the draft; line: what no other beats"
    note += cost + _note_whiskers(entries)
    if missing:
        note += f"; left out, MAT or what they feed is not known: {', '.join(missing)}"
    write_head(canvas, "MAT against tokens fed a step", note)
    if below:
        add_legend(canvas, list(below), list(below.values()))
    return canvas


def _draw_cost(axes: Axes, scene: Scene) -> str:
    """T(q) / T(1) of the latency profile, a method above which gains; what the note says of it, '' without one."""
    if scene.priced is None:
        return ""
    profile, context = scene.priced
    fed = np.geomspace(1.0, axes.get_xlim()[1], 200)
    cost = profile.forward_ms(fed, np.full_like(fed, context)) / profile.forward_ms([1.0], [float(context)])
    axes.plot(fed, cost, color="black", linewidth=1.2, linestyle=":")
    return f"; dotted: T(q) / T(1), {profile.label}, context {context}: points above it gain before drafting time"


def _dress_front(axes: Axes, points: Sequence[tuple[float, float]], bounds: Sequence[float]) -> None:
    most, best = (max(values) for values in zip(*points, strict=True))
    best = max(best, *bounds, best)
    set_log2(axes)
    axes.set_xlim(0.9, most**1.06 * 1.6)
    axes.set_ylim(1 - 0.06 * (best - 0.9), best + 0.16 * (best - 0.9))
    axes.set_xlabel("tokens fed a step")
    axes.set_ylabel("mean accepted tokens (MAT)")
    axes.grid(color=GRID, linewidth=0.6)


def draw_frontier(scene: Scene) -> Figure:
    """Right is more tokens a step, up is faster; the further below the first line, the more a step costs."""
    figure, gains = find_gains(scene)
    canvas = Figure(figsize=(3.7, 3.2))
    axes = canvas.add_axes((0, 0, 1, 1))
    _dress_frontier(axes, gains)
    axes.set_ylabel(_FRONTIER_LABELS[figure])
    fit(canvas)  # names are placed on axes as wide as they stay
    axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    marks, bars = [], [((axes.get_xlim()[0], 1.0), (axes.get_xlim()[1], 1.0))]
    for gain in gains:
        for (left, low), (right, top) in gain.whiskers:
            axes.plot([left, right], [low, top], color=gain.series.style.colour, linewidth=1.0, zorder=2)
        marks.append(draw_mark(axes, gain.at, gain.series.style))
        bars += gain.whiskers
    names = [gain.series.name for gain in gains]
    crowded = write_names(axes, [_VANILLA, *(gain.at for gain in gains)], [VANILLA, *names], lines=bars)
    below = {name: drawn for name, drawn in zip(names, marks, strict=True) if name in crowded}
    note = f"{scene.where}; grey k: speedup if a step costs k of vanilla's, prefill aside; 1: the frontier"
    note += f"; {scene.profile}" if figure != "speedup" else ""
    note += _note_whiskers(gains)
    write_head(canvas, _FRONTIER_TITLES[figure], note)
    if below:
        add_legend(canvas, list(below), list(below.values()))
    return canvas


def _dress_frontier(axes: Axes, gains: list[Dot]) -> None:
    """Limits that hold every whisker, and the lines of equal cost that end inside them, each with its cost."""
    corners = np.array(
        [_VANILLA, *(gain.at for gain in gains), *(p for g in gains for line in g.whiskers for p in line)]
    )
    (left, low), (right, top) = corners.min(axis=0), corners.max(axis=0)
    left, right = min(0.9, left), right + 0.08 * (right - min(0.9, left))
    top *= 1.12
    axes.set_xlim(left, right)
    axes.set_ylim(0.8 * low, top)
    axes.set_xlabel("mean accepted tokens (MAT)")
    axes.grid(color=GRID, linewidth=0.6)
    axes.axhline(1.0, **REFERENCE, zorder=1)
    for cost in _choose_costs(max(gain.at[0] / gain.at[1] for gain in gains)):
        axes.plot([0, right], [0, right / cost], color="#999999", linewidth=1.6 if cost == 1 else 0.7, zorder=1)
        if right / cost > top:
            axes.annotate(f"{cost:g}", (top * cost, top), (0, 2), ha="center", va="bottom", **_GREY)
        else:
            axes.annotate(f"{cost:g}", (right, right / cost), (3, 0), ha="left", va="center", **_GREY)


def _choose_costs(worst: float) -> list[float]:
    """Costs up to the first one that no method exceeds, the frontier among them, not too many."""
    needed = [cost for cost, before in zip(_COSTS, (0.0, *_COSTS), strict=False) if before < worst]
    return [1.0, *needed[1:][-(_MOST_LINES - 1) :]]


def median_error(points: Sequence[Point]) -> float:
    """Median over methods of |predicted / measured - 1|. points: measured, predicted."""
    return float(np.median([abs(predicted / measured - 1) for measured, predicted in points]))


def draw_predicted(scene: Scene) -> Figure:
    """Above the diagonal: slower than the forwards and the drafter's own time explain."""
    points = find_predicted(scene)
    canvas = Figure(figsize=(3.3, 3.3))
    axes = canvas.add_axes((0, 0, 1, 1))
    bounds = [height for dot in points for line in dot.whiskers for _, height in line]
    ends = [1.0, *(figure for dot in points for figure in dot.at), *bounds]
    margin = 0.05 * (max(ends) - min(ends))
    low, top = min(ends) - margin, max(ends) + margin
    axes.plot([low, top], [low, top], color="#999999", linewidth=1)
    marks = [_draw_dot(axes, dot) for dot in points]
    axes.set_xlim(low, top)
    axes.set_ylim(low, top)
    axes.set_xlabel("measured speedup, decode steps")
    axes.set_ylabel("predicted speedup (modelled)")
    axes.grid(color=GRID, linewidth=0.6)
    note = f"{scene.where}; profile: {scene.profile}; line: equal"
    error = median_error([dot.at for dot in points])
    note += f"{_note_whiskers(points)}; median absolute error {100 * error:.1f}\N{NO-BREAK SPACE}%"
    write_head(canvas, "Predicted against measured speedup", note)
    add_legend(canvas, [dot.series.name for dot in points], marks)
    return canvas
