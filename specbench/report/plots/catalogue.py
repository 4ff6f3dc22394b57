"""The plots of a report, one record each in one list: from it come the files, the page's titles and
the log's reasons.

Vanilla is not a bar but the line at 1 that bars are measured against.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from specbench.report.frames.findings import Findings
from specbench.report.frames.load import Load
from specbench.report.plots import SCREEN
from specbench.report.plots.acceptance import (
    draw_accept_lengths,
    draw_accept_positions,
    draw_growth,
    draw_lengths,
)
from specbench.report.plots.bars import (
    draw_bars,
    draw_groups,
    draw_radar,
    draw_sources,
    draw_time_split,
)
from specbench.report.plots.canvas import Drawing, drawing, save_all
from specbench.report.plots.scatter import draw_front, draw_frontier
from specbench.report.plots.scene import Scene, scenes
from specbench.report.plots.served import draw_crossover, draw_load_speedup, draw_served

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of plot. name: of its files. title: what the picture shows, on the page.

    draw: of a scene that has methods; instead of the figure the reason why it is missing.
    """

    name: str
    title: str
    draw: Callable[[Scene], Figure | str]


def write_plots(
    findings: Findings, output: Path, load: Load | None = None, style: str = SCREEN
) -> list[Path]:
    """Every plot that can be made, under plots/; the log's DEBUG lines say why others are not."""
    with drawing(style):
        return save_all(_list_drawings(findings, load, style != SCREEN), output / "plots", style)


def draw_plots(
    findings: Findings, load: Load | None = None, display: bool = False
) -> Iterator[tuple[str, Figure]]:
    """(file name without suffix, figure) of each; draw and save them inside
    ``canvas.drawing()``.
    """
    return (
        (name, figure)
        for name, draw in _list_drawings(findings, load, display)
        if (figure := draw())
    )


def _list_drawings(findings: Findings, load: Load | None, display: bool) -> list[Drawing]:
    every = product(scenes(findings, load, display), PLOTS)
    return [(f"{plot.name}{scene.tag}", partial(_draw, plot, scene)) for scene, plot in every]


def _draw(plot: Plot, scene: Scene) -> Figure | None:
    found = plot.draw(scene) if scene.series else "no method but vanilla"
    if isinstance(found, str):
        LOG.debug("plot %s of %s skipped: %s", plot.name, scene.where, found)
        return None
    return found


def title_of(stem: str) -> str:
    """'growth-tiny' -> 'Mean accepted tokens against tokens stored, tiny'; unknown names
    unchanged.
    """
    kind, _, where = stem.partition("-")
    known = [plot for plot in PLOTS if kind == plot.name or kind.startswith(f"{plot.name}_")]
    if not known:
        return ", ".join(filter(None, (kind.replace("_", " ").capitalize(), where)))
    plot = max(known, key=lambda plot: len(plot.name))
    rest = kind.removeprefix(plot.name).strip("_").replace("_", " ")
    return ", ".join(filter(None, (plot.title, rest, where)))


PLOTS = (
    Plot("speedup", "Speedup over vanilla", partial(draw_bars, figure="speedup")),
    Plot("mat", "Mean accepted tokens", partial(draw_bars, figure="mat")),
    Plot(
        "predicted_speedup",
        "Speedup predicted from the latency profile",
        partial(draw_bars, figure="predicted_speedup"),
    ),
    Plot("speedup_by_category", "Speedup by category", partial(draw_groups, figure="speedup")),
    Plot("mat_by_category", "Mean accepted tokens by category", partial(draw_groups, figure="mat")),
    Plot("speedup_against_mat", "Speedup against mean accepted tokens", draw_frontier),
    Plot("mat_against_fed", "Mean accepted tokens against tokens fed", draw_front),
    Plot("time_split", "Where a decode step's time goes", draw_time_split),
    Plot("accept_lengths", "Tokens emitted by a decode step", draw_accept_lengths),
    Plot("accept_positions", "Acceptance by position in the draft", draw_accept_positions),
    Plot("accept_sources", "Where drafted and accepted tokens came from", draw_sources),
    Plot("growth", "Mean accepted tokens against tokens stored", draw_growth),
    Plot("by_length", "Speed and acceptance by the length of the prompt or answer", draw_lengths),
    Plot("load", "Throughput against speed for a user", draw_served),
    Plot("load_speedup", "Speedup against load, measured", draw_load_speedup),
    Plot("crossover", "Load at which drafting stops paying", draw_crossover),
    Plot("radar", "Radar of the categories", draw_radar),
)
