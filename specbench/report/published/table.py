"""Published beside measured figures: a table for each table of a source, with notes as letters, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

import pandas as pd

from specbench.report.label import BLANK, Cell, format_number, format_rate
from specbench.report.published.figures import PublishedFigure
from specbench.report.published.match import MAT_TOLERANCE, REPRODUCED, Match
from specbench.report.table import Table, write_tables

NAME = "published"
_NAMED = ("source", "table", "model", "suite", "category", "name")
TITLES = {"mat": "MAT", "speedup": "speedup", "tokens_per_s": "tokens/s", "target_compute": "target compute"}
_WRITTEN: dict[str, Callable[[float], str]] = {
    "mat": lambda value: format_number(value, 3),
    "tokens_per_s": format_rate,
}
_HEADER = ("Row there: ours", "Task", "Figure", "Paper", "Ours", "Difference", "Verdict", "Notes")
_JUDGED = f"MAT within {MAT_TOLERANCE} is reproduced; times of another machine are shown and not judged."


def published_tables(matches: Sequence[Match], figures: Sequence[PublishedFigure]) -> list[Table]:
    """One table for each published one that has a counterpart; figures: all that were published."""
    places = dict.fromkeys(match.figure.place for match in matches)
    return [
        _table(
            [match for match in matches if match.figure.place == place],
            sum(figure.place == place for figure in figures),
        )
        for place in places
    ]


def _table(matches: Sequence[Match], printed: int) -> Table:
    first = matches[0].figure
    notes = dict.fromkeys(note for match in matches for note in _notes(match))
    letters = {note: _letters(number) for number, note in enumerate(notes)}
    machines = ", ".join(dict.fromkeys(match.ran_on for match in matches))
    date = f" ({first.date})" if first.date else ""
    there = first.hardware or "hardware not stated"
    shared = len({id(match.figure) for match in matches})
    legend = " ".join(f"{letter}: {note}." for note, letter in letters.items())
    return Table(
        f"{NAME} {first.source} {first.table}",
        f"{first.source}, {first.table}{date}, measured on: {there}; ours: {machines}.",
        f"Figures with a counterpart here: {shared} of {printed}. {_JUDGED} {legend}".strip(),
        _HEADER,
        tuple(_row(match, letters) for match in matches),
        frozenset(),
        labels=2,
        spread=False,
    )


def _notes(match: Match) -> list[str]:
    """The variant of the run, then the notes."""
    return [*([f"run with {match.variant}"] if match.variant else []), *match.notes]


def _letters(number: int) -> str:
    """A ... z, aa, ab ..."""
    high, low = divmod(number, len(ascii_lowercase))
    return (_letters(high - 1) if high else "") + ascii_lowercase[low]


def _row(match: Match, letters: Mapping[str, str]) -> tuple[Cell, ...]:
    figure = match.figure
    setting = ", ".join(f"{key}={value}" for key, value in figure.setting.items())
    write = _WRITTEN.get(figure.metric, format_number)
    there = f"{figure.name} [{setting}]" if setting else figure.name
    sign = "+" if match.difference >= 0 else "-"
    return tuple(
        Cell(text)
        for text in (
            f"{there}: {figure.method}",
            figure.category,
            TITLES.get(figure.metric, figure.metric),
            figure.printed,
            write(match.ours),
            f"{sign}{write(abs(match.difference))}",
            match.verdict or BLANK,
            " ".join(letters[note] for note in _notes(match)),
        )
    )


def published_frame(matches: Sequence[Match]) -> pd.DataFrame:
    """A row a pair of figures, unrounded, with its notes in words."""
    return pd.DataFrame(
        [
            {
                **{name: getattr(match.figure, name) for name in _NAMED},
                "setting": ";".join(f"{key}={value}" for key, value in match.figure.setting.items()),
                "method": match.figure.method,
                "variant": match.variant,
                "metric": match.figure.metric,
                "published": match.figure.value,
                "printed": match.figure.printed,
                "ours": match.ours,
                "difference": match.difference,
                "verdict": match.verdict,
                "note": "; ".join(match.notes),
                "published_on": match.figure.hardware,
                "ours_on": match.ran_on,
                "date": match.figure.date,
                "url": match.figure.url,
            }
            for match in matches
        ]
    )


def write_published(matches: Sequence[Match], tables: Sequence[Table], output: Path) -> list[Path]:
    """tables/published.csv, unrounded, .md and .tex. Returns the files."""
    return write_tables(output, NAME, tables, **{NAME: published_frame(matches)})


def summarise_verdicts(matches: Sequence[Match]) -> str:
    """A closing line: how many MATs were compared and how many of them every run agrees on."""
    judged: dict[int, set[str]] = {}
    for match in matches:
        if match.verdict:
            judged.setdefault(id(match.figure), set()).add(match.verdict)
    agree = sum(verdicts == {REPRODUCED} for verdicts in judged.values())
    others = sum(not match.verdict for match in matches)
    return f"{agree} of {len(judged)} compared MATs are reproduced; {others} other figures are shown."
