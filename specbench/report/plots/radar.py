"""A radar of the categories, a panel a figure: the shape shows where a method helps, the ring at 1 is vanilla."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from specbench.report.plots.canvas import GRID, REFERENCE, add_legend, plain, write_head
from specbench.report.plots.scene import Series

MIN_AXES = 3
_PANEL_INCH = 2.3  # diameter
_GAP_INCH = 0.85  # between two circles: names and a title
_LABEL_CHARS = 14


def draw_radar(series: Sequence[Series], panels: Mapping[str, str], categories: Sequence[str], where: str) -> Figure:
    """panels: figure -> title. A category that a method did not finish leaves a gap in its line."""
    height = _PANEL_INCH * len(panels) + _GAP_INCH * (len(panels) - 1)
    canvas = Figure(figsize=(_PANEL_INCH, height))
    canvas.subplots_adjust(left=0, right=1, top=1, bottom=0, hspace=_GAP_INCH / _PANEL_INCH)
    for place, (figure, title) in enumerate(panels.items(), start=1):
        axes = canvas.add_subplot(len(panels), 1, place, projection="polar")
        assert isinstance(axes, PolarAxes)
        lines = _panel(axes, series, figure, categories)
        axes.set_title(plain(title), fontweight="bold", fontsize=8.5, pad=22)
    write_head(canvas, "By category", f"{where}; dashed ring: vanilla; intervals: in the bars by category")
    add_legend(canvas, [entry.name for entry in series], lines)
    return canvas


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
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines["polar"].set_color(GRID)
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
