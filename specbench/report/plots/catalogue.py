"""The plots of a report, one record each in one list: from it come the files, the page's titles and the log's reasons.

Vanilla is not a bar but the line at 1 that bars are measured against.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from specbench.record import OVERALL
from specbench.report.data.findings import Findings
from specbench.report.data.load import Load
from specbench.report.plots.acceptance import (
    MOST_PANELS,
    draw_accept_lengths,
    draw_accept_positions,
    ever_gaining,
    with_enough_steps,
)
from specbench.report.plots.bars import draw_bars, draw_groups
from specbench.report.plots.canvas import drawing, save_all
from specbench.report.plots.growth import draw_growth, keep_growing
from specbench.report.plots.radar import MIN_AXES, draw_radar
from specbench.report.plots.scatter import (
    draw_front,
    draw_frontier,
    draw_predicted,
    find_gains,
    find_predicted,
    find_prices,
)
from specbench.report.plots.scene import Scene, scenes
from specbench.report.plots.served import draw_crossover, draw_load_speedup, draw_served
from specbench.report.plots.stacks import draw_sources, draw_time_split
from specbench.report.plots.tails import draw_lengths, draw_tails, no_lengths
from specbench.report.text.style import SCREEN
from specbench.report.text.table import make_folder

LOG = logging.getLogger(__name__)
MOST_CATEGORIES = 40  # in a plot; more cannot be told apart
_HEADINGS = {"speedup": "Speedup over vanilla", "mat": "Mean accepted tokens (MAT)"}


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of plot. name: of its files. title: what the picture shows, on the page.

    missing: why a scene that has methods has no such plot, '' where it can be drawn.
    """

    name: str
    title: str
    draw: Callable[[Scene], Figure]
    missing: Callable[[Scene], str]


def write_plots(findings: Findings, output: Path, load: Load | None = None, style: str = SCREEN) -> list[Path]:
    """Every plot that can be made, under plots/; the log's DEBUG lines say why others are not."""
    folder = output / "plots"
    make_folder(folder)
    with drawing(style):
        return save_all(draw_plots(findings, load, style != SCREEN), folder, style)


def draw_plots(findings: Findings, load: Load | None = None, display: bool = False) -> Iterator[tuple[str, Figure]]:
    """(file name without suffix, figure) of each; draw and save them inside ``canvas.drawing()``."""
    for scene in scenes(findings, load, display):
        for plot in PLOTS:
            reason = plot.missing(scene) if scene.series else "no method beside vanilla"
            if reason:
                LOG.debug("plot %s of %s skipped: %s", plot.name, scene.where, reason)
            else:
                yield f"{plot.name}{scene.tag}", plot.draw(scene)


def title_of(stem: str) -> str:
    """'tails-tiny' -> 'How unevenly long the steps of a method take, tiny'; unknown names as they are."""
    kind, _, where = stem.partition("-")
    known = [plot for plot in PLOTS if kind == plot.name or kind.startswith(f"{plot.name}_")]
    if not known:
        return ", ".join(filter(None, (kind.replace("_", " ").capitalize(), where)))
    plot = max(known, key=lambda plot: len(plot.name))
    rest = kind.removeprefix(plot.name).strip("_").replace("_", " ")
    return ", ".join(filter(None, (plot.title, rest, where)))


def _blank(*figures: str) -> Callable[[Scene], str]:
    """A plot of these figures is missing where all of them are blank."""

    def missing(scene: Scene) -> str:
        known = any(series.rows[figure].notna().any() for series in scene.series for figure in figures)
        return "" if known else f"{' and '.join(figures)} blank for every method"

    return missing


def _no_speedup(scene: Scene) -> str:
    if not scene.timed:
        return "the target was replayed and has no times"
    if scene.time_only:
        return "time only: accepted lengths were replayed, no speedup is claimed"
    return _blank("speedup")(scene)


def _few(missing: Callable[[Scene], str]) -> Callable[[Scene], str]:
    """A plot by category is missing where there are more of them than a reader can tell apart."""

    def too_many(scene: Scene) -> str:
        count = len(scene.categories)
        if count > MOST_CATEGORIES:
            return f"{count} categories, at most {MOST_CATEGORIES} are drawn; summary.csv has them"
        return missing(scene)

    return too_many


def _no_radar(scene: Scene) -> str:
    if len(scene.categories) < MIN_AXES:
        return f"{len(scene.categories)} categories, a radar needs {MIN_AXES}"
    return _blank(*_HEADINGS)(scene)


