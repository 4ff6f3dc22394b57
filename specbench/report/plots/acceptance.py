"""What decode steps accepted: histograms of the tokens emitted, and acceptance by position in the draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.records.record import CONTROL, VANILLA
from specbench.report.label import break_lines
from specbench.report.plots.canvas import NOTE, OVER_LINE, REFERENCE, finish, make_sheet, plain
from specbench.report.plots.scene import Scene

MOST_PANELS = 30
_COLUMNS = 2
_PANEL_INCH = (2.0, 1.25)
_LINE_INCH = 0.16
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


def draw_accept_lengths(scene: Scene) -> Figure | str:
    """Share of decode steps by tokens emitted; the dashed line is the mean, MAT."""
    frame = ever_gaining(scene.detail["accept_lengths"])
    groups = list(frame.groupby(["method", "variant"], sort=False))
    if len(groups) > MOST_PANELS:
        return f"{len(groups)} methods, at most {MOST_PANELS} are drawn; tables/accept_lengths.csv has them"
    if not groups:
        return "no method ever emitted more than one token in a step"
    bins = max(_bins(rows) for _, rows in groups)
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
    for place in range(len(groups)):
        if place + columns >= len(groups):  # the lowest of its column, also above an empty place
            grid.flat[place].set_xlabel("tokens a step")
            grid.flat[place].tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("steps [%]")
    note = f"{scene.where}; every step emits at least 1, so 1 is a step without gain; dashed: the mean, MAT"
    return finish(canvas, "Tokens emitted by a decode step", note)


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
    axes.bar_label(bars, figures, fontsize=8, color=NOTE, padding=1, bbox=OVER_LINE | {"pad": 0.2})
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
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=0)


def with_enough_steps(frame: pd.DataFrame, base: str) -> pd.DataFrame:
    """The positions with enough steps behind them."""
    return frame[frame[base] >= MIN_STEPS]


def draw_accept_positions(scene: Scene) -> Figure | str:
    """Above: the share that was accepted to this depth. Below: the chance at this depth once everything before held."""
    frame = scene.detail["accept_positions"]
    if with_enough_steps(frame, "drafted").empty:
        return "too few drafts"
    canvas, panels = make_sheet((3.8, 4.0), 2, 1, (0.0, 0.18), sharex=True, sharey=True)
    lines: dict[str, Any] = {}
    deepest = _deepest(with_enough_steps(frame, "drafted"))
    for axes, (base, title) in zip(panels.flat, _POSITION_PANELS, strict=True):
        for series in scene.series:
            points = with_enough_steps(series.of(frame), base)
            if len(points):
                (line,) = axes.plot(points["position"], 100 * points[f"accepted_of_{base}"], **series.style.marks)
                lines.setdefault(series.name, line)
        axes.set_title(title, loc="left", fontsize=8.5, pad=4)
        axes.set_ylim(0, 104)
        axes.set_xlim(0.5, deepest + 0.5)
        axes.set_xticks(range(1, deepest + 1, max(1, int(np.ceil(deepest / _MOST_TICKS)))))
        axes.set_ylabel("accepted [%]")
        axes.grid()
    panels[-1, 0].set_xlabel("draft position")
    note = f"{scene.where}; position 1 follows the last emitted token; positions of under {MIN_STEPS} steps not drawn"
    return finish(canvas, "Acceptance by position in the draft", note, lines)


def _deepest(points: pd.DataFrame) -> int:
    seen = points.loc[points["accepted_of_drafted"] >= _FAINT, "position"]
    return int(seen.max()) if len(seen) else int(points["position"].max())
