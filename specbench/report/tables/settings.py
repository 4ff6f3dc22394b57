"""A sweep's best setting of each method, and its neighbours: what one step along a parameter costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specbench.report.data.findings import Findings
from specbench.report.data.headline import Headline, Row, name_of
from specbench.report.data.pairs import find_contest
from specbench.report.data.sweep import Setting, best_settings
from specbench.report.tables.pairs import ratio_cell
from specbench.report.text.label import Cell, format_interval, format_number
from specbench.report.text.table import Table

_MEANING = (
    "The best setting of each method, then what one step along one parameter makes of it. Best over it: paired by case;"
    " a tie: the interval of the ratio holds 1."
)
_FIGURES = {"speedup": "Speedup", "predicted_speedup": "Predicted (modelled)", "mat": "MAT"}


def settings_tables(findings: Findings, headlines: Sequence[Headline]) -> list[Table]:
    """A row a setting; no table where nothing was varied."""
    rows = [row for headline in headlines for row in _rows(findings, headline)]
    if not rows:
        return []
    figure = _FIGURES[headlines[0].figure]
    return [Table("settings", "", _MEANING, ("Setting", figure, "Best over it"), tuple(rows), frozenset())]


def _rows(findings: Findings, headline: Headline) -> Iterator[tuple[Cell, ...]]:
    for best, *others in best_settings(findings, headline.figure, headline.place):
        yield Cell(f"best: {name_of(dict(best.row))}"), _figure(dict(best.row), headline.figure), Cell("")
        for other in others:
            name = Cell(f"{best.row['method']}: {other.changed}")
            yield name, _figure(dict(other.row), headline.figure), _ratio(findings, headline, best, other)


def _figure(row: Row, figure: str) -> Cell:
    return Cell(format_number(row[figure]), format_interval(row[f"{figure}_low"], row[f"{figure}_high"]))


def _ratio(findings: Findings, headline: Headline, best: Setting, other: Setting) -> Cell:
    first, second = ((each.row["method"], each.row["variant"]) for each in (best, other))
    contest = find_contest(findings.contests, headline.place, headline.figure, first)
    return ratio_cell(contest.over(first, second)) if contest and second in contest.entrants else Cell("")
