"""The plots of a report, each as png and pdf. Vanilla is not a bar but the line at 1 that bars are measured against."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from specbench.record import CONTROL, VANILLA
from specbench.report.bars import draw_bars, draw_groups
from specbench.report.facts import Facts
from specbench.report.label import label
from specbench.report.palette import DPI, style
from specbench.report.radar import MIN_AXES, draw_radar
from specbench.report.series import Series
from specbench.report.summary import OVERALL, category_order

LOG = logging.getLogger(__name__)
_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text in the pdf
}
_TITLES = {"speedup": "Speedup over vanilla", "mat": "Mean accepted tokens (MAT)"}


@dataclass(frozen=True, slots=True)
class Scene:
    """What all plots of one model and suite share. tag: file name suffix, '' when the report has one scene only."""

    where: str
    tag: str
    series: tuple[Series, ...]
    categories: tuple[str, ...]


def write_plots(summary: pd.DataFrame, facts: Sequence[Facts], output: Path) -> list[Path]:
    """Every plot that can be made, under plots/; one that cannot be is skipped with a line in the log."""
    folder = output / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_LOOK), _quiet_fonts():
        return [path for scene in scenes(summary, facts) for path in _write_scene(scene, folder)]


def _write_scene(scene: Scene, folder: Path) -> Iterator[Path]:
    for name, draw in _PLOTS.items():
        reason = _missing(name, scene)
        if reason:
            LOG.info("plot %s of %s skipped: %s", name, scene.where, reason)
        else:
            yield from _save(draw(scene), folder / f"{name}{scene.tag}")


def scenes(summary: pd.DataFrame, facts: Sequence[Facts]) -> Iterator[Scene]:
    """One scene for each model and suite; a method keeps its style in all of them."""
    drawn = summary[~summary["method"].isin([VANILLA, CONTROL])]
    lossy = {name for fact in facts for name in fact.lossy}
    places = {
        key: place for place, key in enumerate(dict.fromkeys(zip(drawn["method"], drawn["variant"], strict=True)))
    }
    groups = summary.groupby(["model", "suite"], sort=False)
    for (model, suite), rows in groups:
        series = [
            Series(
                label(*key) + (" (lossy)" if key[0] in lossy else ""), style(places[key]), part.set_index("category")
            )
            for key, part in drawn.loc[drawn.index.isin(rows.index)].groupby(["method", "variant"], sort=False)
        ]
        kinds = dict.fromkeys(f"{f.dtype}, {f.device}" for f in facts if (f.model, f.suite) == (model, suite))
        cases = int((rows["cases"] + rows["errors"]).max())
        tag = "" if groups.ngroups == 1 else f"-{_slug(model)}-{_slug(suite)}"
        categories = tuple(category_order(rows.loc[rows["category"] != OVERALL, "category"]))
        yield Scene(f"{model} on {suite} ({'; '.join(kinds)}), {cases} cases", tag, tuple(series), categories)


def _slug(name: str) -> str:
    """A name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name)


def _missing(name: str, scene: Scene) -> str:
    """Why a plot cannot be made; '' when it can."""
    if not scene.series:
        return "no method beside vanilla"
    if name == "radar" and len(scene.categories) < MIN_AXES:
        return f"{len(scene.categories)} categories, a radar needs {MIN_AXES}"
    shown = _TITLES if name == "radar" else (name.removesuffix("_by_category"),)
    if all(series.rows[figure].isna().all() for series in scene.series for figure in shown):
        return f"{' and '.join(shown)} blank for every method"
    return ""


def _bars(figure: str) -> Callable[[Scene], Figure]:
    return lambda scene: draw_bars(scene.series, figure, OVERALL, _TITLES[figure], scene.where)


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
    "speedup_by_category": _groups("speedup"),
    "mat_by_category": _groups("mat"),
    "radar": _radar,
}


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Embedding text in a pdf logs a page of font tables at INFO, which would bury a run's own log."""
    logger = logging.getLogger("fontTools")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _save(figure: Figure, stem: Path) -> list[Path]:
    """Write png and pdf, each in one step."""
    files = []
    for kind in ("png", "pdf"):
        memory = io.BytesIO()
        metadata = {"CreationDate": None} if kind == "pdf" else None  # the same figures give the same bytes
        figure.savefig(memory, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
        path = stem.with_name(f"{stem.name}.{kind}")
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(memory.getvalue())
        partial.replace(path)
        files.append(path)
    return files
