"""Methods as points: MAT against tokens fed, speedup against MAT, predicted against measured, and MAT against T(q).

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

from specbench.profile import Profile
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
_WHISKERS = "; whiskers: 95\N{NO-BREAK SPACE}% over cases"


@dataclass(frozen=True, slots=True)
class Price:
    """A method that has both figures. fed: tokens fed a step. whole: no case failed, so it may be compared.

    bounds: the 95 % interval of MAT, NaN where there are too few cases.
    """

    series: Series
    name: str
    fed: float
    mat: float
    whole: bool
    bounds: tuple[float, float]


def find_prices(scene: Scene) -> list[Price]:
    """The points of a scene; peers have none, since their drafts are not recorded."""
    found = []
    for each in scene.series:
        row = each.rows.loc[OVERALL]
        if row[["tokens_fed", "mat"]].notna().all():
            bounds = (float(row["mat_low"]), float(row["mat_high"]))
            part = f" ({row['cases']} of {row['cases'] + row['errors']} cases)" if row["errors"] else ""
            found.append(Price(each, each.name + part, float(row["tokens_fed"]), float(row["mat"]), not part, bounds))
    return found


def draw_front(scene: Scene) -> Figure:
    """Up is better, left is cheaper; the line joins the points that none beats, vanilla the first."""
    entries = find_prices(scene)
    points = [_VANILLA, *((each.fed, each.mat) for each in entries)]
    canvas = Figure(figsize=(3.8, 3.2))
    axes = canvas.add_axes((0, 0, 1, 1))
    _dress_front(axes, points, [bound for each in entries if _bounded(each) for bound in each.bounds])
    fit(canvas)  # names are placed on axes as wide as they stay
    whole = [0, *(place for place, each in enumerate(entries, start=1) if each.whole)]
    front = [whole[place] for place in find_undominated([points[place] for place in whole])]
    axes.step(*zip(*(points[place] for place in front), strict=True), where="post", color="#999999", linewidth=1.2)
    axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    marks = [draw_price_mark(axes, each) for each in entries]
    bars = [((each.fed, each.bounds[0]), (each.fed, each.bounds[1])) for each in entries if _bounded(each)]
    for one, other in pairwise(points[place] for place in front):
        bars += [(one, (other[0], one[1])), ((other[0], one[1]), other)]
    crowded = write_names(axes, points, [VANILLA, *(each.name for each in entries)], front, bars)
    below = {each.series.name: mark for each, mark in zip(entries, marks, strict=True) if each.name in crowded}
    drawn = {each.series.name for each in entries}
    missing = [each.name for each in scene.series if each.name not in drawn]
    note = f"{scene.where}; fed: the last token and every node of the draft; line: what no other beats"
    note += _whisker_note(entries)
    if missing:
        note += f"; left out, MAT or what they feed is not known: {', '.join(missing)}"
    write_head(canvas, "MAT against tokens fed a step", note)
    if below:
        add_legend(canvas, list(below), list(below.values()))
    return canvas


def _bounded(each: Price) -> bool:
    return bool(np.isfinite(each.bounds).all())


def _whisker_note(entries: Sequence[Price]) -> str:
    return _WHISKERS if any(map(_bounded, entries)) else ""


def draw_price_mark(axes: Axes, each: Price) -> Line2D:
    """A method's point, with the whisker of its MAT."""
    if _bounded(each):
        low, high = each.bounds
        axes.vlines(each.fed, low, high, color=each.series.style.colour, linewidth=1.0, zorder=2)
    return draw_mark(axes, (each.fed, each.mat), each.series.style)


def _dress_front(axes: Axes, points: Sequence[tuple[float, float]], bounds: Sequence[float]) -> None:
    most, best = (max(values) for values in zip(*points, strict=True))
    best = max(best, *bounds, best)
    set_log2(axes)
    axes.set_xlim(0.9, most**1.06 * 1.6)
    axes.set_ylim(1 - 0.06 * (best - 0.9), best + 0.16 * (best - 0.9))
    axes.set_xlabel("tokens fed a step")
    axes.set_ylabel("mean accepted tokens (MAT)")
    axes.grid(color=GRID, linewidth=0.6)


@dataclass(frozen=True, slots=True)
class Gain:
    """A method that has both figures, and their 95 % intervals, NaN where there are too few cases."""

    series: Series
    at: Point  # (MAT, speedup)
    mat: Point
    speedup: Point


