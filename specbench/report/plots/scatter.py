"""MAT against what it costs: tokens fed to the target a step, every method a labelled point, the best joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from specbench.record import OVERALL, VANILLA
from specbench.report.data.choices import undominated
from specbench.report.plots.canvas import GRID, add_legend, fit, head
from specbench.report.plots.points import mark, write_names
from specbench.report.plots.scene import Scene, Series

_INCH = (3.8, 3.2)
_VANILLA = (1.0, 1.0)  # one token fed, one emitted


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


def priced(scene: Scene) -> list[Price]:
    """The points of a scene; a peer, whose drafts nobody saw, is none."""
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
    entries = priced(scene)
    points = [_VANILLA, *((each.fed, each.mat) for each in entries)]
    canvas = Figure(figsize=_INCH)
    axes = canvas.add_axes((0, 0, 1, 1))
    _dress(axes, points, [bound for each in entries if _bounded(each) for bound in each.bounds])
    fit(canvas)  # names are placed on axes as wide as they stay
    whole = [0, *(place for place, each in enumerate(entries, start=1) if each.whole)]
    front = [whole[place] for place in undominated([points[place] for place in whole])]
    axes.step(*zip(*(points[place] for place in front), strict=True), where="post", color="#999999", linewidth=1.2)
    axes.plot(*_VANILLA, "x", color="black", markersize=6, zorder=3)
    marks = [mark_of(axes, each) for each in entries]
    bars = [((each.fed, each.bounds[0]), (each.fed, each.bounds[1])) for each in entries if _bounded(each)]
    for one, other in pairwise(points[place] for place in front):
        bars += [(one, (other[0], one[1])), ((other[0], one[1]), other)]
    crowded = write_names(axes, points, [VANILLA, *(each.name for each in entries)], front, bars)
    below = {each.series.name: mark for each, mark in zip(entries, marks, strict=True) if each.name in crowded}
    drawn = {each.series.name for each in entries}
    missing = [each.name for each in scene.series if each.name not in drawn]
    note = f"{scene.where}; fed: the last token and every node of the draft; line: what no other beats"
    note += _whiskers(entries)
    if missing:
        note += f"; left out, MAT or what they feed is not known: {', '.join(missing)}"
    head(canvas, "MAT against tokens fed a step", note)
    if below:
        add_legend(canvas, list(below), list(below.values()))
    return canvas


def _bounded(each: Price) -> bool:
    return bool(np.isfinite(each.bounds).all())


def _whiskers(entries: Sequence[Price]) -> str:
    return "; whiskers: 95\N{NO-BREAK SPACE}% over cases" if any(map(_bounded, entries)) else ""


def mark_of(axes: Axes, each: Price) -> Line2D:
    """A method's point, with the whisker of its MAT."""
    if _bounded(each):
        low, high = each.bounds
        axes.vlines(each.fed, low, high, color=each.series.style.colour, linewidth=1.0, zorder=2)
    return mark(axes, (each.fed, each.mat), each.series.style)


def _dress(axes: Axes, points: Sequence[tuple[float, float]], bounds: Sequence[float]) -> None:
    most, best = (max(values) for values in zip(*points, strict=True))
    best = max(best, *bounds, best)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9, most**1.06 * 1.6)
    axes.set_ylim(1 - 0.06 * (best - 0.9), best + 0.16 * (best - 0.9))
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("tokens fed a step")
    axes.set_ylabel("mean accepted tokens (MAT)")
    axes.grid(color=GRID, linewidth=0.6)
