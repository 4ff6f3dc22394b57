"""Bar plots: one figure of all methods (horizontal, so that long names fit), and grouped by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.report.data.rows import mark_few
from specbench.report.plots.canvas import GRID, REFERENCE, add_legend, inner_inch, plain, write_head
from specbench.report.plots.scene import Series
from specbench.report.text.label import break_lines
from specbench.stats import MIN_CASES

_WHISKER = {"ecolor": "#333333", "elinewidth": 0.9, "capsize": 1.6}
_OVER_LINE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # a figure stays legible on the dashed line
_WIDTH_INCH = 3.9
_AXIS_INCH = 0.3  # beside the bars of a narrow sheet
_NAME_CHARS = 24
_BAR_INCH = 0.075  # the narrowest that shows its hatch in a column
_GROUP_SHARE = 0.84  # of a group, its bars
_GROUP_CHARS, _CHAR_INCH, _ROW_INCH = 13, 0.065, 1.5


def draw_bars(series: Sequence[Series], figure: str, category: str, title: str, where: str) -> Figure:
    """One horizontal bar a method for one category, its value beside it; NaN leaves the row empty with n/a."""
    canvas = Figure(figsize=(_WIDTH_INCH, 0.3))
    axes = canvas.add_axes((0, 0, 1, 1))  # names and title lie outside; saving grows the paper to hold them
    values, errors = _figures(series, figure, category)
    texts = [_spell(entry, figure, category) for entry in series]
    names = [plain(break_lines(entry.name, _NAME_CHARS)) for entry in series]
    canvas.set_figheight(max(0.3, 0.15 * max(name.count("\n") + 1 for name in names)) * len(series) + 0.1)
    places = np.arange(len(series))
    axes.barh(places, np.nan_to_num(values), height=0.66, xerr=errors, error_kw=_WHISKER, **_looks(series))
    axes.set_yticks(places, names)
    axes.set_ylim(len(series) - 0.35, -0.65)
    tops = np.nan_to_num(values) + np.nan_to_num(errors[1])
    axes.set_xlim(0, 1.12 * max(1.0, tops.max()))
    for place, text, top in zip(places, texts, tops, strict=True):
        axes.annotate(text, (top, place), (5, 0), textcoords="offset points", va="center", fontsize=8, bbox=_OVER_LINE)
    axes.axvline(1.0, **REFERENCE)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    _explain(canvas, title, where, bool(np.isfinite(errors).any()), any(text.startswith("(") for text in texts))
    return canvas


def draw_groups(series: Sequence[Series], figure: str, categories: Sequence[str], title: str, where: str) -> Figure:
    """Vertical bars grouped by category, on as many rows as legible bars need, the legend below."""
    marked = [_bracket(series, category) for category in categories]
    names = [break_lines(name, _GROUP_CHARS) for name in marked]
    rows = _rows(len(series), names)
    longest = max(map(len, rows))
    canvas = Figure(figsize=(_WIDTH_INCH, _ROW_INCH * len(rows)))
    sheets = canvas.subplots(len(rows), 1, sharey=True, squeeze=False)[:, 0]
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0.36)
    spread, handles = False, []
    for axes, row in zip(sheets, rows, strict=True):
        drawn, bounded = _groups(axes, series, figure, [categories[place] for place in row])
        spread, handles = spread or bounded, drawn
        axes.set_xticks(range(len(row)), [plain(names[place]) for place in row])
        axes.set_xlim(-0.5, longest - 0.5)
        if len(categories) > 1 and row is rows[-1]:
            axes.axvline(len(row) - 1.5, color="#bbbbbb", linewidth=0.8)  # a rule before overall, the last
    _explain(canvas, title, where, spread, marked != list(categories))
    add_legend(canvas, [entry.name for entry in series], handles)
    return canvas


def _bracket(series: Sequence[Series], category: str) -> str:
    """A category's name, in brackets where no method has enough cases in it for an interval."""
    cases = [entry.rows.loc[category, "cases"] for entry in series if category in entry.rows.index]
    return mark_few(category, {"cases": max(cases)} if cases else {})


def _rows(bars: int, names: Sequence[str]) -> list[range]:
    """Places of the categories row by row, alike in number; bars: in a group."""
    longest = max(len(line) for name in names for line in name.split("\n"))
    group_inch = max(_BAR_INCH * bars / _GROUP_SHARE, _CHAR_INCH * longest + 0.06)
    most = max(1, int(min(_WIDTH_INCH, inner_inch() - _AXIS_INCH) / group_inch))
    each = -(-len(names) // -(-len(names) // most))
    return [range(start, min(start + each, len(names))) for start in range(0, len(names), each)]


def _groups(axes: Axes, series: Sequence[Series], figure: str, categories: Sequence[str]) -> tuple[list[Any], bool]:
    """The bars of one row. Returns a handle a method, and whether any has an interval."""
    bar = min(_GROUP_SHARE / len(series), 0.3)
    centres = np.arange(len(categories))
    spread, handles = False, []
    for place, entry in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * bar
        figures = [_figures([entry], figure, category) for category in categories]
        values = np.array([value[0] for value, _ in figures])
        errors = np.concatenate([error for _, error in figures], axis=1)
        spread = spread or bool(np.isfinite(errors).any())
        handles.append(axes.bar(centres + shift, values, bar, yerr=errors, error_kw=_WHISKER, **_looks([entry])))
    axes.axhline(1.0, **REFERENCE)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.tick_params(axis="x", length=0)
    return handles, spread


def _figures(series: Sequence[Series], figure: str, category: str) -> tuple[np.ndarray, np.ndarray]:
    """(S,) values and (2, S) whisker lengths down and up; no whisker where there is no interval."""
    columns = [figure, f"{figure}_low", f"{figure}_high"]
    blank = [float("nan")] * 3
    rows = [list(entry.rows.loc[category, columns]) if category in entry.rows.index else blank for entry in series]
    value, low, high = np.array(rows, dtype=float).T
    return value, np.stack([value - low, high - value])


def _spell(entry: Series, figure: str, category: str) -> str:
    """The figure beside its bar, in brackets as tables have those of too few cases."""
    row = entry.rows.loc[category].to_dict() if category in entry.rows.index else {figure: float("nan")}
    return "n/a" if np.isnan(row[figure]) else mark_few(f"{row[figure]:.2f}", row)


def _looks(series: Sequence[Series]) -> dict[str, Any]:
    return {
        "color": [entry.style.colour for entry in series],
        "hatch": [entry.style.hatch for entry in series],
        "edgecolor": "white",
        "linewidth": 0.3,
    }


def _explain(canvas: Figure, title: str, where: str, spread: bool, few: bool) -> None:
    """The title, and under it what was measured and what line, whiskers and brackets mean."""
    whiskers = "whiskers: 95\N{NO-BREAK SPACE}% bootstrap over cases" if spread else "too few cases for intervals"
    brackets = f"; in brackets: fewer than {MIN_CASES} cases" if few else ""
    write_head(canvas, title, f"{where}; dashed: vanilla; {whiskers}{brackets}")
