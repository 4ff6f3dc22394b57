"""Bar plots: one figure of all methods (horizontal, so that long names fit), and grouped by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.records.record import OVERALL
from specbench.report.label import break_lines
from specbench.report.plots.canvas import REFERENCE, finish, inner_inch, make_rows, make_sheet, plain, write_ends
from specbench.report.plots.scene import Scene, Series
from specbench.report.table import mark_few
from specbench.stats import MIN_CASES

_WHISKER = {"ecolor": "#333333", "elinewidth": 0.9, "capsize": 1.6}
_WIDTH_INCH = 3.9
_AXIS_INCH = 0.3  # beside the bars of a narrow sheet
_BAR_INCH = 0.075  # the narrowest that shows its hatch in a column
_GROUP_SHARE = 0.84  # of a group, its bars
MOST_CATEGORIES = 40  # in a plot; more cannot be told apart
HEADINGS = {
    "speedup": "Speedup over vanilla",
    "mat": "Mean accepted tokens (MAT)",
    "predicted_speedup": "Predicted speedup (modelled)",
}
_GROUP_CHARS, _CHAR_INCH, _ROW_INCH = 13, 0.065, 1.5


def draw_bars(scene: Scene, figure: str) -> Figure | str:
    """One horizontal bar a method, its value beside it; NaN leaves the row empty with n/a."""
    if reason := missing(scene, figure):
        return reason
    canvas, axes = make_rows([entry.name for entry in scene.series])
    values, errors = _figures(scene.series, figure, OVERALL)
    texts = [_spell(entry, figure) for entry in scene.series]
    places = np.arange(len(values))
    axes.barh(places, np.nan_to_num(values), height=0.66, xerr=errors, error_kw=_WHISKER, **_looks(scene.series))
    tops = np.nan_to_num(values) + np.nan_to_num(errors[1])
    axes.set_xlim(0, 1.12 * max(1.0, tops.max()))
    write_ends(axes, tops.tolist(), texts)
    axes.axvline(1.0, **REFERENCE)
    where = f"{scene.where}; modelled with {scene.profile}" if figure == "predicted_speedup" else scene.where
    spread, few = bool(np.isfinite(errors).any()), any(text.startswith("(") for text in texts)
    return finish(canvas, HEADINGS[figure], _explain(where, spread, few, scene.loaded))


def missing(scene: Scene, figure: str) -> str:
    """Why the figure has no plot; '' where it has one."""
    if figure == "speedup" and not scene.timed:
        return "the target was replayed and has no times"
    if figure == "speedup" and scene.time_only:
        return "time only: accepted lengths were replayed, no speedup is claimed"
    known = any(series.rows[figure].notna().any() for series in scene.series)
    return "" if known else f"{figure} blank for every method"


def too_many(scene: Scene) -> str:
    """Why there is no plot by category; '' where there is one."""
    count = len(scene.categories)
    return (
        f"{count} categories, at most {MOST_CATEGORIES} are drawn; summary.csv has them"
        if count > MOST_CATEGORIES
        else ""
    )


def draw_groups(scene: Scene, figure: str) -> Figure | str:
    """Vertical bars grouped by category, on as many rows as legible bars need, the legend below."""
    if reason := too_many(scene) or missing(scene, figure):
        return reason
    series = scene.series
    categories = (*scene.categories, OVERALL) if len(scene.categories) > 1 else scene.categories
    marked = [_bracket(series, category) for category in categories]
    names = [break_lines(name, _GROUP_CHARS) for name in marked]
    rows = _rows(len(series), names)
    longest = max(map(len, rows))
    canvas, sheets = make_sheet((_WIDTH_INCH, _ROW_INCH * len(rows)), len(rows), 1, (0.0, 0.36), sharey=True)
    spread, handles = False, []
    for axes, row in zip(sheets.flat, rows, strict=True):
        drawn, bounded = _groups(axes, series, figure, [categories[place] for place in row])
        spread, handles = spread or bounded, drawn
        axes.set_xticks(range(len(row)), [plain(names[place]) for place in row])
        axes.set_xlim(-0.5, longest - 0.5)
        if len(categories) > 1 and row is rows[-1]:
            axes.axvline(len(row) - 1.5, color="#bbbbbb", linewidth=0.8)  # a rule before overall, the last
    legend = dict(zip([entry.name for entry in series], handles, strict=True))
    note = _explain(scene.where, spread, marked != list(categories), scene.loaded)
    return finish(canvas, f"{HEADINGS[figure]} by category", note, legend)


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
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)
    return handles, spread


def _figures(series: Sequence[Series], figure: str, category: str) -> tuple[np.ndarray, np.ndarray]:
    """(S,) values and (2, S) whisker lengths down and up; no whisker where there is no interval."""
    columns = [figure, f"{figure}_low", f"{figure}_high"]
    blank = [float("nan")] * 3
    rows = [list(entry.rows.loc[category, columns]) if category in entry.rows.index else blank for entry in series]
    value, low, high = np.array(rows, dtype=float).T
    return value, np.stack([value - low, high - value])


def _spell(entry: Series, figure: str) -> str:
    """The figure beside its bar, in brackets as tables have those of too few cases."""
    row = entry.rows.loc[OVERALL].to_dict() if OVERALL in entry.rows.index else {figure: float("nan")}
    return "n/a" if np.isnan(row[figure]) else mark_few(f"{row[figure]:.2f}", row)


def _looks(series: Sequence[Series]) -> dict[str, Any]:
    return {
        "color": [entry.style.colour for entry in series],
        "hatch": [entry.style.hatch for entry in series],
        "edgecolor": "white",
        "linewidth": 0.3,
    }


def _explain(where: str, spread: bool, few: bool, loaded: bool) -> str:
    """What was measured, and what line, whiskers and brackets mean. loaded: cases slowed each other."""
    none = "no intervals: cases under load slow each other" if loaded else "too few cases for intervals"
    whiskers = "whiskers: 95\N{NO-BREAK SPACE}% bootstrap over cases" if spread else none
    brackets = f"; in brackets: fewer than {MIN_CASES} cases" if few else ""
    return f"{where}; dashed: vanilla; {whiskers}{brackets}"
