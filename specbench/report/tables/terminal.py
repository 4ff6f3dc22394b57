"""The report on a terminal: the overall table, speedups by category, and the warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from specbench.records.record import OVERALL
from specbench.report.columns import COLUMN
from specbench.report.frames.cases import list_categories, overall, without_references
from specbench.report.frames.detail import LOADED, OBJECTIVE
from specbench.report.frames.facts import Facts, describe_decoding
from specbench.report.frames.findings import Findings
from specbench.report.frames.headline import Headline, deciding_figure, find_headlines, sort_rows
from specbench.report.frames.load import Load
from specbench.report.frames.summary import drop_repeated_rows, with_drafting
from specbench.report.label import Cell, break_lines, label
from specbench.report.table import FEW, Heading, Table, method_table, widen
from specbench.report.tables.detail import objective_tables, served_tables, shards_tables
from specbench.report.writers import BOUNDED, TerminalTables, to_text
from specbench.screen import Screen

WIDTH = 100
_FIGURES_WIDTH = 65  # the overall table without its names
_NAME_WIDTHS = 10, 30
_HEADER_WIDTH = 13
_GUTTER = 2  # between two columns
_EDGES = 2  # a blank on either side of a table
_MOST_CATEGORIES = 100
_MODELLED = "predicted_speedup"
_RANKED = {"speedup": "speedup", _MODELLED: "modelled", "mat": "MAT"}
_MOST_SHARDS = 40


def print_findings(
    findings: Findings, console: Console | None = None, load: Load | None = None
) -> None:
    """Print the fastest method, the tables and warnings; plain text, without colour, if it is not a
    terminal.
    """
    console = console or open_console()
    width = min(WIDTH, console.width)
    lossy = findings.summary["method"].isin(findings.lossy)
    headlines = {headline.place: headline for headline in find_headlines(findings, load)}
    for (model, suite), rows in findings.summary.groupby(["model", "suite"], sort=False):
        here = [facts for facts in findings.facts if (facts.model, facts.suite) == (model, suite)]
        _print_place(here, headlines.get((str(model), str(suite))), console)
        print_table(_overall(rows[~lossy[rows.index]], width), console)
        for part in _by_category(rows[~lossy[rows.index]], width):
            console.print(part, crop=False)
        if lossy[rows.index].any():
            console.print(
                to_text("lossy methods: their output may differ from vanilla's", style="bold")
            )
            print_table(_overall(rows[lossy[rows.index]], width), console)
    for served in (
        *served_tables(findings.detail[LOADED]),
        *objective_tables(findings.detail[OBJECTIVE]),
    ):
        print_table(served, console)
    printed = []
    for entry in findings.reported:
        if entry.control is not None:
            source = f" of {entry.run.directory.name}" if len(findings.reported) > 1 else ""
            printed.append(entry.control.sentence())
            console.print(to_text(f"A/A control{source}, {printed[-1]}", style="dim"))
    for shards in shards_tables(findings):
        if len(shards.rows) <= _MOST_SHARDS:
            print_table(shards, console)
    print_warnings(
        [text for text in findings.warnings if not any(part in text for part in printed)], console
    )


def _print_place(here: Sequence[Facts], headline: Headline | None, console: Console) -> None:
    """Print the title of one model and suite, its headline, and what stood in for the model or led
    it.
    """
    console.print(
        to_text(f"\n{here[0].model} on {here[0].suite}, {describe_decoding(here)}", style="bold")
    )
    if headline is not None:
        console.print(
            to_text(headline.lead, style="bold") + to_text(f"{headline.rest} {headline.under}")
        )
        for remark in headline.remarks:
            console.print(to_text(remark, style="bold yellow"))
        if headline.loads:
            console.print(to_text(headline.loads))
    # what represented the model, or led it
    leads = [("replay of ", facts) for facts in here if not facts.timed]
    leads += [(f"{facts.time_note}, ", facts) for facts in here if facts.time_only]
    for line in dict.fromkeys(f"{lead}{facts.trace or 'recorded tokens'}" for lead, facts in leads):
        console.print(to_text(line, style="dim"))


def print_page(output: Path, console: Console | None = None) -> None:
    """Names the file to open, in the last line."""
    (console or open_console()).print(to_text(f"open {output / 'report.html'}"), soft_wrap=True)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table under its caption."""
    (console or open_console()).print(TerminalTables([table]), crop=False)


def open_console() -> Console:
    """Standard output; a hundred columns of plain text if it is not a terminal."""
    console = Screen(highlight=False)
    return console if console.is_terminal else Screen(highlight=False, width=WIDTH)


