"""The plots of a report, each as png and pdf. Vanilla is not a bar but the line at 1 that bars are measured against."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.figure import Figure

from specbench.record import OVERALL
from specbench.report.data.findings import Findings
from specbench.report.plots.acceptance import draw_accept_positions, shown
from specbench.report.plots.bars import draw_bars, draw_groups
from specbench.report.plots.canvas import drawing, save
from specbench.report.plots.factors import draw_prices
from specbench.report.plots.frontier import draw_frontier, gained
from specbench.report.plots.growth import draw_growth, growing
from specbench.report.plots.histograms import MOST_PANELS, drafting, draw_accept_lengths
from specbench.report.plots.predictions import both, draw_predicted
from specbench.report.plots.radar import MIN_AXES, draw_radar
from specbench.report.plots.scatter import draw_front, priced
from specbench.report.plots.scene import Scene, scenes
from specbench.report.plots.stacks import draw_sources, draw_time_split
from specbench.report.plots.tails import draw_lengths, draw_tails, lengthened

LOG = logging.getLogger(__name__)
_TITLES = {"speedup": "Speedup over vanilla", "mat": "Mean accepted tokens (MAT)"}


def write_plots(findings: Findings, output: Path) -> list[Path]:
    """Every plot that can be made, under plots/; one that cannot be is skipped with a line in the log."""
    folder = output / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    with drawing():
        return [path for name, figure in draw_plots(findings) for path in save(figure, folder / name)]


def draw_plots(findings: Findings) -> Iterator[tuple[str, Figure]]:
    """(file name without suffix, figure) of each; draw and save them inside ``canvas.drawing()``."""
    for scene in scenes(findings):
        for name, draw in _PLOTS.items():
            reason = _missing(name, scene)
            if reason:
                LOG.info("plot %s of %s skipped: %s", name, scene.where, reason)
            else:
                yield f"{name}{scene.tag}", draw(scene)
    yield from draw_prices(findings)


def _missing(name: str, scene: Scene) -> str:
    """Why a plot cannot be made; '' when it can."""
    if not scene.series:
        return "no method beside vanilla"
    if name in _WITHOUT:
        return _WITHOUT[name](scene)
    if name == "radar" and len(scene.categories) < MIN_AXES:
        return f"{len(scene.categories)} categories, a radar needs {MIN_AXES}"
    figures = _TITLES if name == "radar" else (name.removesuffix("_by_category"),)
    if "speedup" in figures and "mat" not in figures and not scene.timed:
        return "the target was replayed and has no times"
    if figures == ("speedup",) and scene.time_only:
        return "time only: accepted lengths were replayed, no speedup is claimed"
    if all(series.rows[figure].isna().all() for series in scene.series for figure in figures):
        return f"{' and '.join(figures)} blank for every method"
    return ""


def _no_gains(scene: Scene) -> str:
    found = drafting(scene.detail["accept_lengths"])
    count = found.groupby(["method", "variant"]).ngroups
    if count > MOST_PANELS:
        return f"{count} methods, at most {MOST_PANELS} are drawn; tables/accept_lengths.csv has them"
    return "" if count else "no method ever emitted more than one token in a step"


def _no_sources(scene: Scene) -> str:
    several = scene.detail["accept_sources"].groupby(["method", "variant"])["source"].nunique() > 1
    return "" if several.any() else "no method drafts from more than one source"


def _no_growth(scene: Scene) -> str:
    if scene.detail["growth"].empty:
        return "no method says how many tokens it remembers"
    return "" if len(growing(scene.detail["growth"])) else "nothing is remembered from case to case, or too few cases"


_WITHOUT: dict[str, Callable[[Scene], str]] = {
    "time_split": lambda scene: "no phases were recorded" if scene.detail["time_split"].empty else "",
    "accept_lengths": _no_gains,
    "accept_positions": lambda scene: (
        "too few drafts" if shown(scene.detail["accept_positions"], "drafted").empty else ""
    ),
    "accept_sources": _no_sources,
    "predicted_against_measured": lambda scene: "" if len(both(scene)) > 1 else "fewer than two methods have both",
    "speedup_against_mat": lambda scene: "" if gained(scene)[1] else "no method has both",
    "mat_against_fed": lambda scene: "" if priced(scene) else "what the methods fed is not known",
    "growth": _no_growth,
    "tails": lambda scene: "no step was timed" if scene.detail["tails"].empty else "",
    "by_length": lambda scene: "" if lengthened(scene) else "answers too short, or too few",
}


def _bars(figure: str) -> Callable[[Scene], Figure]:
    return lambda scene: draw_bars(scene.series, figure, OVERALL, _TITLES[figure], scene.where)


def _predicted(scene: Scene) -> Figure:
    where = f"{scene.where}; modelled with {scene.profile}"
    return draw_bars(scene.series, "predicted_speedup", OVERALL, "Predicted speedup (modelled)", where)


def _groups(figure: str) -> Callable[[Scene], Figure]:
    def draw(scene: Scene) -> Figure:
        groups = (*scene.categories, OVERALL) if len(scene.categories) > 1 else scene.categories
        return draw_groups(scene.series, figure, groups, f"{_TITLES[figure]} by category", scene.where)

    return draw


def _radar(scene: Scene) -> Figure:
    panels = {
        figure: title
        for figure, title in _TITLES.items()
        if any(series.rows[figure].notna().any() for series in scene.series)
    }
    return draw_radar(scene.series, panels, scene.categories, scene.where)


_PLOTS: dict[str, Callable[[Scene], Figure]] = {
    "speedup": _bars("speedup"),
    "mat": _bars("mat"),
    "predicted_speedup": _predicted,
    "predicted_against_measured": draw_predicted,
    "speedup_by_category": _groups("speedup"),
    "mat_by_category": _groups("mat"),
    "speedup_against_mat": draw_frontier,
    "mat_against_fed": draw_front,
    "radar": _radar,
    "time_split": draw_time_split,
    "accept_lengths": draw_accept_lengths,
    "accept_positions": draw_accept_positions,
    "accept_sources": draw_sources,
    "growth": draw_growth,
    "tails": draw_tails,
    "by_length": draw_lengths,
}
