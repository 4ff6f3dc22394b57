"""Bars of methods: one figure, a figure by category (also as a radar), the phases of a step, the
sources of drafts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from specbench.records.record import CONTROL, DRAFTER_PHASES, OVERALL, PHASES, VANILLA
from specbench.report.label import break_lines, format_rate, format_share
from specbench.report.plots.canvas import (
    REFERENCE,
    finish,
    inner_inch,
    make_rows,
    make_sheet,
    plain,
    write_ends,
)
from specbench.report.plots.scene import PARTS, Scene, Series, Style, style_of
from specbench.report.table import mark_few
from specbench.stats import MIN_CASES

_WHISKER = {"ecolor": "#333333", "elinewidth": 0.9, "capsize": 1.6}
_WIDTH_INCH = 3.9
_AXIS_INCH = 0.3  # next to the bars of a narrow sheet
_BAR_INCH = 0.075  # the narrowest that shows its hatch in a column
_GROUP_SHARE = 0.84  # of a group, its bars
MOST_CATEGORIES = 40  # in a plot; more cannot be distinguished
HEADINGS = {
    "speedup": "Speedup over vanilla",
    "mat": "Mean accepted tokens (MAT)",
    "predicted_speedup": "Predicted speedup (modelled)",
}
_GROUP_CHARS, _CHAR_INCH, _ROW_INCH = 13, 0.065, 1.5


def draw_bars(scene: Scene, figure: str) -> Figure | str:
    """One horizontal bar a method, its value next to it; NaN leaves the row empty with n/a."""
    if reason := missing(scene, figure):
        return reason
    canvas, axes = make_rows([entry.name for entry in scene.series])
    values, errors = _figures(scene.series, figure, OVERALL)
    rows = [
        entry.rows.loc[OVERALL].to_dict() if OVERALL in entry.rows.index else {}
        for entry in scene.series
    ]
    texts = [
        "n/a" if np.isnan(v) else mark_few(f"{v:.2f}", row)
        for v, row in zip(values, rows, strict=True)
    ]
    places = np.arange(len(values))
    axes.barh(
        places,
        np.nan_to_num(values),
        height=0.66,
        xerr=errors,
        error_kw=_WHISKER,
        **_looks(scene.series),
    )
    tops = np.nan_to_num(values) + np.nan_to_num(errors[1])
    axes.set_xlim(0, 1.12 * max(1.0, tops.max()))
    write_ends(axes, tops.tolist(), texts)
    axes.axvline(1.0, **REFERENCE)
    where = (
        f"{scene.where}; modelled with {scene.profile}"
        if figure == "predicted_speedup"
        else scene.where
    )
    spread, few = bool(np.isfinite(errors).any()), any(text.startswith("(") for text in texts)
    return finish(canvas, HEADINGS[figure], _explain(where, spread, few, scene.loaded))


def missing(scene: Scene, figure: str) -> str:
    """Why the figure has no plot; '' if it has one."""
    if figure == "speedup" and not scene.timed:
        return "the target was replayed and has no times"
    if figure == "speedup" and scene.time_only:
        return "time only: accepted lengths were replayed, no speedup is claimed"
    known = any(series.rows[figure].notna().any() for series in scene.series)
    return "" if known else f"{figure} blank for every method"


def too_many(scene: Scene) -> str:
    """Why there is no plot by category; '' if there is one."""
    count = len(scene.categories)
    some = f"{count} categories, at most {MOST_CATEGORIES} are drawn; summary.csv has them"
    return some if count > MOST_CATEGORIES else ""


def draw_groups(scene: Scene, figure: str) -> Figure | str:
    """Vertical bars grouped by category, on as many rows as legible bars need, the legend below."""
    if reason := too_many(scene) or missing(scene, figure):
        return reason
    series = scene.series
    categories = (*scene.categories, OVERALL) if len(scene.categories) > 1 else scene.categories
    names, few = [], False  # in brackets if no method has enough cases for an interval
    for category in categories:
        cases = [
            entry.rows.loc[category, "cases"] for entry in series if category in entry.rows.index
        ]
        name = break_lines(category, _GROUP_CHARS)
        names.append(mark_few(name, {"cases": max(cases)} if cases else {}))
        few |= names[-1] != name
    rows = _rows(len(series), names)
    longest = max(map(len, rows))
    canvas, sheets = make_sheet(
        (_WIDTH_INCH, _ROW_INCH * len(rows)), len(rows), 1, (0.0, 0.36), sharey=True
    )
    spread, handles = False, []
    for axes, row in zip(sheets.flat, rows, strict=True):
        drawn, bounded = _groups(axes, series, figure, [categories[place] for place in row])
        spread, handles = spread or bounded, drawn
        axes.set_xticks(range(len(row)), [plain(names[place]) for place in row])
        axes.set_xlim(-0.5, longest - 0.5)
        if len(categories) > 1 and row is rows[-1]:
            # a rule before overall, the last
            axes.axvline(len(row) - 1.5, color="#bbbbbb", linewidth=0.8)
    legend = dict(zip([entry.name for entry in series], handles, strict=True))
    note = _explain(scene.where, spread, few, scene.loaded)
    return finish(canvas, f"{HEADINGS[figure]} by category", note, legend)


def _rows(bars: int, names: Sequence[str]) -> list[range]:
    """Places of the categories row by row, alike in number; bars: in a group."""
    longest = max(len(line) for name in names for line in name.split("\n"))
    group_inch = max(_BAR_INCH * bars / _GROUP_SHARE, _CHAR_INCH * longest + 0.06)
    most = max(1, int(min(_WIDTH_INCH, inner_inch() - _AXIS_INCH) / group_inch))
    each = -(-len(names) // -(-len(names) // most))
    return [range(start, min(start + each, len(names))) for start in range(0, len(names), each)]


def _groups(
    axes: Axes, series: Sequence[Series], figure: str, categories: Sequence[str]
) -> tuple[list[Any], bool]:
    """The bars of one row. Returns one handle per method, and whether any has an interval."""
    bar = min(_GROUP_SHARE / len(series), 0.3)
    centres = np.arange(len(categories))
    spread, handles = False, []
    for place, entry in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * bar
        figures = [_figures([entry], figure, category) for category in categories]
        values = np.array([value[0] for value, _ in figures])
        errors = np.concatenate([error for _, error in figures], axis=1)
        spread = spread or bool(np.isfinite(errors).any())
        handles.append(
            axes.bar(
                centres + shift, values, bar, yerr=errors, error_kw=_WHISKER, **_looks([entry])
            )
        )
    axes.axhline(1.0, **REFERENCE)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)
    return handles, spread


def _figures(series: Sequence[Series], figure: str, category: str) -> tuple[np.ndarray, np.ndarray]:
    """(S,) values and (2, S) whisker lengths down and up; no whisker if there is no interval."""
    columns = [figure, f"{figure}_low", f"{figure}_high"]
    blank = [float("nan")] * 3
    rows = [
        list(entry.rows.loc[category, columns]) if category in entry.rows.index else blank
        for entry in series
    ]
    value, low, high = np.array(rows, dtype=float).T
    return value, np.stack([value - low, high - value])


def _looks(series: Sequence[Series]) -> dict[str, Any]:
    colours, hatches = (
        [entry.style.colour for entry in series],
        [entry.style.hatch for entry in series],
    )
    return {"color": colours, "hatch": hatches, "edgecolor": "white", "linewidth": 0.3}


def _explain(where: str, spread: bool, few: bool, loaded: bool) -> str:
    """The measure of a plot, and the meaning of line, whiskers and brackets. loaded: cases slowed
    each other.
    """
    none = (
        "no intervals: cases under load slow each other"
        if loaded
        else "too few cases for intervals"
    )
    whiskers = "whiskers: 95\N{NO-BREAK SPACE}% bootstrap over cases" if spread else none
    brackets = f"; in brackets: fewer than {MIN_CASES} cases" if few else ""
    return f"{where}; dashed: vanilla; {whiskers}{brackets}"


_MIN_AXES = 3
_GRID = "#dddddd"
_CIRCLE_INCH = 2.3  # diameter
_CIRCLE_GAP_INCH = 0.85  # between two circles: names and a title
_SPOKE_CHARS = 14


def draw_radar(scene: Scene) -> Figure | str:
    """Draw a circle for each known figure, an axis a category; vanilla's speedup is the ring at 1.

    A category that a method did not finish leaves a gap in its line. Returns the reason if the
    radar is skipped.
    """
    if reason := too_many(scene):
        return reason
    if len(scene.categories) < _MIN_AXES:
        return f"{len(scene.categories)} categories, a radar needs {_MIN_AXES}"
    panels = [figure for figure in HEADINGS if not missing(scene, figure)]
    if not panels:
        return f"{' and '.join(HEADINGS)} blank for every method"
    height = _CIRCLE_INCH * len(panels) + _CIRCLE_GAP_INCH * (len(panels) - 1)
    gap = 0.0, _CIRCLE_GAP_INCH / _CIRCLE_INCH
    canvas, sheets = make_sheet(
        (_CIRCLE_INCH, height), len(panels), 1, gap, subplot_kw={"projection": "polar"}
    )
    for axes, figure in zip(sheets.flat, panels, strict=True):
        lines = _draw_circle(axes, scene.series, figure, scene.categories)
        axes.set_title(plain(HEADINGS[figure]), fontweight="bold", fontsize=8.5, pad=22)
    note = f"{scene.where}; dashed ring: vanilla; intervals: in the bars by category"
    legend = dict(zip([entry.name for entry in scene.series], lines, strict=True))
    return finish(canvas, "By category", note, legend)


def _draw_circle(
    axes: PolarAxes, series: Sequence[Series], figure: str, categories: Sequence[str]
) -> list[Any]:
    angles = np.linspace(0, 2 * np.pi, len(categories), endpoint=False)
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    lines: list[Any] = []
    top = 1.0
    for entry in series:
        values = entry.rows[figure].reindex(list(categories)).to_numpy(dtype=float)
        top = max(top, float(np.nanmax(values, initial=0.0)))
        look = entry.style.marks | {"fillstyle": "full", "markersize": 3.5, "linewidth": 1.5}
        lines += axes.plot(np.append(angles, angles[0]), np.append(values, values[0]), **look)
    ring = np.linspace(0, 2 * np.pi, 200)
    axes.plot(ring, np.ones_like(ring), **REFERENCE)
    axes.set_ylim(0, top * 1.05)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, top)
    axes.set_yticks([tick for tick in ticks if 0 < tick <= top])
    # between the first two spokes, off the lines' corners
    axes.set_rlabel_position(180 / len(categories))
    axes.tick_params(axis="y", labelsize=8, labelcolor="#666666")
    for text in axes.get_yticklabels():
        text.set_bbox({"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6})
    axes.grid(color=_GRID, linewidth=0.6)
    axes.spines["polar"].set_color(_GRID)
    axes.set_xticks(angles, [])
    # names stand outside the circle, turned away from it
    for angle, category in zip(angles, categories, strict=True):
        side, height = np.sin(angle), np.cos(angle)
        across = "center" if abs(side) < 0.2 else "left" if side > 0 else "right"
        along = "center" if abs(height) < 0.8 else "bottom" if height > 0 else "top"
        name = plain("\n".join(textwrap.wrap(category, _SPOKE_CHARS, break_on_hyphens=False)))
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": across,
            "va": along,
            "annotation_clip": False,
        }
        axes.annotate(
            name, (float(angle), axes.get_rmax()), (7 * side, 7 * height), fontsize=8, **place
        )
    return lines


def draw_time_split(scene: Scene) -> Figure | str:
    """Mean ms a decode step by phase, vanilla first; peers have no recorded phases and are named in
    the note.

    Where only replayed targets are in it: the phases of drafters alone, in microseconds.
    """
    frame = scene.detail["time_split"]
    if frame.empty:
        return "no phases were recorded"
    if scene.timed:
        frame = frame[frame["step_ms"].notna()]
    repeated = (frame["method"] == VANILLA) & frame["method"].duplicated()
    frame = frame[(frame["method"] != CONTROL) & ~repeated]
    names = [
        scene.spell(row.method, "" if row.method == VANILLA else row.variant)
        for row in frame.itertuples()
    ]
    drawn = set(zip(frame["method"], frame["variant"], strict=True))
    missing = [series.name for series in scene.series if series.key not in drawn]
    unit, factor, phases = (
        ("ms", 1, PHASES) if scene.timed else ("\N{MICRO SIGN}s", 1000, DRAFTER_PHASES)
    )
    looks = {phase: look for phase, look in zip(PHASES, PARTS, strict=True) if phase in phases}
    canvas, axes = make_rows(names)
    parts = {phase: factor * frame[f"{phase}_ms"].to_numpy(dtype=float) for phase in phases}
    _stack(axes, parts, looks)
    wholes = np.nansum(list(parts.values()), axis=0)
    spell = (lambda ms: f"{ms:.2f}" if ms < 100 else f"{ms:.0f}") if scene.timed else format_rate
    write_ends(axes, wholes.tolist(), list(map(spell, wholes)))
    axes.set_xlabel(f"{unit} a decode step")
    note = f"{scene.where}; means over all steps, prefill not included"
    if missing:
        note += f"; left out, no phases recorded: {', '.join(missing)}"
    title = (
        "Where a decode step's time goes"
        if scene.timed
        else "The drafters' own time in a decode step"
    )
    return finish(canvas, title, note, {name: Patch(**look.fill) for name, look in looks.items()})


def draw_sources(scene: Scene) -> Figure | str:
    """Two bars a method: what it proposed and what of it was accepted, each by source."""
    frame = scene.detail["accept_sources"]
    if not (frame.groupby(["method", "variant"])["source"].nunique() > 1).any():
        return "no method drafts from more than one source"
    looks = {name: style_of(place) for place, name in enumerate(dict.fromkeys(frame["source"]))}
    groups = list(frame.groupby(["method", "variant"], sort=False))
    names = [scene.spell(*key) for key, _ in groups]
    canvas, axes = make_rows(names, bars=2)
    for column, shift in (("proposed", -0.2), ("accepted", 0.2)):
        parts = {
            name: np.array(
                [rows.loc[rows["source"] == name, f"{column}_share"].sum() for _, rows in groups]
            )
            for name in looks
        }
        _stack(axes, {name: 100 * values for name, values in parts.items()}, looks, shift, 0.34)
        texts = [f"{column} {rows[column].sum():,}" for _, rows in groups]
        if column == "accepted":
            rates = [rows["accepted"].sum() / max(1, rows["proposed"].sum()) for _, rows in groups]
            texts = [
                f"{text} ({format_share(rate)})" for text, rate in zip(texts, rates, strict=True)
            ]
        write_ends(axes, [100.0] * len(groups), texts, shift)
    axes.set_xlabel("share of nodes [%]")
    axes.set_xlim(0, 100)
    note = f"{scene.where}; above: proposed nodes, below: those the target accepted"
    legend = {name: Patch(**look.fill) for name, look in looks.items()}
    return finish(canvas, "Where drafted and accepted tokens came from", note, legend)


def _stack(
    axes: Axes,
    parts: Mapping[str, np.ndarray],
    looks: Mapping[str, Style],
    shift: float = 0.0,
    height: float = 0.62,
) -> None:
    """parts: name -> (rows,) lengths, from the left; a part that a row does not have is blank."""
    places = np.arange(len(next(iter(parts.values())))) + shift
    left = np.zeros(len(places))
    for name, values in parts.items():
        widths = np.nan_to_num(values)
        axes.barh(places, widths, height, left=left, **looks[name].fill)
        left = left + widths
