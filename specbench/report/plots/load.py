"""The crossover plot: modelled speedup against requests that share a forward, and the MAT a draft must have to pay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from specbench.report.data.load import FEW, LABELLED, Load
from specbench.report.plots.canvas import GRID, add_legend, drawing, head, save
from specbench.report.plots.palette import style
from specbench.report.plots.scene import Scene
from specbench.report.tables.modelled import crossover_table
from specbench.report.text.table import to_latex, to_markdown
from specbench.store import write_atomically

_INCH = (3.8, 5.2)
_PALEST = 0.65  # grey of the smallest load


def write_crossover(found: Load, scenes: Sequence[Scene], output: Path, plots: bool) -> list[Path]:
    """tables/crossover.{csv,md,tex}, tables/crossover_break_even.csv and, a model and suite, plots/crossover*."""
    folder = output / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    table = crossover_table(found)
    keys = [column for column in found.pays.columns if column not in ("mat", "pays_to")]
    texts = {
        "crossover.csv": found.speedups.merge(found.pays, on=keys).to_csv(index=False),
        "crossover.md": to_markdown(table),
        "crossover.tex": to_latex(table),
        "crossover_break_even.csv": found.break_even.to_csv(index=False),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    files = [folder / name for name in texts]
    if not plots:
        return files
    (output / "plots").mkdir(parents=True, exist_ok=True)
    with drawing():
        for scene in scenes:
            speedups, even = (
                frame[(frame["model"] == scene.model) & (frame["suite"] == scene.suite)]
                for frame in (found.speedups, found.break_even)
            )
            if len(speedups):
                drawn = draw_crossover(scene, speedups, even, found.where)
                files += save(drawn, output / "plots" / f"crossover{scene.tag}")
    return files


def draw_crossover(scene: Scene, speedups: pd.DataFrame, even: pd.DataFrame, where: str) -> Figure:
    """Above: a line a method, below 1 it costs more than it brings. Below: a line a load, above it a width pays."""
    canvas = Figure(figsize=_INCH)
    upper, lower = canvas.subplots(2, 1)
    canvas.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0.26)
    drawn, lines = [], []
    for series in scene.series:
        key = tuple(series.rows[column].iloc[0] for column in ("method", "variant"))
        own = speedups[(speedups["method"] == key[0]) & (speedups["variant"] == key[1])].sort_values("concurrency")
        if len(own):
            look = series.style
            marks = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
            (line,) = upper.plot(own["concurrency"], own["modelled_speedup"], **marks)
            drawn.append(series)
            lines.append(line)
    upper.axhline(1.0, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    _dress(upper, sorted(speedups["concurrency"].unique()), "requests at once", "modelled speedup")
    loads = list(even.groupby("concurrency"))
    for place, (count, own) in enumerate(loads):
        look, grey = style(place), _PALEST * (1 - place / max(1, len(loads) - 1))  # colours are methods
        lower.plot(own["fed"], own["break_even_mat"], color=str(grey), linestyle=look.line, marker=look.marker,
                   label=f"{count} at once")  # fmt: skip
    _dress(lower, [2, 4, 8, 16, 32, 64, 96], "tokens fed a request and step", "break-even MAT")
    lower.set_yscale("log", base=2)
    lower.set_ylim(0.95, min(16.0, float(even["break_even_mat"].max()) * 1.1))
    lower.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lower.legend(ncols=2)
    outside = "; partly beyond what the profile measured" if (speedups["outside"] > FEW).any() else ""
    note = f"{LABELLED}; {scene.where}; {where}; dashed: vanilla under the same load{outside}"
    head(canvas, "When speculation stops paying", note)
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
