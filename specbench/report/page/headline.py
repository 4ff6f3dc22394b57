"""The first screen of a page: the headline in a sentence, and every method's speedup as a bar with its interval.

The bars are drawn in per cent of whatever width there is, so a phone shows the same picture as a desk.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from specbench.report.frames.headline import Headline, Row, name_of
from specbench.report.label import Cell, format_interval, format_number
from specbench.report.page.elements import cell_html, escape

_MOST_BARS = 12  # further ones are folded
_MOST_HEADLINES = 3
_TITLES = {
    "speedup": "Speedup over vanilla",
    "predicted_speedup": "Predicted speedup over vanilla (modelled)",
    "mat": "Mean accepted tokens (MAT)",
}


def headlines_html(headlines: Sequence[Headline]) -> str:
    """The first headlines with their bars, further ones folded; '' where there is none."""
    several = len(headlines) > 1
    parts = [_headline(headline, several) for headline in headlines]
    more = "".join(parts[_MOST_HEADLINES:])
    folded = f"<details><summary>{len(parts) - _MOST_HEADLINES} more</summary>{more}</details>" if more else ""
    return "".join(parts[:_MOST_HEADLINES]) + folded


def _headline(headline: Headline, several: bool) -> str:
    tone = {True: "good", False: "warn", None: ""}[headline.good]
    where = f'<span class="soft">{escape(" on ".join(headline.place))}</span><br>' if several else ""
    under = f'<span class="soft">{escape(headline.under)}</span>'
    loads = f'<p class="soft">{escape(headline.loads)}</p>' if headline.loads else ""
    remarks = f"<p>{escape(' '.join(headline.remarks))}</p>" if headline.remarks else ""
    return (
        f'<div class="headline {tone}"><p>{where}<strong>{escape(headline.lead)}</strong>{escape(headline.rest)} '
        f"{under}</p>{remarks}{loads}</div>\n{_bars(headline)}"
    )


def _bars(headline: Headline) -> str:
    rows, figure = headline.ranking, headline.figure
    top = 1.02 * max(1.0, *(_high(row, figure) for row in rows))
    items = [_bar(row, figure, top) for row in rows]
    more = "".join(items[_MOST_BARS:])
    folded = f'<details><summary>{len(items) - _MOST_BARS} more</summary><ol class="bars">{more}</ol></details>'
    bounded = any(pd.notna(row[f"{figure}_low"]) for row in rows)
    none = "; no intervals under load" if headline.loaded else "; too few cases for intervals"
    note = "dashed: vanilla" + ("; lines: 95 % intervals" if bounded else none)
    return (
        f'<figure class="ranks"><figcaption>{_TITLES[figure]} <span class="soft">({note})</span></figcaption>'
        f'<ol class="bars">{"".join(items[:_MOST_BARS])}</ol>{folded if more else ""}</figure>\n'
    )


def _high(row: Row, figure: str) -> float:
    high = row[f"{figure}_high"]
    return float(row[figure] if pd.isna(high) else high)


def _bar(row: Row, figure: str, top: float) -> str:
    value, low, high = (float(row[f"{figure}{end}"]) for end in ("", "_low", "_high"))
    bounds = format_interval(low, high)
    spread = f" <small>[{bounds}]</small>" if bounds else ""
    whisker = "" if not bounds else _line("whisker", low / top, high / top, 11, 11)
    return (
        f'<li><span class="who">{cell_html(Cell(name_of(row)), False)}</span>'
        f'<svg width="100%" height="22" aria-hidden="true"><rect class="{"gain" if value > 1 else "loss"}" x="0" y="3" '
        f'width="{100 * value / top:.2f}%" height="16"/>{whisker}{_line("one", 1 / top, 1 / top, 0, 22)}</svg>'
        f'<span class="amount"><b>{format_number(value)}</b>{spread}</span></li>\n'
    )


def _line(kind: str, start: float, end: float, above: int, below: int) -> str:
    """start, end: shares of the width."""
    return f'<line class="{kind}" x1="{100 * start:.2f}%" x2="{100 * end:.2f}%" y1="{above}" y2="{below}"/>'