def _no_gains(scene: Scene) -> str:
    count = ever_gaining(scene.detail["accept_lengths"]).groupby(["method", "variant"]).ngroups
    if count > MOST_PANELS:
        return f"{count} methods, at most {MOST_PANELS} are drawn; tables/accept_lengths.csv has them"
    return "" if count else "no method ever emitted more than one token in a step"


def _no_sources(scene: Scene) -> str:
    several = scene.detail["accept_sources"].groupby(["method", "variant"])["source"].nunique() > 1
    return "" if several.any() else "no method drafts from more than one source"


def _no_growth(scene: Scene) -> str:
    if scene.detail["growth"].empty:
        return "no method records how many tokens it holds"
    return (
        "" if len(keep_growing(scene.detail["growth"])) else "no method holds more from case to case, or too few cases"
    )


def _empty(frame: str, reason: str) -> Callable[[Scene], str]:
    """A plot of a frame of details is missing where the frame has no row."""
    return lambda scene: reason if scene.detail[frame].empty else ""


def _bars(figure: str) -> Callable[[Scene], Figure]:
    return lambda scene: draw_bars(scene.series, figure, OVERALL, _HEADINGS[figure], scene.where)


def _predicted(scene: Scene) -> Figure:
    where = f"{scene.where}; modelled with {scene.profile}"
    return draw_bars(scene.series, "predicted_speedup", OVERALL, "Predicted speedup (modelled)", where)


def _groups(figure: str) -> Callable[[Scene], Figure]:
    def draw(scene: Scene) -> Figure:
        groups = (*scene.categories, OVERALL) if len(scene.categories) > 1 else scene.categories
        return draw_groups(scene.series, figure, groups, f"{_HEADINGS[figure]} by category", scene.where)

    return draw


def _radar(scene: Scene) -> Figure:
    panels = {figure: title for figure, title in _HEADINGS.items() if not _blank(figure)(scene)}
    return draw_radar(scene.series, panels, scene.categories, scene.where)


PLOTS = (
    Plot("speedup", "Speedup over vanilla", _bars("speedup"), _no_speedup),
    Plot("mat", "Mean accepted tokens", _bars("mat"), _blank("mat")),
    Plot(
        "predicted_speedup",
        "Speedup predicted from the latency profile",
        _predicted,
        _blank("predicted_speedup"),
    ),
    Plot(
        "predicted_against_measured",
        "Predicted against measured speedup",
        draw_predicted,
        lambda scene: "" if len(find_predicted(scene)) > 1 else "fewer than two methods have both",
    ),
    Plot("speedup_by_category", "Speedup by category", _groups("speedup"), _few(_no_speedup)),
    Plot("mat_by_category", "Mean accepted tokens by category", _groups("mat"), _few(_blank("mat"))),
    Plot(
        "speedup_against_mat",
        "Speedup against mean accepted tokens",
        draw_frontier,
        lambda scene: "" if find_gains(scene)[1] else "no method has both",
    ),
    Plot(
        "mat_against_fed",
        "Mean accepted tokens against tokens fed",
        draw_front,
        lambda scene: "" if find_prices(scene) else "what the methods fed is not known",
    ),
    Plot(
        "time_split",
        "Where a decode step's time goes",
        draw_time_split,
        _empty("time_split", "no phases were recorded"),
    ),
    Plot("accept_lengths", "Tokens emitted by a decode step", draw_accept_lengths, _no_gains),
    Plot(
        "accept_positions",
        "Acceptance by position in the draft",
        draw_accept_positions,
        lambda scene: "too few drafts" if with_enough_steps(scene.detail["accept_positions"], "drafted").empty else "",
    ),
    Plot("accept_sources", "Where drafted and accepted tokens came from", draw_sources, _no_sources),
    Plot("growth", "Mean accepted tokens against tokens held", draw_growth, _no_growth),
    Plot("tails", "How unevenly long the steps of a method take", draw_tails, _empty("tails", "no step was timed")),
    Plot("by_length", "Speed and acceptance by the length of the prompt or answer", draw_lengths, no_lengths),
    Plot(
        "load",
        "Throughput against speed for a user",
        draw_served,
        _empty("load", "each request ran alone"),
    ),
    Plot(
        "load_speedup",
        "Speedup against load, measured",
        draw_load_speedup,
        lambda scene: "" if len(set(scene.detail["load"]["requests"])) > 1 else "fewer than two loads",
    ),
    Plot(
        "crossover",
        "Load at which drafting stops paying",
        draw_crossover,
        lambda scene: "" if scene.load else "no latency profile, or no step that drafts",
    ),
    Plot("radar", "Radar of the categories", _radar, _few(_no_radar)),
)
