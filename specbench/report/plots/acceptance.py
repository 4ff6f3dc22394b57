"""What decode steps accepted: histograms of the tokens emitted, and acceptance by position in the draft."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.record import CONTROL, VANILLA
from specbench.report.plots.canvas import GRID, NOTE, REFERENCE, add_legend, plain, write_head
from specbench.report.plots.scene import Scene, Series
from specbench.report.text.label import break_lines, label

MOST_PANELS = 30
_COLUMNS = 2
_PANEL_INCH = (2.0, 1.25)
_LINE_INCH = 0.16
_OVER_LINE = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}
_LABELLED = 1.5  # [%] lower bars carry no figure
_TITLE_CHARS = 26
_MOST_BINS = 12  # the last one holds the rest
_COVERED = 0.995  # share of steps that the bins before the last hold, where fewer bins will do
MIN_STEPS = 20  # a share of fewer steps is noise and is not drawn; the csv has it
_MOST_TICKS = 10
_FAINT = 0.01  # positions deeper than any method's last share above this are a flat line and are cut off
_POSITION_PANELS = (
    ("drafted", "of steps that drafted this deep"),
    ("reached", "of steps that accepted all before it"),
)


def ever_gaining(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of methods that ever emitted more than one token in a step; vanilla and its like have no histogram."""
    frame = frame[~frame["method"].isin([VANILLA, CONTROL])]
    most = frame.groupby(["method", "variant"])["tokens"].transform("max")
    return frame[most > 1]


def draw_accept_lengths(scene: Scene) -> Figure:
    """Share of decode steps by tokens emitted; the dashed line is the mean, MAT."""
    frame = ever_gaining(scene.detail["accept_lengths"])
    groups = list(frame.groupby(["method", "variant"], sort=False))
    bins = max(_bins(rows) for _, rows in groups)
    titles = [break_lines(label(*key), _TITLE_CHARS) for key, _ in groups]
    lines = max(title.count("\n") + 1 for title in titles)
    columns = min(_COLUMNS, len(groups))
    rows_count = -(-len(groups) // columns)
    width = max(_PANEL_INCH[0] * columns, 3.0)
    height = (_PANEL_INCH[1] + _LINE_INCH * lines) * rows_count
    canvas = Figure(figsize=(width, height))
    grid = canvas.subplots(rows_count, columns, squeeze=False, sharex=True, sharey=True)
    gap = (_LINE_INCH * lines + 0.25) / _PANEL_INCH[1]
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1 - _LINE_INCH * lines / height, wspace=0.1, hspace=gap)
    for axes, (key, rows), title in zip(grid.flat, groups, titles, strict=False):
        _panel(axes, rows, bins, scene.looks[key].colour)
        axes.set_title(plain(title), loc="left", fontsize=8.5, fontweight="bold", pad=4)
    for axes in grid.flat[len(groups) :]:
        axes.set_axis_off()
    for place in range(len(groups)):
        if place + columns >= len(groups):  # the lowest of its column, also above an empty place
            grid.flat[place].set_xlabel("tokens a step")
            grid.flat[place].tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("steps [%]")
    note = f"{scene.where}; every step emits at least 1, so 1 is a step without gain; dashed: the mean, MAT"
    write_head(canvas, "Tokens emitted by a decode step", note)
    return canvas


def _bins(rows: pd.DataFrame) -> int:
    """How many bars show nearly all steps."""
    covered = rows["share"].cumsum().to_numpy()
    return min(_MOST_BINS, int(np.searchsorted(covered, _COVERED)) + 2, int(rows["tokens"].max()))


def _panel(axes: Axes, rows: pd.DataFrame, bins: int, colour: str) -> None:
    shares = 100 * rows.set_index("tokens")["share"].reindex(range(1, int(rows["tokens"].max()) + 1)).to_numpy()
    shown = np.zeros(bins)
    shown[: min(bins, len(shares))] = shares[:bins]
    shown[-1] += shares[bins:].sum()
    places = np.arange(1, bins + 1)
    bars = axes.bar(places, shown, 0.8, color=colour)
    figures = [f"{value:.0f}" if value >= _LABELLED else "" for value in shown]
    axes.bar_label(bars, figures, fontsize=8, color=NOTE, padding=1, bbox=_OVER_LINE)
    mean = float((rows["tokens"] * rows["steps"]).sum() / rows["steps"].sum())
    axes.axvline(min(mean, bins), **REFERENCE, zorder=0.5)
    axes.annotate(
        f"MAT {mean:.2f}", (1, 1), (0, -2), "axes fraction", "offset points", ha="right", va="top", fontsize=8
    )
    every = 1 if bins <= 9 else 2
    names = {bins: f"{bins}+"} if len(shares) > bins else {}
    ticks = [*(place for place in places[::every] if place <= bins - every), bins]
    axes.set_xticks(ticks, [names.get(int(place), str(place)) for place in ticks])
    axes.set_xlim(0.4, bins + 0.6)
    axes.margins(y=0.12)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.tick_params(axis="x", length=0)


def with_enough_steps(frame: pd.DataFrame, base: str) -> pd.DataFrame:
    """The positions with enough steps behind them."""
    return frame[frame[base] >= MIN_STEPS]


def draw_accept_positions(scene: Scene) -> Figure:
    """Above: the share that was accepted to this depth. Below: the chance at this depth once everything before held."""
    frame = scene.detail["accept_positions"]
    canvas = Figure(figsize=(3.8, 4.0))
    panels = canvas.subplots(2, 1, sharey=True, sharex=True)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0.18)
    drawn: dict[str, tuple[Series, object]] = {}
    deepest = _deepest(with_enough_steps(frame, "drafted"))
    for axes, (base, title) in zip(panels, _POSITION_PANELS, strict=True):
        for series in scene.series:
            own = series.of(frame)
            points = with_enough_steps(own, base)
            if len(points):
                drawn.setdefault(series.name, (series, _line(axes, points, base, series)))
        _dress(axes, title, deepest)
    panels[1].set_xlabel("draft position")
    note = f"{scene.where}; position 1 follows the last emitted token; positions of under {MIN_STEPS} steps not drawn"
    write_head(canvas, "Acceptance by position in the draft", note)
    add_legend(canvas, list(drawn), [line for _, line in drawn.values()])
    return canvas


def _deepest(points: pd.DataFrame) -> int:
    seen = points.loc[points["accepted_of_drafted"] >= _FAINT, "position"]
    return int(seen.max()) if len(seen) else int(points["position"].max())


def _line(axes: Axes, points: pd.DataFrame, base: str, series: Series) -> object:
    look = series.style
    (line,) = axes.plot(
        points["position"],
        100 * points[f"accepted_of_{base}"],
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
    )
    return line


def _dress(axes: Axes, title: str, deepest: int) -> None:
    axes.set_title(title, loc="left", fontsize=8.5, pad=4)
    axes.set_ylim(0, 104)
    axes.set_xlim(0.5, deepest + 0.5)
    step = max(1, int(np.ceil(deepest / _MOST_TICKS)))
    axes.set_xticks(range(1, deepest + 1, step))
    axes.set_ylabel("accepted [%]")
    axes.grid(color=GRID, linewidth=0.6)
