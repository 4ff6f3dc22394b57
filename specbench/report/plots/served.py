"""Measured load: throughput against what a user sees, and speedup against the number of requests at once."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from specbench.record import CONTROL, VANILLA
from specbench.report.data.detail import LOADED
from specbench.report.plots.canvas import GRID, REFERENCE, add_legend, write_head
from specbench.report.plots.palette import style_of
from specbench.report.plots.scene import Scene
from specbench.report.text.label import label

_VANILLA: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 3)), "marker": "x"}


def draw_served(scene: Scene) -> Figure:
    """A line a method, a point a load: to the right each user gets tokens faster, above the server gives more."""
    frame = scene.detail[LOADED]
    canvas = Figure()
    axes = canvas.add_axes((0, 0, 1, 1))
    drawn = []
    for name, own, look in _lines(scene):
        (line,) = axes.plot(own["user_tokens_per_s"], own["tokens_per_s"], **look)
        drawn.append((name, line))
        for row in own.to_dict("records") if name == VANILLA else ():
            place = (row["user_tokens_per_s"], row["tokens_per_s"])
            axes.annotate(f"{row['requests']}", place, (4, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel("tokens/s that a user sees")
    axes.set_ylabel("tokens/s of the server")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(color=GRID, linewidth=0.6)
    loads = ", ".join(str(count) for count in sorted(frame["requests"].unique()))
    write_head(canvas, "Throughput against speed for a user", f"{scene.where}; points: {loads} requests at once")
    add_legend(canvas, [name for name, _ in drawn], [line for _, line in drawn])
    return canvas


def draw_load_speedup(scene: Scene) -> Figure:
    """A line a method with intervals; thin and dotted what a profile models. Below 1 drafting does not pay."""
    frame = scene.detail[LOADED]
    canvas = Figure()
    axes = canvas.add_axes((0, 0, 1, 1))
    drawn = []
    for name, own, look in _lines(scene):
        if name == VANILLA:
            continue
        (line,) = axes.plot(own["requests"], own["speedup"], **look)
        known = own[own["speedup_low"].notna()]
        axes.vlines(known["requests"], known["speedup_low"], known["speedup_high"], color=look["color"], linewidth=1)
        axes.plot(own["requests"], own["modelled_speedup"], color=look["color"], linestyle=":", linewidth=0.9)
        drawn.append((name, line))
    axes.axhline(1.0, **REFERENCE)
    _count_requests(axes, frame["requests"])
    axes.set_ylabel("speedup of the throughput")
    axes.set_ylim(bottom=0)
    axes.grid(color=GRID, linewidth=0.6)
    modelled = f"; dotted: modelled with {scene.profile}" if frame["modelled_speedup"].notna().any() else ""
    note = f"{scene.where}; dashed: vanilla under the same load; bars: 95 % over stretches{modelled}"
    write_head(canvas, "Speedup against load, measured", note)
    add_legend(canvas, [name for name, _ in drawn], [line for _, line in drawn])
    return canvas


def _lines(scene: Scene) -> list[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """(name, its rows by load, its look), vanilla first. A style is a method's in all loads."""
    frame = scene.detail[LOADED]
    found: list[tuple[str, pd.DataFrame, dict[str, Any]]] = []
    for (method, variant), own in frame.groupby(["method", "variant"], sort=False):
        rows = own.sort_values("requests", kind="stable")
        if method == VANILLA:
            found.insert(0, (VANILLA, rows, _VANILLA))
        elif method != CONTROL:
            look = style_of(len([name for name, *_ in found if name != VANILLA]))
            marks = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
            found.append((label(str(method), str(variant)), rows, marks))
    return found


def _count_requests(axes: Axes, counts: pd.Series) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(count) for count in sorted(counts.unique())]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("requests at once")
