"""Every method over every other, and the best setting of a sweep over its neighbours: ratios with
their intervals.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import Headline, name_of, of_server
from specbench.report.frames.pairs import Contest, Entrant, find_contest
from specbench.report.frames.sweep import best_settings
from specbench.report.label import Cell, format_interval, format_number, label
from specbench.report.table import MEANINGS, Heading, Table
from specbench.stats import Estimate

MOST, MOST_WRITTEN = 10, 40  # methods in the printed table, and in pairs.csv
TIE = "tie"
COLUMNS = (
    "model",
    "suite",
    "figure",
    "method",
    "variant",
    "over",
    "over_variant",
    "ratio",
    "ratio_low",
    "ratio_high",
)
_FIGURES = {"speedup": "Speed", "predicted_speedup": "Predicted speed (modelled)", "mat": "MAT"}
_BEST_FIGURES = {"speedup": "Speedup", "predicted_speedup": "Predicted (modelled)", "mat": "MAT"}


def pair_tables(findings: Findings, headlines: Sequence[Headline]) -> list[Table]:
    """A table for each headline of two methods or more, the best first; the best ones only if there
    are many.
    """
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


def _table(
    contest: Contest, entrants: Sequence[Entrant], headline: Headline, several: bool
) -> Table:
    shown = entrants[:MOST]
    cut = (
        f" The best {MOST} of {len(entrants)}; tables/pairs.csv has more."
        if len(entrants) > MOST
        else ""
    )
    where = f"{' on '.join(headline.place)}. " if several else ""
    rows = tuple(
        (
            Cell(label(*first)),
            *(
                Cell("") if first == second else ratio_cell(contest.over(first, second))
                for second in shown
            ),
        )
        for first in shown
    )
    header = (_FIGURES[headline.figure], *(label(*entrant) for entrant in shown))
    return Table("pairs", "", f"{where}{MEANINGS['pairs']}{cut}", header, rows)


def ratio_cell(ratio: Estimate) -> Cell:
    """A ratio of two methods with its interval, and whether that makes a tie."""
    text, (low, high) = format_number(ratio.value), ratio.bounds
    return Cell(f"{TIE}, {text}" if low <= 1 <= high else text, format_interval(low, high))


def pair_frame(findings: Findings, headlines: Sequence[Headline]) -> pd.DataFrame:
    """One row per pair of ``tables/pairs.csv``, the better one first."""
    rows = []
    for headline in headlines:
        found = _entrants(findings, headline)
        if found is None:
            continue
        for first, second in itertools.combinations(found[1][:MOST_WRITTEN], 2):
            ratio = found[0].over(first, second)
            rows.append(
                (
                    *headline.place,
                    headline.figure,
                    *first,
                    *second,
                    ratio.value,
                    ratio.low,
                    ratio.high,
                )
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def settings_tables(findings: Findings, headlines: Sequence[Headline]) -> list[Table]:
    """One row per setting of a sweep, each method's best before its neighbours; no table if nothing
    was varied.
    """
    rows = tuple(row for headline in headlines for row in _settings(findings, headline))
    if not rows:
        return []
    header = ("Setting", _BEST_FIGURES[headlines[0].figure], "Best over it")
    return [Table("settings", "", MEANINGS["settings"], header, rows)]


def _settings(findings: Findings, headline: Headline) -> Iterator[tuple[Cell, ...]]:
    figure = Heading("", headline.figure)
    for (_, best), *others in best_settings(findings, headline.figure, headline.place):
        yield Cell(f"best: {name_of(best)}"), figure.cell(of_server(findings, best)), Cell("")
        for changed, row in others:
            first, second = ((each["method"], each["variant"]) for each in (best, row))
            contest = find_contest(findings.contests, headline.place, headline.figure, first)
            ratio = (
                ratio_cell(contest.over(first, second))
                if contest and second in contest.entrants
                else Cell("")
            )
            yield Cell(f"{row['method']}: {changed}"), figure.cell(of_server(findings, row)), ratio