def _overall(rows: pd.DataFrame, width: int) -> Table:
    """A figure that is blank in every row is not shown, nor a modelled speedup, unless the rows are
    sorted by it.
    """
    shown = sort_rows(with_drafting(drop_repeated_rows(overall(rows))))
    columns = [
        each for each in _COLUMNS if each.figure != _MODELLED or deciding_figure(shown) == _MODELLED
    ]
    if (shown["load"] != "").any():
        columns = [
            replace(each, title=_OF_REQUEST.get(each.figure, each.title)) for each in columns
        ]
    failed = (
        f"{count}/{count + cases}" if count else "0"
        for count, cases in shown[["errors", "cases"]].to_numpy()
    )
    table = method_table("overall", ("", ""), shown.assign(failed=list(failed)), columns)
    lines = tuple((Cell(_broken(name.text, width)), *figures) for name, *figures in table.rows)
    return replace(table, header=("method", *table.header[1:]), rows=lines)


_TITLES = {  # figure -> its title on a terminal
    **{
        "mat": "MAT",
        "nodes": "nodes",
        "tokens_per_s": "tokens/s",
        "speedup": f"speedup [{BOUNDED}]",
        _MODELLED: f"modelled [{BOUNDED}]",
        "time_only_speedup": f"time only [{BOUNDED}]",
    },
    **{"time_only_step_ms": "step ms", "acceptance_rate": "accepted", "fed": "tokens fed"},
    **{"drafting_us": "drafting \N{MICRO SIGN}s", "lossless": "lossless"},
}
_OF_REQUEST = {"tokens_per_s": "tokens/s a request", "speedup": "speedup a request"}
_COLUMNS = (
    *(replace(COLUMN[figure], title=title) for figure, title in _TITLES.items()),
    Heading("errors", "failed", str),
)


def _broken(name: str, width: int) -> str:
    """A method's name on as many lines as it takes to leave the figures their room."""
    least, most = _NAME_WIDTHS
    return break_lines(name, max(least, min(most, width - _FIGURES_WIDTH)))


def _by_category(rows: pd.DataFrame, width: int) -> Iterator[TerminalTables | Text]:
    """One row per figure of each method: the one that they are sorted by, and MAT.

    As many tables as the width needs, none for a single category, nor where every figure is blank;
    a line instead where so many tables would hide the others.
    """
    categories = list_categories(rows)
    methods = without_references(rows)
    figures = {
        name: _RANKED[name]
        for name in (deciding_figure(methods), "mat")
        if methods[name].notna().any()
    }
    if len(categories) < 2 or not figures:
        return
    if len(categories) > _MOST_CATEGORIES:
        yield to_text(
            f"{len(categories)} categories, at most {_MOST_CATEGORIES} are printed; summary.csv has"
            " them"
        )
        return
    whole = sort_rows(overall(methods))
    wide = widen(
        pd.concat([whole, methods[methods["category"] != OVERALL]]), "category", (*figures, "cases")
    )
    lines = [
        (
            (
                _broken(label(row["method"], row["variant"]), width)
                if figure == next(iter(figures))
                else ""
            ),
            title,
            *(
                Heading("", f"{name} {figure}", few=f"{name} cases").cell(row).text
                for name in categories
            ),
        )
        for row in wide.to_dict("records")
        for figure, title in figures.items()
    ]
    room = width - _EDGES - max(len(part) for name, *_ in lines for part in name.split("\n"))
    room -= _GUTTER + max(map(len, figures.values()))
    for places in _fitting(categories, room, max(len(text) for line in lines for text in line[2:])):
        names = (break_lines(categories[place], _HEADER_WIDTH) for place in places)
        chosen = (
            tuple(map(Cell, (*line[:2], *(line[2 + place] for place in places)))) for line in lines
        )
        yield TerminalTables(
            [Table("by_category", "", "", ("method", "", *names), tuple(chosen), labels=2)]
        )
    if any(text.startswith("(") for line in lines for text in line[2:]):
        yield to_text(FEW, style="dim")


def _fitting(categories: Sequence[str], room: int, cell: int) -> Iterator[list[int]]:
    """Places of categories in runs whose columns fit into ``room`` characters."""
    chosen: list[int] = []
    used = 0
    for place, category in enumerate(categories):
        width = max(cell, *map(len, break_lines(category, _HEADER_WIDTH).split("\n"))) + _GUTTER
        if chosen and used + width > room:
            yield chosen
            chosen, used = [], 0
        chosen.append(place)
        used += width
    yield chosen


def print_warnings(warnings: Sequence[str], console: Console | None = None) -> None:
    """Each on its own lines, under how many there are; nothing if there are none."""
    console = console or open_console()
    if not warnings:
        return
    console.print(
        to_text(f"\n{len(warnings)} warning{'s' if len(warnings) > 1 else ''}", style="bold yellow")
    )
    for warning in warnings:
        console.print(Padding(to_text(f"! {warning}", style="yellow"), (0, 0, 0, 2)))
