"""Methods as points of a plot: marks that differ without colour too, and names that touch nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.typing import FillStyleType

from specbench.report.plots.canvas import plain
from specbench.report.plots.palette import HATCHES, Style
from specbench.report.text.label import break_lines

_NAME_CHARS = 26
_FONT = 8.0
_LINE = 1.22  # height of a line, in parts of the font's size
_AIR = 2.0  # around a name [points]
_POINT = 7.0  # a marker with its margin [points]
_OFFSETS = (8.0, 22.0)  # of a name from its point [points]
_FILLS: tuple[FillStyleType, ...] = ("full", "none", "left", "bottom")  # in the order of palette.HATCHES
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top [points]


def draw_mark(axes: Axes, at: Point, look: Style) -> Line2D:
    """A method's marker; neighbours differ in shape and filling, too."""
    (drawn,) = axes.plot(*at, look.marker, color=look.colour, markersize=6, zorder=3)
    drawn.set_fillstyle(_FILLS[HATCHES.index(look.hatch)])
    return drawn


def write_names(
    axes: Axes,
    points: Sequence[Point],
    names: Sequence[str],
    first: Sequence[int] = (),
    lines: Sequence[tuple[Point, Point]] = (),
) -> list[str]:
    """Names beside their points. first: places named before the others. lines: as their ends, upright or level,
    that names keep off. The axes fill the figure.

    Returns the names for which no place is free.
    """
    scale = 72 / axes.figure.dpi
    places = [(float(x) * scale, float(y) * scale) for x, y in axes.transData.transform(points)]
    taken = [_around(point, point, _POINT / 2) for point in places]
    for line in lines:
        one, other = axes.transData.transform(line) * scale
        taken.append(_around(one, other, 1))
    sheet = (0.0, 0.0, scale * axes.bbox.width, scale * axes.bbox.height)
    crowded: list[str] = []
    for place in dict.fromkeys((*first, *range(len(points)))):
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
    return "\n".join(
        break_lines(part, _NAME_CHARS) for part in name.replace(" [", "\n[").replace(" (", "\n(").split("\n")
    )


def _free(point: Point, text: str, taken: Sequence[Box], sheet: Box) -> Box | None:
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


def _around(one: Point, other: Point, margin: float) -> Box:
    """The box of two points with a margin."""
    left, right = sorted((one[0], other[0]))
    low, high = sorted((one[1], other[1]))
    return (left - margin, low - margin, right + margin, high + margin)


def _inside(box: Box, sheet: Box) -> bool:
    return box[0] >= sheet[0] and box[1] >= sheet[1] and box[2] <= sheet[2] and box[3] <= sheet[3]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _write(axes: Axes, point: Point, at: Point, box: Box, text: str) -> None:
    """A thin line joins a name to its point where the two are apart. point: in data; at, box: [points]."""
    shift = ((box[0] + box[2]) / 2 - at[0], (box[1] + box[3]) / 2 - at[1])
    away = _gap(at, box) > _OFFSETS[0] * 1.5
    line = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3} if away else None
    axes.annotate(
        text, point, shift, textcoords="offset points", fontsize=_FONT, ha="center", va="center", arrowprops=line
    )


def _gap(at: Point, box: Box) -> float:
    """[points] from a point to a box."""
    across = max(box[0] - at[0], at[0] - box[2], 0.0)
    along = max(box[1] - at[1], at[1] - box[3], 0.0)
    return float(np.hypot(across, along))
