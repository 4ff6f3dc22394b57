"""Why a method is as fast as it is: its decode speedup as a product, written out and drawn as a staircase."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from specbench.report.frames.findings import FACTORS, Findings, explain
from specbench.report.label import Cell, format_number, label
from specbench.report.page.elements import cell_html, escape, tag

_TITLES = {
    "mat": "Tokens a step",
    "forward": "\N{MULTIPLICATION SIGN} forward",
    "overhead": "\N{MULTIPLICATION SIGN} overhead",
    "remainder": "\N{MULTIPLICATION SIGN} remainder",
}
_MEANING = (
    "Decode speedup = tokens a step (MAT) \N{MULTIPLICATION SIGN} what a forward costs against vanilla's "
    "\N{MULTIPLICATION SIGN} what drafting and the rest of a step cost \N{MULTIPLICATION SIGN} what is in no phase. "
    "In the staircase (log scale) every bar begins where the last one ended; the dark one is the product, dashed is "
    "vanilla."
)
_STEP_PX, _TALL_PX = 7, 7 * (len(FACTORS) + 1)


def why_section(findings: Findings) -> str:
    """A row a method, the fastest first; '' where no step was measured or modelled."""
    rows = explain(findings)
    rows = rows[np.isfinite(rows[[*FACTORS, "speedup"]].astype(float)).all(axis=1)]
    if rows.empty:
        return ""
    rows = rows.sort_values(["model", "suite", "basis", "speedup"], ascending=[True, True, True, False], kind="stable")
    names = [name for name in ("model", "suite", "basis") if rows[name].nunique() > 1]
    labels, figures = [*map(str.capitalize, names), "Method"], [*_TITLES.values(), "= Decode speedup"]
    head = "".join(tag("th", "name", title) for title in labels) + tag("th", "stairs", "Staircase")
    head += "".join(tag("th", "", title) for title in figures)
    scale = _Scale(rows)
    body = "".join(_row(row, names, scale) for _, row in rows.iterrows())
    basis = "" if "basis" in names else f" {str(rows['basis'].iloc[0]).capitalize()}."
    return (
        f'<p class="soft">{escape(_MEANING + basis)}</p>\n<div class="scroll"><table class="sortable">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


class _Scale:
    """Per cent of the width, on a log scale from the lowest to the highest stair of all methods."""

    def __init__(self, rows: pd.DataFrame) -> None:
        ends = [math.log(end) for _, row in rows.iterrows() for end in _ends(row)]
        self._low, self._high = min(0.0, *ends) - 0.05, max(0.0, *ends) + 0.05

    def place(self, value: float) -> float:
        return 100 * (math.log(value) - self._low) / (self._high - self._low)


def _ends(row: pd.Series) -> Sequence[float]:
    """Where each stair ends, from vanilla's 1 on."""
    return [1.0, *np.cumprod([float(row[name]) for name in FACTORS])]


def _row(row: pd.Series, names: Sequence[str], scale: _Scale) -> str:
    cells = [tag("td", "name", escape(str(row[name]))) for name in names]
    cells.append(tag("td", "name", cell_html(Cell(label(row["method"], row["variant"])), False)))
    cells.append(tag("td", "stairs", _stairs(row, scale)))
    cells += [tag("td", "", format_number(float(row[name]))) for name in FACTORS]
    cells.append(f"<td><b>{format_number(float(row['speedup']))}</b></td>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _stairs(row: pd.Series, scale: _Scale) -> str:
    ends = _ends(row)
    steps = [(f"factor{place}", ends[place], ends[place + 1]) for place in range(len(FACTORS))]
    bars = ""
    for place, (kind, start, end) in enumerate([*steps, ("product", 1.0, ends[-1])]):
        left, right = sorted((scale.place(start), scale.place(end)))
        size = (
            f'x="{left:.2f}%" y="{place * _STEP_PX + 1}" width="{max(0.4, right - left):.2f}%" height="{_STEP_PX - 2}"'
        )
        bars += f'<rect class="{kind}" {size}/>'
    one = scale.place(1.0)
    line = f'<line class="one" x1="{one:.2f}%" x2="{one:.2f}%" y1="0" y2="{_TALL_PX}"/>'
    return f'<svg width="100%" height="{_TALL_PX}" aria-hidden="true">{line}{bars}</svg>'
