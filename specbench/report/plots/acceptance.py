"""Plots of acceptance: by tokens emitted, by position in the draft, along the answer, and as the
state grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.records.record import VANILLA
from specbench.report.frames.cases import without_references
from specbench.report.frames.detail import CACHED
from specbench.report.label import break_lines
from specbench.report.plots.canvas import NOTE, OVER_LINE, REFERENCE, finish, make_sheet, plain
from specbench.report.plots.scene import Scene
from specbench.stats import MIN_CASES

MOST_PANELS = 30
_METHOD = ["method", "variant"]
_COLUMNS = 2
_PANEL_INCH = (2.0, 1.25)
_LINE_INCH = 0.16
_LABELLED = 1.5  # [%] lower bars carry no figure
_TITLE_CHARS = 26
_MOST_BINS = 12  # the last one counts the rest
_COVERED = 0.995  # share of steps that the bins before the last contain, where fewer bins will do
MIN_STEPS = 20  # a share of fewer steps is noise and is not drawn; the csv has it
_MOST_TICKS = 10
# positions deeper than any method's last share above this are a flat line and are cut off
_FAINT = 0.01
_POSITION_PANELS = (
    ("drafted", "of steps that drafted this deep"),
    ("reached", "of steps that accepted all before it"),
)


def draw_accept_lengths(scene: Scene) -> Figure | str:
    """Share of decode steps by tokens emitted; the dashed line is the mean, MAT.

    Methods that never emitted more than one token in a step, vanilla and its like, have no
    histogram.
    """
    frame = scene.detail["accept_lengths"]
    frame = without_references(frame)
    groups = [
        (key, rows) for key, rows in frame.groupby(_METHOD, sort=False) if rows["tokens"].max() > 1
    ]
    if len(groups) > MOST_PANELS:
        return (
            f"{len(groups)} methods, at most {MOST_PANELS} are drawn; tables/accept_lengths.csv has"
            " them"
        )
    if not groups:
        return "no method ever emitted more than one token in a step"
    # shows nearly all
    covered = [int(np.searchsorted(rows["share"].cumsum(), _COVERED)) + 2 for _, rows in groups]
    bins = max(
        min(_MOST_BINS, n, int(rows["tokens"].max()))
        for n, (_, rows) in zip(covered, groups, strict=True)
    )
    titles = [break_lines(scene.spell(*key), _TITLE_CHARS) for key, _ in groups]
    lines = max(title.count("\n") + 1 for title in titles)
    columns = min(_COLUMNS, len(groups))
    rows_count = -(-len(groups) // columns)
    inch = (max(_PANEL_INCH[0] * columns, 3.0), (_PANEL_INCH[1] + _LINE_INCH * lines) * rows_count)
    gap = (0.1, (_LINE_INCH * lines + 0.25) / _PANEL_INCH[1])
    canvas, grid = make_sheet(inch, rows_count, columns, gap, sharex=True, sharey=True)
    canvas.subplots_adjust(top=1 - _LINE_INCH * lines / inch[1])
    for axes, (key, rows), title in zip(grid.flat, groups, titles, strict=False):
        _panel(axes, rows, bins, scene.looks[key].colour)
        axes.set_title(plain(title), loc="left", fontsize=8.5, fontweight="bold", pad=4)
    for axes in grid.flat[len(groups) :]:
        axes.set_axis_off()
    for axes in grid.flat[
        max(0, len(groups) - columns) : len(groups)
    ]:  # the lowest of a column, or above an empty place
        axes.set_xlabel("tokens a step")
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("steps [%]")
    note = (
        f"{scene.where}; every step emits at least 1, so 1 is a step without gain; dashed: the"
        " mean, MAT"
    )
    return finish(canvas, "Tokens emitted by a decode step", note)


def _panel(axes: Axes, rows: pd.DataFrame, bins: int, colour: str) -> None:
    shares = (
        100
        * rows.set_index("tokens")["share"]
        .reindex(range(1, int(rows["tokens"].max()) + 1))
        .to_numpy()
    )
    shown = np.zeros(bins)
    shown[: min(bins, len(shares))] = shares[:bins]
    shown[-1] += shares[bins:].sum()
    places = np.arange(1, bins + 1)
    bars = axes.bar(places, shown, 0.8, color=colour)
    figures = [f"{value:.0f}" if value >= _LABELLED else "" for value in shown]
    axes.bar_label(bars, figures, fontsize=8, color=NOTE, padding=1, bbox=OVER_LINE | {"pad": 0.2})
    mean = float((rows["tokens"] * rows["steps"]).sum() / rows["steps"].sum())
    axes.axvline(min(mean, bins), **REFERENCE, zorder=0.5)
    axes.text(
        1, 0.98, f"MAT {mean:.2f}", transform=axes.transAxes, ha="right", va="top", fontsize=8
    )
    every = 1 if bins <= 9 else 2
    names = {bins: f"{bins}+"} if len(shares) > bins else {}
    ticks = [*(place for place in places[::every] if place <= bins - every), bins]
    axes.set_xticks(ticks, [names.get(int(place), str(place)) for place in ticks])
    axes.set_xlim(0.4, bins + 0.6)
    axes.margins(y=0.12)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)


def with_enough_steps(frame: pd.DataFrame, base: str) -> pd.DataFrame:
    """The positions with enough steps behind them."""
    return frame[frame[base] >= MIN_STEPS]


def draw_accept_positions(scene: Scene) -> Figure | str:
    """Above: the share that was accepted to this depth. Below: the chance at this depth if all
    before was accepted.
    """
    frame = scene.detail["accept_positions"]
    if with_enough_steps(frame, "drafted").empty:
        return "too few drafts"
    canvas, panels = make_sheet((3.8, 4.0), 2, 1, (0.0, 0.18), sharex=True, sharey=True)
    lines: dict[str, Any] = {}
    drafted = with_enough_steps(frame, "drafted")
    seen = drafted.loc[drafted["accepted_of_drafted"] >= _FAINT, "position"]
    deepest = int((seen if len(seen) else drafted["position"]).max())
    for axes, (base, title) in zip(panels.flat, _POSITION_PANELS, strict=True):
        for series in scene.series:
            points = with_enough_steps(series.of(frame), base)
            if len(points):
                (line,) = axes.plot(
                    points["position"], 100 * points[f"accepted_of_{base}"], **series.style.marks
                )
                lines.setdefault(series.name, line)
        axes.set_title(title, loc="left", fontsize=8.5, pad=4)
        axes.set_ylim(0, 104)
        axes.set_xlim(0.5, deepest + 0.5)
        axes.set_xticks(range(1, deepest + 1, max(1, int(np.ceil(deepest / _MOST_TICKS)))))
        axes.set_ylabel("accepted [%]")
        axes.grid()
    panels[-1, 0].set_xlabel("draft position")
    note = (
        f"{scene.where}; position 1 follows the last emitted token; positions of under {MIN_STEPS}"
        " steps not drawn"
    )
    return finish(canvas, "Acceptance by position in the draft", note, lines)


_LENGTHS_INCH, _LENGTHS_ROW_INCH = 4.0, 1.7
_AXES = {"position": "tokens emitted before", "context": "tokens in the context"}
_FIGURES = {"mat": "MAT", "step_ms": "ms a step", "speedup": "speedup"}


def draw_lengths(scene: Scene) -> Figure | str:
    """MAT, and below it ms a step and speedup where they were timed, by output position and by
    context length.
    """
    frame = with_enough_steps(scene.detail["by_length"], "steps")
    if frame.loc[frame["axis"] == "position", "from"].nunique() < 2:
        return "answers too short, or too few"
    figures = [name for name in _FIGURES if frame[name].notna().any()]
    inch = (_LENGTHS_INCH, _LENGTHS_ROW_INCH * len(figures))
    canvas, sheet = make_sheet(inch, len(figures), 2, (0.08, 0.12), sharey="row", sharex="col")
    lines: dict[str, Any] = {}
    for row, figure in enumerate(figures):
        for axes, axis in zip(sheet[row], _AXES, strict=True):
            own = frame[frame["axis"] == axis]
            for series, points in (
                (each, each.of(own)) for each in scene.series if len(each.of(own))
            ):
                (lines[series.name],) = axes.plot(
                    _knots(points["from"]), points[figure], **series.style.marks
                )
            vanilla = own[own["method"] == VANILLA].drop_duplicates("from")
            axes.plot(_knots(vanilla["from"]), vanilla[figure], **REFERENCE)
            edges = own["from"].drop_duplicates().sort_values()
            # names of neighbours would touch
            named = {0, *range(len(edges) - 1, 0, -(1 + len(edges) // 5))}
            axes.set_xticks(
                _knots(edges), [f"{edge:g}" if n in named else "" for n, edge in enumerate(edges)]
            )
            axes.yaxis.set_major_formatter("{x:g}")
            axes.grid()
        sheet[row, 0].set_ylabel(_FIGURES[figure])
        sheet[row, 0].set_ylim(bottom=0)
    for axes, title in zip(sheet[-1], _AXES.values(), strict=True):
        axes.set_xlabel(title)
    note = (
        f"{scene.where}; a point a bin from this length on, of at least {MIN_STEPS} steps; dashed:"
        " vanilla"
    )
    return finish(canvas, "Along the answer and the context", note, lines)


def _knots(edges: pd.Series) -> np.ndarray:
    """Places on the axis, one a power of two."""
    return np.log2(np.maximum(edges.to_numpy(dtype=float), 8))


_GROWTH_INCH = (3.8, 2.2)
_DOT_ALPHA = 0.22
_DOTS_SHOWN = 0.98  # of the dots: the few far above would flatten the lines
_WINDOWS = 12  # a window has this part of the cases, within the bounds below
_LEAST, _MOST = MIN_CASES, 50


def choose_window(cases: int) -> int:
    """Cases in a window of the running mean."""
    return int(np.clip(cases // _WINDOWS, _LEAST, _MOST))


def average_windows(rows: pd.DataFrame, above: str, below: str) -> tuple[np.ndarray, np.ndarray]:
    """(W,) mean tokens stored and (W,) sum of ``above`` over sum of ``below``, a window of cases by
    tokens stored each.

    Empty if there are fewer cases than a window has.
    """
    rows = rows.sort_values(CACHED, kind="stable")
    sums = rows[[CACHED, above, below]].rolling(choose_window(len(rows))).sum().dropna()
    return (
        sums[CACHED].to_numpy() / choose_window(len(rows)),
        (sums[above] / sums[below]).to_numpy(),
    )


def keep_growing(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of methods that stored more in some cases than in others, in enough cases for a
    line.
    """
    groups = frame.groupby(["method", "variant"], sort=False)[CACHED]
    return frame[(groups.transform("nunique") > 1) & (groups.transform("size") >= MIN_CASES)]


