"""Every method over every other: the ratio on the cases of both, with its interval, and a tie in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd

from specbench.report.data.findings import Findings
from specbench.report.data.headline import Headline
from specbench.report.data.pairs import Contest, Entrant, find_contest
from specbench.report.text.label import Cell, format_interval, format_number, label
from specbench.report.text.table import Table
from specbench.stats import Estimate

MOST, MOST_WRITTEN = 10, 40  # methods in the printed table, and in pairs.csv
TIE = "tie"
COLUMNS = ("model", "suite", "figure", "method", "variant", "over", "over_variant", "ratio", "ratio_low", "ratio_high")
_MEANING = (
    "The row's method over the column's, on the cases that all of them finished, paired by case. A tie: the 95 % "
    "interval of the ratio holds 1."
)
_FIGURES = {"speedup": "Speed", "predicted_speedup": "Predicted speed (modelled)", "mat": "MAT"}


def pair_tables(findings: Findings, headlines: Sequence[Headline]) -> list[Table]:
    """A table for each headline of two methods or more, the best first; the best ones only where there are many."""
    return [
        _table(*found, headline, len(headlines) > 1)
        for headline in headlines
        if (found := _entrants(findings, headline))
    ]


def _entrants(findings: Findings, headline: Headline) -> tuple[Contest, list[Entrant]] | None:
    keys = [(row["method"], row["variant"]) for row in headline.ranking]
    contest = find_contest(findings.contests, headline.place, headline.figure, keys[0])
    if contest is None:
        return None
    found = [key for key in keys if key in contest.entrants]
    return (contest, found) if len(found) > 1 else None


def _table(contest: Contest, entrants: Sequence[Entrant], headline: Headline, several: bool) -> Table:
    shown = entrants[:MOST]
    cut = f" The best {MOST} of {len(entrants)}; tables/pairs.csv has more." if len(entrants) > MOST else ""
    where = f"{' on '.join(headline.place)}. " if several else ""
    rows = tuple(
        (
            Cell(label(*first)),
            *(Cell("") if first == second else ratio_cell(contest.over(first, second)) for second in shown),
        )
        for first in shown
    )
    header = (_FIGURES[headline.figure], *(label(*entrant) for entrant in shown))
    return Table("pairs", "", f"{where}{_MEANING}{cut}", header, rows, frozenset())


def ratio_cell(ratio: Estimate) -> Cell:
    """A ratio of two methods with its interval, and whether that makes a tie."""
    low, high = (float("nan") if bound is None else bound for bound in (ratio.low, ratio.high))
    bounds = format_interval(low, high)
    tied = ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    return Cell(f"{TIE}, {format_number(ratio.value)}" if tied else format_number(ratio.value), bounds)


def pair_frame(findings: Findings, headlines: Sequence[Headline]) -> pd.DataFrame:
    """A row a pair of ``tables/pairs.csv``, the better one first."""
    rows = []
    for headline in headlines:
        found = _entrants(findings, headline)
        if found is None:
            continue
        for first, second in itertools.combinations(found[1][:MOST_WRITTEN], 2):
            ratio = found[0].over(first, second)
            rows.append((*headline.place, headline.figure, *first, *second, ratio.value, ratio.low, ratio.high))
    return pd.DataFrame(rows, columns=list(COLUMNS))
