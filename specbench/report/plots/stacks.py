"""Horizontal stacked bars, a row a method: the phases of a step, and the sources of drafts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from specbench.records.record import PHASES, VANILLA
from specbench.report.frames.detail import drop_repeats
from specbench.report.frames.trials import DRAFTER_PHASES
from specbench.report.label import format_microseconds, format_share
from specbench.report.plots.canvas import finish, make_rows, write_ends
from specbench.report.plots.palette import PARTS, Style, style_of
from specbench.report.plots.scene import Scene


def draw_time_split(scene: Scene) -> Figure | str:
    """Mean ms a decode step by phase, vanilla first; peers have no recorded phases and are named in the note.

    Where only replayed targets are in it: the phases of drafters alone, in microseconds.
    """
    frame = scene.detail["time_split"]
    if frame.empty:
        return "no phases were recorded"
    if scene.timed:
        frame = frame[frame["step_ms"].notna()]
    frame = drop_repeats(frame)
    names = [scene.spell(row.method, "" if row.method == VANILLA else row.variant) for row in frame.itertuples()]
    drawn = set(zip(frame["method"], frame["variant"], strict=True))
    missing = [series.name for series in scene.series if _key(series.rows) not in drawn]
    unit, factor, phases = ("ms", 1, PHASES) if scene.timed else ("\N{MICRO SIGN}s", 1000, DRAFTER_PHASES)
    looks = {phase: look for phase, look in zip(PHASES, PARTS, strict=True) if phase in phases}
    canvas, axes = make_rows(names)
    parts = {phase: factor * frame[f"{phase}_ms"].to_numpy(dtype=float) for phase in phases}
    _stack(axes, parts, looks)
    wholes = np.nansum(list(parts.values()), axis=0)
    write_ends(axes, wholes.tolist(), [_spell(value, scene.timed) for value in wholes])
    axes.set_xlabel(f"{unit} a decode step")
    note = f"{scene.where}; means over all steps, prefill not included"
    if missing:
        note += f"; left out, no phases recorded: {', '.join(missing)}"
    title = "Where a decode step's time goes" if scene.timed else "The drafters' own time in a decode step"
    return finish(canvas, title, note, _legend(looks))


def _spell(value: float, timed: bool) -> str:
    if not timed:
        return format_microseconds(value)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def draw_sources(scene: Scene) -> Figure | str:
    """Two bars a method: what it proposed and what of it was accepted, each by source."""
    frame = scene.detail["accept_sources"]
    if not (frame.groupby(["method", "variant"])["source"].nunique() > 1).any():
        return "no method drafts from more than one source"
    looks = {name: style_of(place) for place, name in enumerate(dict.fromkeys(frame["source"]))}
    groups = list(frame.groupby(["method", "variant"], sort=False))
    names = [scene.spell(*key) for key, _ in groups]
    canvas, axes = make_rows(names, bars=2)
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
        write_ends(axes, [100.0] * len(groups), texts, shift)
    axes.set_xlabel("share of nodes [%]")
    axes.set_xlim(0, 100)
    note = f"{scene.where}; above: proposed nodes, below: those the target accepted"
    return finish(canvas, "Where drafted and accepted tokens came from", note, _legend(looks))


def _key(rows: pd.DataFrame) -> tuple[str, str]:
    return str(rows["method"].iloc[0]), str(rows["variant"].iloc[0])


def _stack(
    axes: Axes, parts: Mapping[str, np.ndarray], looks: Mapping[str, Style], shift: float = 0.0, height: float = 0.62
) -> None:
    """parts: name -> (rows,) lengths, from the left; a part that a row does not have is blank."""
    places = np.arange(len(next(iter(parts.values())))) + shift
    left = np.zeros(len(places))
    for name, values in parts.items():
        widths = np.nan_to_num(values)
        axes.barh(places, widths, height, left=left, **looks[name].fill)
        left = left + widths


def _legend(looks: Mapping[str, Style]) -> dict[str, Patch]:
    return {name: Patch(**look.fill) for name, look in looks.items()}
