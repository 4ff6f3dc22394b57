"""A radar of the categories, a panel a figure: the shape shows where a method helps, the ring at 1 is vanilla."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from specbench.report.plots.bars import HEADINGS, missing, too_many
from specbench.report.plots.canvas import REFERENCE, finish, make_sheet, plain
from specbench.report.plots.scene import Scene, Series

_MIN_AXES = 3
_GRID = "#dddddd"
_PANEL_INCH = 2.3  # diameter
_GAP_INCH = 0.85  # between two circles: names and a title
_LABEL_CHARS = 14


def draw_radar(scene: Scene) -> Figure | str:
    """A category that a method did not finish leaves a gap in its line."""
    if reason := too_many(scene):
        return reason
    if len(scene.categories) < _MIN_AXES:
        return f"{len(scene.categories)} categories, a radar needs {_MIN_AXES}"
    panels = [figure for figure in HEADINGS if not missing(scene, figure)]
    if not panels:
        return f"{' and '.join(HEADINGS)} blank for every method"
    height = _PANEL_INCH * len(panels) + _GAP_INCH * (len(panels) - 1)
    gap = 0.0, _GAP_INCH / _PANEL_INCH
    canvas, sheets = make_sheet((_PANEL_INCH, height), len(panels), 1, gap, subplot_kw={"projection": "polar"})
    for axes, figure in zip(sheets.flat, panels, strict=True):
        lines = _panel(axes, scene.series, figure, scene.categories)
        axes.set_title(plain(HEADINGS[figure]), fontweight="bold", fontsize=8.5, pad=22)
    note = f"{scene.where}; dashed ring: vanilla; intervals: in the bars by category"
    legend = dict(zip([entry.name for entry in scene.series], lines, strict=True))
    return finish(canvas, "By category", note, legend)


def _panel(axes: PolarAxes, series: Sequence[Series], figure: str, categories: Sequence[str]) -> list[Any]:
    angles = np.linspace(0, 2 * np.pi, len(categories), endpoint=False)
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    lines: list[Any] = []
    top = 1.0
    for entry in series:
        values = entry.rows[figure].reindex(list(categories)).to_numpy(dtype=float)
        top = max(top, float(np.nanmax(values, initial=0.0)))
        look = entry.style
        lines += axes.plot(
            np.append(angles, angles[0]),
            np.append(values, values[0]),
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=3.5,
            linewidth=1.5,
        )
    ring = np.linspace(0, 2 * np.pi, 200)
    axes.plot(ring, np.ones_like(ring), **REFERENCE)
    axes.set_ylim(0, top * 1.05)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, top)
    axes.set_yticks([tick for tick in ticks if 0 < tick <= top])
    axes.set_rlabel_position(180 / len(categories))  # between the first two spokes, off the lines' corners
    axes.tick_params(axis="y", labelsize=8, labelcolor="#666666")
    for text in axes.get_yticklabels():
        text.set_bbox({"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6})
    axes.grid(color=_GRID, linewidth=0.6)
    axes.spines["polar"].set_color(_GRID)
    _name_spokes(axes, angles, categories)
    return lines


def _name_spokes(axes: PolarAxes, angles: np.ndarray, categories: Sequence[str]) -> None:
    """Names outside the circle, turned away from it: those on the right start at it, those on the left end at it."""
    axes.set_xticks(angles, [])
    for angle, category in zip(angles, categories, strict=True):
        side, height = np.sin(angle), np.cos(angle)
        across = "center" if abs(side) < 0.2 else "left" if side > 0 else "right"
        along = "center" if abs(height) < 0.8 else "bottom" if height > 0 else "top"
        axes.annotate(
            plain("\n".join(textwrap.wrap(category, _LABEL_CHARS, break_on_hyphens=False))),
            (float(angle), axes.get_rmax()),
            (7 * side, 7 * height),
            textcoords="offset points",
            ha=across,
            va=along,
            fontsize=8,
            annotation_clip=False,
        )
