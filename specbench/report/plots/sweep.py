"""Plots of a sweep: curves over one parameter, and heatmaps over two.

Curves have the parameter along x, a panel for each figure, a line for each method. Of a heatmap
every cell is annotated, the best is outlined, and a pair that was not run is hatched and blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from specbench.report.frames.sweep import Curve, Heatmap
from specbench.report.label import break_lines, display_name, label, raise_first
from specbench.report.plots import SCREEN
from specbench.report.plots.canvas import (
    REFERENCE,
    drawing,
    finish,
    fit,
    make_sheet,
    plain,
    save_all,
    set_log2,
)
from specbench.report.plots.scene import slug, style_of
from specbench.report.writers import to_csv, write_texts

_PANEL_INCH = (3.7, 1.7)
_GAP = 0.1
_LABEL_CHARS, _CHAR_INCH = 16, 0.075
_STEP_PT = 3.5  # between the marks of two methods at one value
# the largest over the smallest factor between values of a log axis: 1, 2, 5, 10 has 2 and 2.5
_EVEN = 1.3
_LOG_SPAN = 8  # the least that a log axis spans
_MARGIN = 0.06
_FIGURES = {
    "mat": "MAT",
    "speedup": "speedup",
    "predicted_speedup": "predicted speedup",
    "time_only_speedup": "speedup (time only)",
}


def write_curves(curves: Sequence[Curve], output: Path, style: str = SCREEN) -> list[Path]:
    """plots/sweep-<parameter>.png and .pdf, and its rows under tables/ as csv. Returns the
    files.
    """
    several = len({(curve.model, curve.suite) for curve in curves}) > 1
    named = {}
    for curve in curves:
        parts = ["sweep", curve.x, *([curve.model, curve.suite] if several else [])]
        named["-".join(map(slug, parts))[:120]] = curve
    texts = {}
    for name, curve in named.items():
        values = curve.rows["place"].map(dict(enumerate(curve.values)))
        bounds = [f"{figure}{end}" for figure in curve.figures for end in ("", "_low", "_high")]
        texts[f"{name}.csv"] = to_csv(
            curve.rows[["method", "variant", *bounds]].assign(**{curve.x: values})
        )
    files = write_texts(output / "tables", texts) if texts else []
    with drawing(style):
        drawn = [
            (name, partial(draw_curve, curve, style != SCREEN)) for name, curve in named.items()
        ]
        return files + save_all(drawn, output / "plots", style)


def draw_curve(curve: Curve, display: bool = False) -> Figure:
    """Draw numbers as a line, on a log axis if they grow by factors, and other values as marks
    alone.

    display: methods have the names that papers give them.
    """
    count, methods = len(curve.figures), list(dict.fromkeys(curve.rows["method"]))
    canvas, panels = make_sheet(
        (_PANEL_INCH[0], _PANEL_INCH[1] * count), count, 1, (0.0, _GAP), sharex=True
    )
    drawn: dict[str, Line2D] = {}
    bounded = False
    for axes, figure in zip(panels.flat, curve.figures, strict=True):
        for number, method in enumerate(methods):
            own = curve.rows[(curve.rows["method"] == method) & curve.rows[figure].notna()]
            shift = (number - (len(methods) - 1) / 2) * _STEP_PT / 72
            moved = axes.transData + ScaledTranslation(shift, 0, canvas.dpi_scale_trans)
            line, whiskers = _draw_method(
                axes, curve, own, figure, style_of(number).marks | {"transform": moved}
            )
            bounded = bounded or whiskers
            name = label(display_name(method) if display else method)
            drawn[name + (" (lossy)" if own["lossy"].any() else "")] = line
        axes.axhline(1.0, **REFERENCE, zorder=1)  # extends the axis to vanilla
        axes.margins(_MARGIN)
        axes.autoscale_view()
        axes.set_ylabel(_FIGURES[figure])
        axes.grid()
    _set_ticks(panels[-1, 0], curve)
    panels[-1, 0].set_xlabel(plain(break_lines(curve.x, int(_PANEL_INCH[0] / _CHAR_INCH))))
    runs = int(curve.rows.groupby(["method", "place"]).size().max())
    note = f"{curve.model} on {curve.suite}; dashed: vanilla"
    note += "; whiskers: 95\N{NO-BREAK SPACE}% over cases" if bounded else ""
    note += f"; line: the mean of up to {runs} runs, dots: the runs" if runs > 1 else ""
    note += f"; profile: {curve.profile}" if curve.profile else ""
    note += "; some cases failed" if curve.rows["errors"].any() else ""
    title = f"{' and '.join(_FIGURES[figure] for figure in curve.figures)} over {curve.x}"
    known = len(methods) == 1 and curve.x.startswith(f"{methods[0]}.")
    return finish(canvas, raise_first(title), note, {} if known else drawn)


def _draw_method(
    axes: Axes, curve: Curve, rows: pd.DataFrame, figure: str, look: dict[str, Any]
) -> tuple[Line2D, bool]:
    """A method's means, with a whisker where one run has the value and dots where several have.

    Returns its line, and whether there is a whisker.
    """
    groups = rows.groupby("place")[figure]
    means, sizes = groups.mean(), groups.size()
    across = np.array(curve.numbers or range(len(curve.values)), dtype=float)
    if not curve.numbers:
        look = look | {"linestyle": "none", "markersize": 5}
    (line,) = axes.plot(across[means.index], means, zorder=3, **look)
    mark = {"color": look["color"], "transform": look["transform"]}
    alone = rows[rows["place"].map(sizes).eq(1)]
    several = rows[rows["place"].map(sizes).gt(1)]
    axes.plot(
        across[several["place"]], several[figure], ".", markersize=3, alpha=0.6, zorder=2, **mark
    )
    ends = alone[alone[f"{figure}_high"] > alone[f"{figure}_low"]]
    axes.vlines(
        across[ends["place"]], ends[f"{figure}_low"], ends[f"{figure}_high"], linewidth=1.0, **mark
    )
    tops = rows[[figure, f"{figure}_low", f"{figure}_high"]].agg(["min", "max"], axis=1).to_numpy()
    corners = np.column_stack([np.repeat(across[rows["place"]], 2), tops.ravel()])
    axes.update_datalim(corners)  # which moved marks do not do
    return line, bool(len(ends))


def _set_ticks(axes: Axes, curve: Curve) -> None:
    """A tick at each value if their names fit; else at some of them, or at round numbers."""
    names = [plain(break_lines(text, _LABEL_CHARS)) for text in curve.values]
    wide = _CHAR_INCH * max(len(line) for name in names for line in name.split("\n")) + 0.06
    numbers = np.array(curve.numbers or range(len(names)), dtype=float)
    if log := bool(curve.numbers) and _grows_by_factors(curve.numbers):
        set_log2(axes, curve.numbers)
    scaled = np.log2(numbers) if log else numbers
    # of the axis, from the first to the last
    share = 1 / (1 + 2 * _MARGIN) if curve.numbers else 1 - 1 / len(names)
    inches = (scaled - scaled[0]) / max(float(np.ptp(scaled)), 1e-9) * _PANEL_INCH[0] * share
    fits = len(names) < 2 or float(np.diff(inches).min()) >= wide
    if curve.numbers and not fits and not log:
        axes.xaxis.set_major_locator(
            MaxNLocator("auto", integer=all(value.is_integer() for value in curve.numbers))
        )
        return
    turned = not curve.numbers and not fits
    if not curve.numbers:
        axes.set_xlim(-0.5, len(names) - 0.5)
    least = 2 * _CHAR_INCH if turned else wide
    kept = [0]
    for place in range(1, len(names)):
        if inches[place] - inches[kept[-1]] >= least:
            kept.append(place)
    axes.set_xticks(numbers[kept], [names[place] for place in kept], rotation=90 if turned else 0)


def _grows_by_factors(numbers: Sequence[float]) -> bool:
    """Whether numbers such as 1, 2, 4, 8 or 1, 2, 5, 10 are even on a log axis, and span enough to
    need one.
    """
    if len(numbers) < 3 or numbers[0] <= 0 or numbers[-1] < _LOG_SPAN * numbers[0]:
        return False
    factors = [later / before for before, later in pairwise(numbers)]
    return max(factors) <= _EVEN * min(factors)


# one that colour-blind readers see as others do (Nunez, Anderton and Renslow 2018)
_MAP = "cividis"
_CELL_INCH = (0.72, 0.46)
# cells without seams in a pdf
_VECTOR: dict[str, Any] = {"edgecolor": "face", "linewidth": 0.2, "rasterized": False}
_WIDEST_INCH = 3.2  # of the axes on a sheet
_FIGURE_INCH = 0.31  # the narrowest cell that fits its figure
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
    """plots/heatmap_<metric>-<method>-<parameters>.png and .pdf, one row per cell in tables/ as
    csv.

    Returns the files.
    """
    files, named = [], _named(grids)
    for name, grid in named.items():
        long = grid.cells.reset_index().melt(
            id_vars=grid.y, var_name=grid.x, value_name=grid.metric
        )
        files += write_texts(output / "tables", {f"{name}.csv": to_csv(long)})
        if style != SCREEN:
            named[name] = replace(grid, method=display_name(grid.method))
    with drawing(style):
        drawn = [(name, partial(draw_heatmap, grid)) for name, grid in named.items()]
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
    name_inch = _CHAR_INCH * max(len(line) for name in names for line in name.split("\n")) + 0.1
    width, height = max(_CELL_INCH[0], name_inch) * columns, max(_CELL_INCH[1] * rows, 0.6)
    canvas, [[axes]] = make_sheet((width, height))
    values = grid.cells.to_numpy(dtype=float)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    wider = 0.5 if low == high else 0.0
    image = paint_cells(axes, values, Normalize(low - wider, high + wider))
    for row, column in grid.best:
        axes.add_patch(
            _box(
                row, column, fill=False, edgecolor="#D55E00", linewidth=2.4, zorder=3, clip_on=False
            )
        )
    axes.set_xticks(range(columns), names, rotation=0 if name_inch * columns < _WIDEST_INCH else 90)
    axes.set_yticks(
        range(rows), [plain(break_lines(text, _LABEL_CHARS)) for text in grid.cells.index]
    )
    axes.set_xlabel(plain(break_lines(grid.x, max(24, int(width / _CHAR_INCH)))))
    axes.set_ylabel(plain(break_lines(grid.y, max(24, int(height / _CHAR_INCH)))))
    bar = canvas.add_axes((1 + 0.15 / width, 0, 0.13 / width, 1))
    legend = canvas.colorbar(image, cax=bar)
    legend.outline.set_visible(False)
    if legend.solids is not None:
        legend.solids.set(**_VECTOR)
    # else the colours alone, and the csv
    if fit(canvas) and canvas.get_figwidth() / columns >= _FIGURE_INCH:
        write_cells(axes, values, image, grid.spell)
    best = "; outlined: the best" if grid.best else ""
    mean = f"; mean of up to {grid.runs} runs a cell" if grid.runs > 1 else ""
    rest = f"; {grid.rest}" if grid.rest else ""
    missing = "; hatched: not run, or blank" if np.isnan(values).any() else ""
    title = f"{_TITLES.get(grid.metric, grid.metric)}, {label(grid.method)}"
    profile = f"; profile: {grid.profile}" if grid.profile else ""
    return finish(
        canvas, title, f"{grid.model} on {grid.suite}{rest}{profile}{best}{missing}{mean}"
    )


def paint_cells(axes: Axes, values: np.ndarray, norm: Normalize) -> QuadMesh:
    """A coloured cell a value, a hatched one for NaN; row 0 below."""
    edges = [np.arange(count + 1) - 0.5 for count in reversed(values.shape)]
    image = axes.pcolormesh(*edges, np.ma.masked_invalid(values), cmap=_MAP, norm=norm, **_VECTOR)
    for row, column in np.argwhere(np.isnan(values)):
        axes.add_patch(
            _box(row, column, facecolor="white", edgecolor="#bbbbbb", hatch="////", linewidth=0)
        )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def write_cells(
    axes: Axes, values: np.ndarray, image: QuadMesh, spell: Callable[[float], str]
) -> None:
    """The figure in every cell, black or white, whichever has more contrast."""
    for row, column in np.argwhere(np.isfinite(values)):
        value = values[row, column]
        red, green, blue = (channel**2.2 for channel in image.cmap(image.norm(value))[:3])
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < _DARK
        ink = "white" if dark else "black"
        axes.text(column, row, spell(value), ha="center", va="center", color=ink, fontsize=8)


def _box(row: int, column: int, **look: object) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **look)  # type: ignore[arg-type]
