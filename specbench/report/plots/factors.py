"""A speedup drawn as its product, and the methods above or below the price of the tokens that they feed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.report.data.factors import FACTORS
from specbench.report.plots.canvas import GRID, REFERENCE, set_log2, write_head
from specbench.report.plots.palette import PARTS
from specbench.report.text.label import label

_WIDTH_INCH, _ROW_INCH = 3.6, 0.27
_NAMES = {
    "mat": "MAT: tokens a step",
    "forward": "forward: T(1) / T(q)",
    "overhead": "overhead: all but the forward",
    "remainder": "remainder",
}
_LOOKS = dict(zip(FACTORS, (PARTS[3], PARTS[2], PARTS[1], PARTS[0]), strict=True))


def draw_factors(row: pd.Series) -> Figure:
    """One row of ``explain`` as a staircase on a log scale: every bar begins where the last one ended."""
    steps = [float(row[name]) for name in FACTORS]
    ends = np.cumprod([1.0, *steps])
    canvas = Figure(figsize=(_WIDTH_INCH, _ROW_INCH * (len(FACTORS) + 1) + 0.1))
    axes = canvas.add_axes((0, 0, 1, 1))
    for place, (name, start, end) in enumerate(zip(FACTORS, ends[:-1], ends[1:], strict=True)):
        look = _LOOKS[name]
        fill: dict[str, Any] = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": "white", "linewidth": 0.3}
        axes.barh(place, end - start, 0.62, left=start, **fill)
        axes.vlines(end, place - 0.31, place + 1.31, color="#777777", linewidth=0.8)
        _write(axes, max(start, end), place, f"\N{MULTIPLICATION SIGN} {row[name]:.2f}")
    axes.barh(len(FACTORS), ends[-1] - 1, 0.62, left=1.0, color="#444444")
    _write(axes, max(1.0, ends[-1]), len(FACTORS), f"= {row['speedup']:.2f}")
    axes.axvline(1.0, **REFERENCE)
    axes.set_yticks(range(len(FACTORS) + 1), [*(_NAMES[name] for name in FACTORS), "decode speedup"])
    axes.set_ylim(len(FACTORS) + 0.5, -0.6)
    _log_axis(axes, float(ends.min()), float(ends.max()))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("product so far")
    title = f"Why {label(row['method'], row['variant'])} is {'fast' if row['speedup'] > 1 else 'not fast'}"
    note = f"{row['model']} on {row['suite']}, {row['basis']}; log scale; dashed: vanilla"
    write_head(canvas, title, note)
    return canvas


def _write(axes: Axes, end: float, place: int, text: str) -> None:
    axes.annotate(text, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8)


def _log_axis(axes: Axes, low: float, high: float) -> None:
    """Halves and doubles, with room for a figure on the right."""
    set_log2(axes)
    axes.set_xlim(min(0.9, 0.92 * low), 1.45 * max(1.1, high))
    axes.grid(axis="x", color=GRID, linewidth=0.6)
