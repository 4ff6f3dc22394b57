"""Small histograms side by side, one a method, on common axes: how many tokens its decode steps emitted."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.record import CONTROL, VANILLA
from specbench.report.plots.canvas import GRID, NOTE, head, plain
from specbench.report.plots.scene import Scene
from specbench.report.text.label import broken, label

MOST_PANELS = 30
_COLUMNS = 2
_PANEL_INCH = (2.0, 1.25)
_LINE_INCH = 0.16
_OVER_LINE = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}
_LABELLED = 1.5  # [%] lower bars carry no figure
_TITLE_CHARS = 26
_MOST_BINS = 12  # the last one holds the rest
_COVERED = 0.995  # share of steps that the bins before the last hold, where fewer bins will do


def drafting(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of methods that ever emitted more than one token in a step; vanilla and its like have no histogram."""
    frame = frame[~frame["method"].isin([VANILLA, CONTROL])]
    most = frame.groupby(["method", "variant"])["tokens"].transform("max")
    return frame[most > 1]


def draw_accept_lengths(scene: Scene) -> Figure:
    """Share of decode steps by tokens emitted; the dashed line is the mean, MAT."""
    frame = drafting(scene.detail["accept_lengths"])
    groups = list(frame.groupby(["method", "variant"], sort=False))
    bins = max(_bins(rows) for _, rows in groups)
    titles = [broken(label(*key), _TITLE_CHARS) for key, _ in groups]
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
    head(canvas, "Tokens emitted by a decode step", note)
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
    axes.axvline(min(mean, bins), color="black", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
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
