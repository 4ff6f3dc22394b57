"""Plots of load: throughput against tokens/s per user, speedup against the number of requests, the
MAT that pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.records.record import CONTROL, VANILLA
from specbench.report.frames.detail import LOADED
from specbench.report.frames.load import FEW, LABELLED
from specbench.report.plots.canvas import REFERENCE, finish, make_sheet, set_log2
from specbench.report.plots.scene import Scene, style_of

_PALEST = 0.65  # grey of the smallest load
_MARGIN = 0.12  # of the axes, so that no mark is cut
_VANILLA: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 3)), "marker": "x"}


def draw_served(scene: Scene) -> Figure | str:
    """A line a method, a point a load: to the right each user gets tokens faster, above the server
    gives more.
    """
    frame = scene.detail[LOADED]
    if frame.empty:
        return "each request ran alone"
    canvas, [[axes]] = make_sheet()
    drawn = {}
    for name, own, look in _lines(scene):
        (line,) = axes.plot(own["user_tokens_per_s"], own["tokens_per_s"], **look)
        drawn[name] = line
        for row in own.to_dict("records") if name == VANILLA else ():
            place = (row["user_tokens_per_s"], row["tokens_per_s"])
            axes.annotate(
                f"{row['requests']}", place, (4, 4), textcoords="offset points", fontsize=8
            )
    axes.set_xlabel("tokens/s that a user sees")
    axes.set_ylabel("tokens/s of the server")
    axes.margins(_MARGIN)
    if frame["requests"].nunique() > 1:  # one load alone is a cloud of points far from 0
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    axes.grid()
    loads = ", ".join(str(count) for count in sorted(frame["requests"].unique()))
    note = f"{scene.everywhere}; points: {loads} requests at once"
    return finish(canvas, "Throughput against speed for a user", note, drawn)


def draw_load_speedup(scene: Scene) -> Figure | str:
    """One line per method with intervals; thin and dotted what a profile models. Below 1 drafting
    does not pay.
    """
    frame = scene.detail[LOADED]
    if frame["requests"].nunique() < 2:
        return "fewer than two loads"
    canvas, [[axes]] = make_sheet()
    drawn = {}
    for name, own, look in _lines(scene):
        if name == VANILLA:
            continue
        (line,) = axes.plot(own["requests"], own["speedup"], **look)
        known = own[own["speedup_low"].notna()]
        axes.vlines(
            known["requests"],
            known["speedup_low"],
            known["speedup_high"],
            color=look["color"],
            linewidth=1,
        )
        axes.plot(
            own["requests"],
            own["modelled_speedup"],
            color=look["color"],
            linestyle=":",
            linewidth=0.9,
        )
        drawn[name] = line
    axes.axhline(1.0, **REFERENCE)
    _dress(
        axes, frame["requests"].unique().tolist(), "requests at once", "speedup of the throughput"
    )
    axes.set_ylim(bottom=0)
    modelled = (
        f"; dotted: modelled with {scene.profile}"
        if frame["modelled_speedup"].notna().any()
        else ""
    )
    note = (
        f"{scene.everywhere}; dashed: vanilla under the same load; bars: 95 % over"
        f" stretches{modelled}"
    )
    return finish(canvas, "Speedup against load, measured", note, drawn)


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
            found.append((scene.spell(str(method), str(variant)), rows, look.marks))
    return found


def draw_crossover(scene: Scene) -> Figure | str:
    """Draw above one line per method, which pays above 1, and below the break-even MAT of each
    load.
    """
    if scene.load is None:
        return "no latency profile, or no step that drafts"
    speedups, even = scene.load.speedups, scene.load.break_even
    canvas, [[upper], [lower]] = make_sheet((3.8, 5.2), 2, 1, (0.0, 0.26))
    drawn = {}
    for series in scene.series:
        own = series.of(speedups).sort_values("concurrency")
        if len(own):
            (drawn[series.name],) = upper.plot(
                own["concurrency"], own["modelled_speedup"], **series.style.marks
            )
    upper.axhline(1.0, **REFERENCE)
    _dress(upper, speedups["concurrency"].unique().tolist(), "requests at once", "modelled speedup")
    loads = list(even.groupby("concurrency"))
    for place, (count, own) in enumerate(loads):
        # colours are methods
        look, grey = style_of(place), _PALEST * (1 - place / max(1, len(loads) - 1))
        lower.plot(
            own["fed"],
            own["break_even_mat"],
            color=str(grey),
            linestyle=look.line,
            marker=look.marker,
            label=f"{count} at once",
        )
    _dress(lower, [2, 4, 8, 16, 32, 64, 96], "tokens fed a request and step", "break-even MAT")
    lower.set_yscale("log", base=2)
    lower.set_ylim(0.95, min(16.0, float(even["break_even_mat"].max()) * 1.1))
    lower.yaxis.set_major_formatter("{x:g}")
    lower.legend(ncols=2)
    outside = (
        "; partly beyond what the profile measured" if (speedups["outside"] > FEW).any() else ""
    )
    note = (
        f"{LABELLED}; {scene.where}; {scene.load.where}; dashed: vanilla under the same"
        f" load{outside}"
    )
    return finish(canvas, "When speculation stops paying", note, drawn)


def _dress(axes: Axes, ticks: Sequence[float], across: str, up: str) -> None:
    set_log2(axes, ticks)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid()