def find_gains(scene: Scene) -> tuple[str, list[Gain]]:
    """(the speedup that is drawn, its points): as measured, else as predicted; no points where there is neither."""
    for figure in _FRONTIER_TITLES:
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
    figure, gains = find_gains(scene)
    canvas = Figure(figsize=(3.7, 3.2))
    axes = canvas.add_axes((0, 0, 1, 1))
    _dress_frontier(axes, gains)
    axes.set_ylabel(_FRONTIER_LABELS[figure])
    fit(canvas)  # names are placed on axes as wide as they stay
    axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    marks, bars = [], [((axes.get_xlim()[0], 1.0), (axes.get_xlim()[1], 1.0))]
    for gain in gains:
        whiskers = _whisker_lines(gain)
        for (left, low), (right, top) in whiskers:
            axes.plot([left, right], [low, top], color=gain.series.style.colour, linewidth=1.0, zorder=2)
        marks.append(draw_mark(axes, gain.at, gain.series.style))
        bars += whiskers
    names = [gain.series.name for gain in gains]
    crowded = write_names(axes, [_VANILLA, *(gain.at for gain in gains)], [VANILLA, *names], lines=bars)
    below = {name: drawn for name, drawn in zip(names, marks, strict=True) if name in crowded}
    note = f"{scene.where}; grey k: speedup if a step costs k of vanilla's, prefill aside; 1: the frontier"
    note += f"; {scene.profile}" if figure != "speedup" else ""
    note += _WHISKERS if any(map(_whisker_lines, gains)) else ""
    write_head(canvas, _FRONTIER_TITLES[figure], note)
    if below:
        add_legend(canvas, list(below), list(below.values()))
    return canvas


def _whisker_lines(gain: Gain) -> list[tuple[Point, Point]]:
    """The intervals as lines; one without width (a MAT of 1) is none."""
    mat, speedup = gain.at
    lines = (((gain.mat[0], speedup), (gain.mat[1], speedup)), ((mat, gain.speedup[0]), (mat, gain.speedup[1])))
    return [line for line in lines if np.isfinite(line).all() and line[0] != line[1]]


def _dress_frontier(axes: Axes, gains: list[Gain]) -> None:
    """Limits that hold every whisker, and the lines of equal cost that end inside them, each with its cost."""
    corners = np.array(
        [_VANILLA, *(gain.at for gain in gains), *(p for g in gains for line in _whisker_lines(g) for p in line)]
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


def find_predicted(scene: Scene) -> list[tuple[Series, float, float]]:
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


def _predicted_bounds(points: list[tuple[Series, float, float]]) -> list[float]:
    """Low and high of the predicted speedups that have an interval."""
    columns = ["predicted_speedup_low", "predicted_speedup_high"]
    rows = [series.rows.loc[OVERALL, columns].to_list() for series, _, _ in points]
    return [float(bound) for row in rows if np.isfinite(row).all() for bound in row]


def draw_predicted(scene: Scene) -> Figure:
    """Above the diagonal: slower than the forwards and the drafter's own time explain."""
    points = find_predicted(scene)
    canvas = Figure(figsize=(3.3, 3.3))
    axes = canvas.add_axes((0, 0, 1, 1))
    ends = [1.0, *(figure for _, *figures in points for figure in figures), *_predicted_bounds(points)]
    margin = 0.05 * (max(ends) - min(ends))
    low, top = min(ends) - margin, max(ends) + margin
    axes.plot([low, top], [low, top], color="#999999", linewidth=1)
    marks = []
    for series, measured, predicted in points:
        look = series.style
        bounds = _predicted_bounds([(series, measured, predicted)])
        if bounds:
            axes.vlines(measured, bounds[0], bounds[1], color=look.colour, linewidth=1.0)
        marks.append(draw_mark(axes, (measured, predicted), look))
    axes.set_xlim(low, top)
    axes.set_ylim(low, top)
    axes.set_xlabel("measured speedup, decode steps")
    axes.set_ylabel("predicted speedup (modelled)")
    axes.grid(color=GRID, linewidth=0.6)
    note = f"{scene.where}; profile: {scene.profile}; line: equal"
    note += _WHISKERS if _predicted_bounds(points) else ""
    note += "; median absolute error"
    note += f" {100 * median_error(points):.1f}\N{NO-BREAK SPACE}%"
    write_head(canvas, "Predicted against measured speedup", note)
    add_legend(canvas, [series.name for series, _, _ in points], marks)
    return canvas


def draw_price(scene: Scene, profile: Profile, context: int) -> Figure:
    """T(q) / T(1) of a profile as a line, the methods as points at what they feed and their MAT.

    A point above the line gains, before the drafter's own time: it emits more tokens than its forward costs. context:
    tokens in the cache.
    """
    entries = find_prices(scene)
    most = max([2.0, *(each.fed for each in entries)])
    fed = np.geomspace(1.0, 1.3 * most, 200)
    cost = profile.forward_ms(fed, np.full_like(fed, context)) / profile.forward_ms([1.0], [float(context)])
    canvas = Figure(figsize=(3.8, 2.8))
    axes = canvas.add_axes((0, 0, 1, 1))
    (line,) = axes.plot(fed, cost, color="black", linewidth=1.2)
    marks = [draw_price_mark(axes, each) for each in entries]
    set_log2(axes)
    axes.set_ylim(bottom=min(0.9, float(cost.min())))
    axes.set_xlabel("tokens fed a step (q)")
    axes.set_ylabel("MAT, and T(q) / T(1)")
    axes.grid(color=GRID, linewidth=0.6)
    note = f"{scene.where}; line: {profile.label} at context {context}; points above it gain before drafting time"
    write_head(canvas, "What a step emits against what it costs", note)
    add_legend(canvas, ["T(q) / T(1)", *(each.name for each in entries)], [line, *marks])
    return canvas
