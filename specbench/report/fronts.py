"""MAT against what it costs: tokens fed to the target a step, every method a labelled point, the best joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.typing import FillStyleType

from specbench.record import VANILLA
from specbench.report.canvas import GRID, add_legend, fit, head, plain
from specbench.report.choices import undominated
from specbench.report.label import broken
from specbench.report.palette import HATCHES
from specbench.report.scene import Scene
from specbench.report.series import Series
from specbench.report.summary import OVERALL

_INCH = (3.8, 3.2)
_NAME_CHARS = 26
_FONT = 8.0
_LINE = 1.22  # height of a line, in parts of the font's size
_AIR = 2.0  # around a name [points]
_POINT = 7.0  # a marker with its margin [points]
_OFFSETS = (8.0, 22.0)  # of a name from its point [points]
_FILLS: tuple[FillStyleType, ...] = ("full", "none", "left", "bottom")  # in the order of palette.HATCHES
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_VANILLA = (1.0, 1.0)  # one token fed, one emitted

Box = tuple[float, float, float, float]  # left, bottom, right, top [points]


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
    crowded = _name(axes, points, [VANILLA, *(each.name for each in entries)], front, bars)
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
    look = each.series.style
    if _bounded(each):
        low, high = each.bounds
        axes.vlines(each.fed, low, high, color=look.colour, linewidth=1.0, zorder=2)
    (mark,) = axes.plot(each.fed, each.mat, look.marker, color=look.colour, markersize=6, zorder=3)
    mark.set_fillstyle(_FILLS[HATCHES.index(look.hatch)])
    return mark


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


def _name(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    front: Sequence[int],
    bars: Sequence[tuple[tuple[float, float], tuple[float, float]]],
) -> list[str]:
    """Names beside their points, those of the front first; bars: lines, as their ends, that names keep off.

    Returns those for which no place is free.
    """
    scale = 72 / axes.figure.dpi
    places = [(float(x) * scale, float(y) * scale) for x, y in axes.transData.transform(points)]
    taken = [_around(point, point, _POINT / 2) for point in places]
    for bar in bars:
        (left, low), (right, top) = axes.transData.transform(bar) * scale
        taken.append(_around((left, low), (right, top), 1))
    for one, other in pairwise(places[place] for place in front):
        corner = (other[0], one[1])
        taken += [_around(one, corner, 1), _around(corner, other, 1)]
    sheet = (0.0, 0.0, scale * axes.bbox.width, scale * axes.bbox.height)  # the axes fill the figure
    crowded: list[str] = []
    for place in dict.fromkeys((*front, *range(len(points)))):
        text = _lines(names[place])
        box = _free(places[place], text, taken, sheet)
        if box is None:
            crowded.append(names[place])
            continue
        taken.append(box)
        _write(axes, points[place], places[place], box, plain(text))
    return crowded


def _lines(name: str) -> str:
    """A variant under its method, then as it fits."""
    return "\n".join(broken(part, _NAME_CHARS) for part in name.replace(" [", "\n[").replace(" (", "\n(").split("\n"))


def _free(point: tuple[float, float], text: str, taken: Sequence[Box], sheet: Box) -> Box | None:
    """The first place around a point where the text touches nothing."""
    lines = text.split("\n")
    width = max(float(TextPath((0, 0), plain(line), size=_FONT).get_extents().width) for line in lines) + _AIR
    height = _LINE * _FONT * len(lines) + _AIR
    for distance in _OFFSETS:
        for across, along in _SIDES:
            left = point[0] + across * distance - (0 if across > 0 else width if across < 0 else width / 2)
            low = point[1] + along * distance - (0 if along > 0 else height if along < 0 else height / 2)
            box = (left, low, left + width, low + height)
            if _inside(box, sheet) and not any(_meet(box, other) for other in taken):
                return box
    return None


def _around(one: tuple[float, float], other: tuple[float, float], margin: float) -> Box:
    """The box of two points with a margin."""
    left, right = sorted((one[0], other[0]))
    low, high = sorted((one[1], other[1]))
    return (left - margin, low - margin, right + margin, high + margin)


def _inside(box: Box, sheet: Box) -> bool:
    return box[0] >= sheet[0] and box[1] >= sheet[1] and box[2] <= sheet[2] and box[3] <= sheet[3]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _write(axes: Axes, point: tuple[float, float], at: tuple[float, float], box: Box, text: str) -> None:
    """A hair line joins a name to its point where it stands away from it. point: in data; at, box: [points]."""
    shift = ((box[0] + box[2]) / 2 - at[0], (box[1] + box[3]) / 2 - at[1])
    away = _gap(at, box) > _OFFSETS[0] * 1.5
    line = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3} if away else None
    axes.annotate(
        text, point, shift, textcoords="offset points", fontsize=_FONT, ha="center", va="center", arrowprops=line
    )


def _gap(at: tuple[float, float], box: Box) -> float:
    """[points] from a point to a box."""
    across = max(box[0] - at[0], at[0] - box[2], 0.0)
    along = max(box[1] - at[1], at[1] - box[3], 0.0)
    return float(np.hypot(across, along))
