"""The plots of a latency profile: T(q)/T(1) in its analytic range, and N-Grammys' heatmaps of row
batches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from specbench.profile import Grid, Profile
from specbench.report.plots.canvas import drawing, finish, make_sheet, save, set_log2
from specbench.report.plots.scene import style_of
from specbench.report.plots.sweep import paint_cells, write_cells

_PANEL_INCH = (3.8, 2.3)
_CELL_INCH = (0.5, 0.3)
_GAP_INCH = 0.3


def write_latency_plots(profile: Profile, folder: Path) -> list[Path]:
    """``<name>.png`` and ``.pdf``, and ``<name>-rows`` where row batches were timed. Returns the
    files.
    """
    with drawing():
        files = save(draw_latency(profile), folder / profile.name)
        if profile.rows is not None:
            files += save(draw_rows(profile), folder / f"{profile.name}-rows")
    return files


def draw_latency(profile: Profile) -> Figure:
    """Draw ms a forward, and below it the ratio to a single token's; shaded: the shortest context's
    analytic range.
    """
    grid = profile.surface
    assert isinstance(grid, Grid)
    canvas, [[upper], [lower]] = make_sheet(
        (_PANEL_INCH[0], 2 * _PANEL_INCH[1]), 2, 1, (0.0, 0.1), sharex=True
    )
    fine = np.linspace(1, grid.fed[-1], 200)
    bounds = profile.analytic(fine, float(grid.contexts[0]))
    if bounds:
        lower.fill_between(fine, *bounds, color="#dddddd", linewidth=0, label="analytic range")
    for place, context in enumerate(grid.contexts):
        marks = style_of(place).marks
        error = grid.ms[place] * grid.spread[place]
        upper.errorbar(grid.fed, grid.ms[place], error, capsize=2, elinewidth=0.8, **marks)
        lower.plot(
            grid.fed, grid.ms[place] / grid.ms[place, 0], label=f"context {context:.0f}", **marks
        )
    for axes, title in ((upper, "forward [ms]"), (lower, "T(q) / T(1)")):
        set_log2(axes)
        axes.set_xlim(0.92, grid.fed[-1] * 1.08)
        axes.set_ylabel(title)
        axes.grid()
    upper.set_ylim(bottom=0)
    lower.set_yscale("log", base=2)
    lower.yaxis.set_major_formatter("{x:g}")
    lower.set_xlabel("tokens fed (q)")
    note = (
        f"{profile.label}; medians of {profile.rounds} interleaved rounds, whiskers: half the"
        " interquartile range"
    )
    note += (
        f"; A/A of one token {min(profile.control):.3f} to {max(profile.control):.3f}"
        if profile.control
        else ""
    )
    handles, names = lower.get_legend_handles_labels()
    return finish(
        canvas, "A forward by the tokens fed to it", note, dict(zip(names, handles, strict=True))
    )


def draw_rows(profile: Profile) -> Figure:
    """One heatmap per context, one below the other: slowdown of k rows of w + 1 tokens over one
    token.
    """
    found = profile.rows
    assert found is not None
    width, height = _CELL_INCH[0] * len(found.w), _CELL_INCH[1] * len(found.k)
    inch = (width, (height + _GAP_INCH) * len(found.contexts))
    canvas, panels = make_sheet(
        inch, len(found.contexts), 1, (0.0, _GAP_INCH / height), sharex=True
    )
    planes = [found.slowdown(context) for context in found.contexts]
    norm = LogNorm(
        min(1.0, *(float(np.nanmin(plane)) for plane in planes)), float(np.nanmax(planes))
    )
    for axes, plane, context in zip(panels.flat, planes, found.contexts, strict=True):
        image = paint_cells(axes, plane, norm)
        write_cells(
            axes, plane, image, lambda value: f"{value:.2f}" if value < 10 else f"{value:.0f}"
        )
        axes.set_xticks(range(len(found.w)), [str(value) for value in found.w])
        axes.set_yticks(range(len(found.k)), [str(value) for value in found.k])
        axes.set_title(f"context {context}", fontsize=8.5, loc="left", pad=4)
        axes.set_ylabel("k, rows")
    panels[-1, 0].set_xlabel("w, drafted tokens a row")
    note = (
        f"{profile.label}; time of k rows of w + 1 tokens over that of one token; hatched: no such"
        " draft"
    )
    return finish(canvas, "From memory-bound to compute-bound: slowdown of row batches", note)
