"""Heatmaps of a sweep: every cell annotated, the best outlined, a pair that was not run hatched and blank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specbench.report.frames.sweep import Heatmap
from specbench.report.label import break_lines, display_name, label
from specbench.report.plots import SCREEN
from specbench.report.plots.canvas import drawing, finish, fit, make_sheet, plain, save_all
from specbench.report.plots.scene import slug
from specbench.report.writers import to_csv, write_texts

_MAP = "cividis"  # one that colour-blind readers see as others do (Nunez, Anderton and Renslow 2018)
_CELL_INCH = (0.72, 0.46)
_VECTOR: dict[str, Any] = {"edgecolor": "face", "linewidth": 0.2, "rasterized": False}  # cells without seams in a pdf
_WIDEST_INCH = 3.2  # of the axes on a sheet
_FIGURE_INCH = 0.31  # the narrowest cell that fits its figure
_LABEL_CHARS = 16
_DARK = 0.18  # relative luminance (WCAG) below which white text has more contrast than black
_TITLES = {
    "mat": "Mean accepted tokens (MAT)",
    "tokens_fed": "Tokens fed a step",
    "speedup": "Speedup over vanilla",
    "predicted_speedup": "Predicted speedup (modelled)",
    "acceptance_rate": "Acceptance rate",
    "tokens_per_s": "Tokens/s",
    "decode_tokens_per_s": "Decode tokens/s",
}


def write_heatmaps(grids: Sequence[Heatmap], output: Path, style: str = SCREEN) -> list[Path]:
    """plots/heatmap_<metric>-<method>-<parameters>.png and .pdf, one row per cell in tables/ as csv.

    Returns the files.
    """
    files, named = [], _named(grids)
    for name, grid in named.items():
        long = grid.cells.reset_index().melt(id_vars=grid.y, var_name=grid.x, value_name=grid.metric)
        files += write_texts(output / "tables", {f"{name}.csv": to_csv(long)})
        if style != SCREEN:
            named[name] = replace(grid, method=display_name(grid.method))
    with drawing(style):
        drawn = ((name, draw_heatmap(grid)) for name, grid in named.items())
        return files + save_all(drawn, output / "plots", style)


def _named(grids: Iterable[Heatmap]) -> dict[str, Heatmap]:
    """File name -> grid; model, suite and what else varies only where two would share a name.

    A pair of parameters has one heatmap, the first, whichever of the two is along x.
    """
    first: dict[tuple[object, ...], Heatmap] = {}
    for grid in grids:
        pair = frozenset((grid.x, grid.y))
        first.setdefault((grid.metric, grid.method, pair, grid.model, grid.suite, grid.rest), grid)
    places = len({(grid.model, grid.suite) for grid in first.values()})
    named: dict[str, Heatmap] = {}
    for grid in first.values():
        parts = [f"heatmap_{grid.metric}", grid.method]
        parts += sorted(name.removeprefix(f"{grid.method}.") for name in (grid.x, grid.y))
        parts += [grid.model, grid.suite] if places > 1 else []
        parts += [grid.rest.replace(", ", "-")] if grid.rest else []
        name = "-".join(map(slug, parts))[:120]
        named[name if name not in named else f"{name}-{len(named)}"] = grid
    return named


def draw_heatmap(grid: Heatmap) -> Figure:
    """X to the right, y upwards, as in a plot of two numbers."""
    rows, columns = grid.cells.shape
    names = [plain(break_lines(text, _LABEL_CHARS)) for text in grid.cells.columns]
    name_inch = 0.075 * max(len(line) for name in names for line in name.split("\n")) + 0.1
    width, height = max(_CELL_INCH[0], name_inch) * columns, max(_CELL_INCH[1] * rows, 0.6)
    canvas, [[axes]] = make_sheet((width, height))
    values = grid.cells.to_numpy(dtype=float)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    wider = 0.5 if low == high else 0.0
    image = paint_cells(axes, values, Normalize(low - wider, high + wider))
    for row, column in grid.best:
        axes.add_patch(_box(row, column, fill=False, edgecolor="#D55E00", linewidth=2.4, zorder=3, clip_on=False))
    axes.set_xticks(range(columns), names, rotation=0 if name_inch * columns < _WIDEST_INCH else 90)
    axes.set_yticks(range(rows), [plain(break_lines(text, _LABEL_CHARS)) for text in grid.cells.index])
    axes.set_xlabel(plain(break_lines(grid.x, max(24, int(width / 0.075)))))
    axes.set_ylabel(plain(break_lines(grid.y, max(24, int(height / 0.075)))))
    bar = canvas.add_axes((1 + 0.15 / width, 0, 0.13 / width, 1))
    legend = canvas.colorbar(image, cax=bar)
    legend.outline.set_visible(False)
    if legend.solids is not None:
        legend.solids.set(**_VECTOR)
    if fit(canvas) and canvas.get_figwidth() / columns >= _FIGURE_INCH:  # else the colours alone, and the csv
        write_cells(axes, values, image, grid.spell)
    best = "; outlined: the best" if grid.best else ""
    mean = f"; mean of up to {grid.runs} runs a cell" if grid.runs > 1 else ""
    rest = f"; {grid.rest}" if grid.rest else ""
    missing = "; hatched: not run, or blank" if np.isnan(values).any() else ""
    title = f"{_TITLES.get(grid.metric, grid.metric)}, {label(grid.method)}"
    profile = f"; profile: {grid.profile}" if grid.profile else ""
    return finish(canvas, title, f"{grid.model} on {grid.suite}{rest}{profile}{best}{missing}{mean}")


def paint_cells(axes: Axes, values: np.ndarray, norm: Normalize) -> QuadMesh:
    """A coloured cell a value, a hatched one for NaN; row 0 below."""
    edges = [np.arange(count + 1) - 0.5 for count in reversed(values.shape)]
    image = axes.pcolormesh(*edges, np.ma.masked_invalid(values), cmap=_MAP, norm=norm, **_VECTOR)
    for row, column in np.argwhere(np.isnan(values)):
        axes.add_patch(_box(row, column, facecolor="white", edgecolor="#bbbbbb", hatch="////", linewidth=0))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def write_cells(axes: Axes, values: np.ndarray, image: QuadMesh, spell: Callable[[float], str]) -> None:
    """The figure in every cell, black or white, whichever has more contrast."""
    for row, column in np.argwhere(np.isfinite(values)):
        value = values[row, column]
        red, green, blue = (channel**2.2 for channel in image.cmap(image.norm(value))[:3])
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < _DARK
        ink = "white" if dark else "black"
        axes.text(column, row, spell(value), ha="center", va="center", color=ink, fontsize=8)


def _box(row: int, column: int, **look: object) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **look)  # type: ignore[arg-type]
