"""The crossover plot: modelled speedup against requests that share a forward, and the MAT a draft must have to pay."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from specbench.report.data.load import FEW, LABELLED
from specbench.report.plots.canvas import GRID, REFERENCE, add_legend, write_head
from specbench.report.plots.palette import style_of
from specbench.report.plots.scene import Scene

_INCH = (3.8, 5.2)
_PALEST = 0.65  # grey of the smallest load


def draw_crossover(scene: Scene) -> Figure:
    """Above: a line a method, below 1 it costs more than it brings. Below: a line a load, above it a width pays."""
    assert scene.load is not None
    speedups, even = scene.load.speedups, scene.load.break_even
    canvas = Figure(figsize=_INCH)
    upper, lower = canvas.subplots(2, 1)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0.26)
    drawn, lines = [], []
    for series in scene.series:
        own = series.of(speedups).sort_values("concurrency")
        if len(own):
            look = series.style
            marks = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
            (line,) = upper.plot(own["concurrency"], own["modelled_speedup"], **marks)
            drawn.append(series)
            lines.append(line)
    upper.axhline(1.0, **REFERENCE)
    _dress(upper, sorted(speedups["concurrency"].unique()), "requests at once", "modelled speedup")
    loads = list(even.groupby("concurrency"))
    for place, (count, own) in enumerate(loads):
        look, grey = style_of(place), _PALEST * (1 - place / max(1, len(loads) - 1))  # colours are methods
        lower.plot(own["fed"], own["break_even_mat"], color=str(grey), linestyle=look.line, marker=look.marker,
                   label=f"{count} at once")  # fmt: skip
    _dress(lower, [2, 4, 8, 16, 32, 64, 96], "tokens fed a request and step", "break-even MAT")
    lower.set_yscale("log", base=2)
    lower.set_ylim(0.95, min(16.0, float(even["break_even_mat"].max()) * 1.1))
    lower.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lower.legend(ncols=2)
    outside = "; partly beyond what the profile measured" if (speedups["outside"] > FEW).any() else ""
    note = f"{LABELLED}; {scene.where}; {scene.load.where}; dashed: vanilla under the same load{outside}"
    write_head(canvas, "When speculation stops paying", note)
    add_legend(canvas, [series.name for series in drawn], lines)
    return canvas


def _dress(axes: Axes, ticks: Sequence[float], across: str, up: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color=GRID, linewidth=0.6)