def draw_growth(scene: Scene) -> Figure | str:
    """MAT against tokens stored; below it tokens/s where the target was timed."""
    if scene.detail["growth"].empty:
        return "no method records how many tokens it holds"
    frame = keep_growing(scene.detail["growth"])
    if frame.empty:
        return "no method holds more from case to case, or too few cases"
    panels = [("mean accepted tokens (MAT)", "emitted", "steps")]
    if frame["time_s"].notna().any():
        panels.append(("tokens/s", "tokens", "time_s"))
    inch = (_GROWTH_INCH[0], _GROWTH_INCH[1] * len(panels))
    canvas, sheets = make_sheet(inch, len(panels), 1, (0.0, 0.1), sharex=True)
    lines: dict[str, Any] = {}
    sheets[-1, 0].set_xlabel("tokens stored when the case began")
    for axes, (title, above, below) in zip(sheets.flat, panels, strict=True):
        for series in scene.series:
            own, look = series.of(frame), series.style
            if own[below].notna().any():
                axes.scatter(
                    own[CACHED],
                    own[above] / own[below],
                    9,
                    look.colour,
                    alpha=_DOT_ALPHA,
                    linewidths=0,
                )
                mean = average_windows(own, above, below)
                (line,) = axes.plot(*mean, color=look.colour, linestyle=look.line, linewidth=1.8)
                lines.setdefault(series.name, line)
        top = max(1.0, float((frame[above] / frame[below]).dropna().quantile(_DOTS_SHOWN)))
        low = 0.9 if above == "emitted" else 0.0
        axes.set_ylim(low, low + 1.1 * (top - low))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel(title)
        if above == "emitted":
            axes.axhline(1.0, **REFERENCE)
        axes.grid()
    sizes = sorted({choose_window(count) for count in frame.groupby(["method", "variant"]).size()})
    around = f"line: over {' or '.join(map(str, sizes))} neighbouring cases"
    note = f"{scene.where}; dots: cases (the highest 2 % not all shown), {around}"
    return finish(canvas, "Growth with the tokens stored", note, lines)
