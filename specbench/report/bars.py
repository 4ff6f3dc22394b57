"""Bar plots: one figure of all methods (bars lie, so that long names fit), and grouped by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.report.canvas import GRID, head, plain
from specbench.report.label import broken
from specbench.report.series import Series

_WHISKER = {"ecolor": "#333333", "elinewidth": 0.9, "capsize": 2.0}
_OVER_LINE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # a figure stays legible on the dashed line
_BAR_INCH, _GAP_INCH, _CHAR_INCH = 0.17, 0.35, 0.085
_LEGEND_CHARS = 34
_WIDTH_INCH = 5.0


def draw_bars(series: Sequence[Series], figure: str, category: str, title: str, where: str) -> Figure:
    """One lying bar a method for one category, its value beside it; NaN leaves the row empty and says n/a."""
    canvas = Figure(figsize=(_WIDTH_INCH, 0.36 * len(series) + 0.1))
    axes = canvas.add_axes((0, 0, 1, 1))  # names and title lie outside; saving grows the paper to hold them
    values, errors = _figures(series, figure, category)
    names = [plain(broken(entry.name, _LEGEND_CHARS)) for entry in series]
    places = np.arange(len(series))
    axes.barh(places, np.nan_to_num(values), height=0.66, xerr=errors, error_kw=_WHISKER, **_looks(series))
    axes.set_yticks(places, names)
    axes.set_ylim(len(series) - 0.35, -0.65)
    tops = np.nan_to_num(values) + np.nan_to_num(errors[1])
    axes.set_xlim(0, 1.12 * max(1.0, tops.max()))
    for place, value, top in zip(places, values, tops, strict=True):
        text = "n/a" if np.isnan(value) else f"{value:.2f}"
        axes.annotate(
            text, (top, place), (5, 0), textcoords="offset points", va="center", fontsize=8.5, bbox=_OVER_LINE
        )
    axes.axvline(1.0, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    _explain(axes, title, where, _WIDTH_INCH, bool(np.isfinite(errors).any()))
    return canvas


def draw_groups(series: Sequence[Series], figure: str, categories: Sequence[str], title: str, where: str) -> Figure:
    """Standing bars grouped by category, a colour a method, the legend below."""
    longest = max(len(category) for category in categories)
    group_inch = max(_BAR_INCH * len(series) + _GAP_INCH, _CHAR_INCH * longest + 0.1)
    width_inch = max(6.4, group_inch * len(categories))
    canvas = Figure(figsize=(width_inch, 3.4))
    axes = canvas.add_subplot()
    bar = min(0.8 / len(series), 0.3)
    centres = np.arange(len(categories))
    spread, handles = False, []
    for place, entry in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * bar
        figures = [_figures([entry], figure, category) for category in categories]
        values = np.array([value[0] for value, _ in figures])
        errors = np.concatenate([error for _, error in figures], axis=1)
        spread = spread or bool(np.isfinite(errors).any())
        bars = axes.bar(centres + shift, values, bar * 0.92, yerr=errors, error_kw=_WHISKER, **_looks([entry]))
        handles.append(bars)
    axes.set_xticks(centres, [plain(category) for category in categories])
    axes.set_xlim(-0.6, len(categories) - 0.4)
    if len(categories) > 1:
        axes.axvline(len(categories) - 1.5, color="#bbbbbb", linewidth=0.8)  # overall, the last, stands apart
    axes.axhline(1.0, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.tick_params(axis="x", length=0)
    _explain(axes, title, where, 0.77 * width_inch, spread)
    add_legend(canvas, series, handles, width_inch)
    return canvas


def add_legend(
    canvas: Figure, series: Sequence[Series], handles: Sequence[Any], width_inch: float, gap: float = -0.02
) -> None:
    """A legend under the axes, in as many columns as the width holds. gap: below the figure's edge, of its height."""
    names = [plain(broken(entry.name, _LEGEND_CHARS)) for entry in series]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = int(np.clip(width_inch / (0.07 * longest + 0.6), 1, len(series)))
    canvas.legend(
        list(handles),
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, -gap),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=2.8,
    )


def _figures(series: Sequence[Series], figure: str, category: str) -> tuple[np.ndarray, np.ndarray]:
    """(S,) values and (2, S) whisker lengths down and up; no whisker where there is no interval."""
    columns = [figure, f"{figure}_low", f"{figure}_high"]
    blank = [float("nan")] * 3
    rows = [list(entry.rows.loc[category, columns]) if category in entry.rows.index else blank for entry in series]
    value, low, high = np.array(rows, dtype=float).T
    return value, np.stack([value - low, high - value])


def _looks(series: Sequence[Series]) -> dict[str, Any]:
    return {
        "color": [entry.style.colour for entry in series],
        "hatch": [entry.style.hatch for entry in series],
        "edgecolor": "white",
        "linewidth": 0.0,
    }


def _explain(axes: Axes, title: str, where: str, width_inch: float, spread: bool) -> None:
    """The title, and under it what was measured and what line and whiskers mean."""
    whiskers = "whiskers: 95\N{NO-BREAK SPACE}% bootstrap over cases" if spread else "too few cases for intervals"
    head(axes, title, f"{where}; dashed: vanilla; {whiskers}", width_inch)
