"""Methods as points: MAT against tokens fed and what these cost, and speedup against MAT.

The frontier of speedup against MAT: a method emits MAT tokens a step where vanilla emits one. If
its steps took as long as vanilla's, its speedup would be MAT. On the line k lie speedups of MAT /
k, so that k, what a step costs in vanilla's steps, is the overhead: a wider forward, drafting, and
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.records.record import OVERALL, VANILLA
from specbench.report.frames.sweep import find_undominated
from specbench.report.plots.canvas import REFERENCE, finish, make_sheet, set_log2
from specbench.report.plots.scene import Scene, Series

_VANILLA = (1.0, 1.0)  # one token fed, one emitted
_COSTS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)  # of a step, in vanilla's
_MOST_LINES = 6
_ENDS = ("low", "high")  # of an interval
_GREY: dict[str, Any] = {"textcoords": "offset points", "color": "#777777", "fontsize": 8}
_FRONTIER_TITLES = {
    "speedup": "Speedup against MAT",
    "predicted_speedup": "Predicted speedup against MAT (modelled)",
}
_FRONTIER_LABELS = {"speedup": "speedup over vanilla", "predicted_speedup": "predicted speedup"}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Dot:
    """A method as a point. name: as printed, with its finished cases where some failed. whole: none
    failed.

    whiskers: the ends of its 95 % intervals, of those that have a width (a MAT of 1 has none).
    """

    series: Series
    name: str
    at: Point
    whiskers: tuple[tuple[Point, Point], ...]
    whole: bool


def find_dots(scene: Scene, x: str, y: str) -> list[Dot]:
    """The methods that have the figures x and y, each a column of the summary."""
    found = []
    for series in scene.series:
        row = series.rows.loc[OVERALL]
        if row[[x, y]].notna().all():
            part = (
                f" ({row['cases']} of {row['cases'] + row['errors']} cases)"
                if row["errors"]
                else ""
            )
            at = (float(row[x]), float(row[y]))
            left, right, low, high = (
                float(row.get(f"{name}_{end}", np.nan)) for name in (x, y) for end in _ENDS
            )
            lines = (((left, row[y]), (right, row[y])), ((row[x], low), (row[x], high)))
            whiskers = tuple(
                line for line in lines if np.isfinite(line).all() and line[0] != line[1]
            )
            found.append(Dot(series, series.name + part, at, whiskers, not part))
    return found


def find_gains(scene: Scene) -> tuple[str, list[Dot]]:
    """(the speedup that is drawn, its points against MAT): as measured, else as predicted; no
    points without either.
    """
    for figure in _FRONTIER_TITLES:
        found = find_dots(scene, "mat", figure)
        if found:
            return figure, found
    return "speedup", []


def _corners(dots: Sequence[Dot]) -> list[Point]:
    """All that must lie inside the axes."""
    return [
        *(dot.at for dot in dots),
        *(end for dot in dots for line in dot.whiskers for end in line),
    ]


def _draw_dots(axes: Axes, dots: Sequence[Dot]) -> dict[str, Line2D]:
    """Every method's point with its whiskers; neighbours differ in shape and filling, too. Returns
    name -> mark.
    """
    marks = {}
    for dot in dots:
        look = dot.series.style
        for line in dot.whiskers:
            axes.plot(*zip(*line, strict=True), color=look.colour, linewidth=1.0, zorder=2)
        (mark,) = axes.plot(*dot.at, look.marker, color=look.colour, markersize=6, zorder=3)
        mark.set_fillstyle(look.filling)
        marks[dot.name] = mark
    return marks


def _draw_vanilla(axes: Axes) -> dict[str, Line2D]:
    (mark,) = axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    return {VANILLA: mark}


def _explain(
    canvas: Figure, title: str, note: str, dots: Sequence[Dot], marks: dict[str, Line2D]
) -> Figure:
    bounded = any(dot.whiskers for dot in dots)
    return finish(
        canvas,
        title,
        note + ("; whiskers: 95\N{NO-BREAK SPACE}% over cases" if bounded else ""),
        marks,
    )


def draw_front(scene: Scene) -> Figure | str:
    """Draw MAT against tokens fed: up is better, left cheaper; the line joins the points that none
    beats.
    """
    # peers have none, since their drafts are not recorded
    dots = find_dots(scene, "tokens_fed", "mat")
    if not dots:
        return "what the methods fed is not known"
    canvas, [[axes]] = make_sheet((3.8, 3.2))
    most, best = (max(values) for values in zip(_VANILLA, *_corners(dots), strict=True))
    set_log2(axes)
    axes.set_xlim(0.9, most**1.06 * 1.1)
    axes.set_ylim(1 - 0.06 * (best - 0.9), best + 0.08 * (best - 0.9))
    axes.set_xlabel("tokens fed a step")
    axes.set_ylabel("mean accepted tokens (MAT)")
    axes.grid()
    cost = _draw_cost(axes, scene)
    whole = [_VANILLA, *(dot.at for dot in dots if dot.whole)]
    front = [whole[place] for place in find_undominated(whole)]
    axes.step(*zip(*front, strict=True), where="post", color="#999999", linewidth=1.2)
    marks = _draw_vanilla(axes) | _draw_dots(axes, dots)
    drawn = {dot.series.name for dot in dots}
    missing = [each.name for each in scene.series if each.name not in drawn]
    note = (
        f"{scene.where}; fed: the last token and every node of the draft; line: what no other"
        f" beats{cost}"
    )
    if missing:
        note += f"; left out, MAT or what they feed is not known: {', '.join(missing)}"
    return _explain(canvas, "MAT against tokens fed a step", note, dots, marks)


def _draw_cost(axes: Axes, scene: Scene) -> str:
    """T(q) / T(1) of the latency profile, a method above which gains; what the note says of it, ''
    without one.
    """
    if scene.priced is None:
        return ""
    profile, context = scene.priced
    fed = np.geomspace(1.0, axes.get_xlim()[1], 200)
    cost = profile.forward_ms(fed, np.full_like(fed, context)) / profile.forward_ms(
        [1.0], [float(context)]
    )
    axes.plot(fed, cost, color="black", linewidth=1.2, linestyle=":")
    return (
        f"; dotted: T(q) / T(1), {profile.label}, context {context}: points above it gain before"
        " drafting time"
    )


def draw_frontier(scene: Scene) -> Figure | str:
    """Draw speedup against MAT: the further below the first line, the more a step costs."""
    figure, gains = find_gains(scene)
    if not gains:
        return "no method has both"
    canvas, [[axes]] = make_sheet((3.7, 3.2))
    _dress_frontier(axes, gains)
    axes.set_ylabel(_FRONTIER_LABELS[figure])
    marks = _draw_vanilla(axes) | _draw_dots(axes, gains)
    note = (
        f"{scene.where}; grey k: speedup if a step costs k of vanilla's, prefill aside; 1: the"
        " frontier"
    )
    note += f"; {scene.profile}" if figure != "speedup" else ""
    return _explain(canvas, _FRONTIER_TITLES[figure], note, gains, marks)


def _dress_frontier(axes: Axes, gains: list[Dot]) -> None:
    """Limits that contain every whisker, and the lines of equal cost that end inside them, each
    with its cost.
    """
    corners = np.array([_VANILLA, *_corners(gains)])
    (left, low), (right, top) = corners.min(axis=0), corners.max(axis=0)
    left, right = min(0.9, left), right + 0.08 * (right - min(0.9, left))
    top *= 1.12
    axes.set_xlim(left, right)
    axes.set_ylim(0.8 * low, top)
    axes.set_xlabel("mean accepted tokens (MAT)")
    axes.grid()
    axes.axhline(1.0, **REFERENCE, zorder=1)
    # the last line is the first that no method exceeds
    worst = max(gain.at[0] / gain.at[1] for gain in gains)
    needed = [cost for cost, before in zip(_COSTS, (0.0, *_COSTS), strict=False) if before < worst]
    for cost in (1.0, *needed[1:][-(_MOST_LINES - 1) :]):
        axes.plot(
            [0, right],
            [0, right / cost],
            color="#999999",
            linewidth=1.6 if cost == 1 else 0.7,
            zorder=1,
        )
        if right / cost > top:
            axes.annotate(f"{cost:g}", (top * cost, top), (0, 2), ha="center", va="bottom", **_GREY)
        else:
            axes.annotate(
                f"{cost:g}", (right, right / cost), (3, 0), ha="left", va="center", **_GREY
            )
