"""Horizontal stacked bars, a row a method: the phases of a step, and the sources of drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from specbench.record import PHASES, VANILLA
from specbench.report.data.detail import drop_repeats
from specbench.report.data.trials import DRAFTER_PHASES
from specbench.report.plots.canvas import GRID, add_legend, plain, write_head
from specbench.report.plots.palette import PARTS, Style, style_of
from specbench.report.plots.scene import Scene
from specbench.report.text.label import break_lines, format_microseconds, format_share, label

_WIDTH_INCH = 4.0
_ROW_INCH = 0.3
_NAME_CHARS = 24


def draw_time_split(scene: Scene) -> Figure:
    """Mean ms a decode step by phase, vanilla first; peers have no recorded phases and are named in the note.

    Where only replayed targets are in it: the phases of drafters alone, in microseconds.
    """
    frame = scene.detail["time_split"]
    if scene.timed:
        frame = frame[frame["step_ms"].notna()]
    frame = drop_repeats(frame)
    names = [label(row.method, "" if row.method == VANILLA else row.variant) for row in frame.itertuples()]
    drawn = set(zip(frame["method"], frame["variant"], strict=True))
    missing = [series.name for series in scene.series if _key(series.rows) not in drawn]
    unit, factor, phases = ("ms", 1, PHASES) if scene.timed else ("\N{MICRO SIGN}s", 1000, DRAFTER_PHASES)
    looks = {phase: look for phase, look in zip(PHASES, PARTS, strict=True) if phase in phases}
    canvas, axes = _sheet(names)
    parts = {phase: factor * frame[f"{phase}_ms"].to_numpy(dtype=float) for phase in phases}
    _stack(axes, parts, looks)
    wholes = np.nansum(list(parts.values()), axis=0)
    _annotate(axes, wholes, [_spell(value, scene.timed) for value in wholes])
    axes.set_xlabel(f"{unit} a decode step")
    note = f"{scene.where}; means over all steps, prefill not included"
    if missing:
        note += f"; left out, no phases recorded: {', '.join(missing)}"
    title = "Where a decode step's time goes" if scene.timed else "The drafters' own time in a decode step"
    write_head(canvas, title, note)
    _legend(canvas, looks)
    return canvas


def _spell(value: float, timed: bool) -> str:
    if not timed:
        return format_microseconds(value)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def draw_sources(scene: Scene) -> Figure:
    """Two bars a method: what it proposed and what of it was accepted, each by source."""
    frame = scene.detail["accept_sources"]
    looks = {name: style_of(place) for place, name in enumerate(dict.fromkeys(frame["source"]))}
    groups = list(frame.groupby(["method", "variant"], sort=False))
    names = [label(*key) for key, _ in groups]
    canvas, axes = _sheet(names, rows=2 * len(names))
    for column, shift in (("proposed", -0.2), ("accepted", 0.2)):
        parts = {
            name: np.array([rows.loc[rows["source"] == name, f"{column}_share"].sum() for _, rows in groups])
            for name in looks
        }
        _stack(axes, {name: 100 * values for name, values in parts.items()}, looks, shift, 0.34)
        texts = [f"{column} {rows[column].sum():,}" for _, rows in groups]
        if column == "accepted":
            rates = [rows["accepted"].sum() / max(1, rows["proposed"].sum()) for _, rows in groups]
            texts = [f"{text} ({format_share(rate)})" for text, rate in zip(texts, rates, strict=True)]
        _annotate(axes, np.full(len(groups), 100.0), texts, shift)
    axes.set_xlabel("share of nodes [%]")
    axes.set_xlim(0, 100)
    note = f"{scene.where}; above: proposed nodes, below: those the target accepted"
    write_head(canvas, "Where drafted and accepted tokens came from", note)
    _legend(canvas, looks)
    return canvas


def _key(rows: pd.DataFrame) -> tuple[str, str]:
    return str(rows["method"].iloc[0]), str(rows["variant"].iloc[0])


def _sheet(names: Sequence[str], rows: int | None = None) -> tuple[Figure, Axes]:
    """An empty figure with a named row a method, the first on top."""
    lines = max(name.count("\n") + 1 for name in map(_broken, names))
    room = max(_ROW_INCH, 0.16 * lines)
    canvas = Figure(figsize=(_WIDTH_INCH, max(0.7, room * len(names), 0.24 * (rows or 0)) + 0.1))
    axes = canvas.add_axes((0, 0, 1, 1))  # names, title and legend lie outside; saving grows the paper to hold them
    axes.set_yticks(range(len(names)), [plain(_broken(name)) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    return canvas, axes


def _broken(name: str) -> str:
    return break_lines(name, _NAME_CHARS)


def _stack(
    axes: Axes, parts: Mapping[str, np.ndarray], looks: Mapping[str, Style], shift: float = 0.0, height: float = 0.62
) -> None:
    """parts: name -> (rows,) lengths, from the left; a part that a row does not have is blank."""
    places = np.arange(len(next(iter(parts.values())))) + shift
    left = np.zeros(len(places))
    for name, values in parts.items():
        widths = np.nan_to_num(values)
        axes.barh(places, widths, height, left=left, **_fill(looks[name]))
        left = left + widths


def _fill(look: Style) -> dict[str, Any]:
    return {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": "white", "linewidth": 0.4}


def _annotate(axes: Axes, ends: np.ndarray, texts: Sequence[str], shift: float = 0.0) -> None:
    for place, (end, text) in enumerate(zip(ends, texts, strict=True)):
        axes.annotate(text, (end, place + shift), (5, 0), textcoords="offset points", va="center", fontsize=8)


def _legend(canvas: Figure, looks: Mapping[str, Style]) -> None:
    add_legend(canvas, list(looks), [Patch(**_fill(look)) for look in looks.values()])
