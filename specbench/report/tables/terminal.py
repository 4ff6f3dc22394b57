"""The report on a terminal: the overall table, speedups by category, and the warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specbench.names import printable
from specbench.record import CONTROL, OVERALL, VANILLA
from specbench.report.data.detail import LOADED
from specbench.report.data.facts import TIME_ONLY, Facts, say_decoding
from specbench.report.data.findings import Findings
from specbench.report.data.headline import Headline, find_headlines, sort_rows
from specbench.report.data.load import Load
from specbench.report.data.rows import FEW, category_order, drop_repeated_rows, mark_few, with_drafting
from specbench.report.tables.served import served_tables
from specbench.report.tables.shards import shards_tables
from specbench.report.text.label import (
    BLANK,
    break_lines,
    format_interval,
    format_microseconds,
    format_milliseconds,
    format_number,
    format_rate,
    format_share,
    label,
)
from specbench.report.text.table import Table as Printed
from specbench.screen import Screen

WIDTH = 100
_FIGURES_WIDTH = 65  # the overall table without its names
_NAME_WIDTHS = 10, 30
_HEADER_WIDTH = 13
_GUTTER = 2  # between two columns
_EDGES = 2  # a blank on either side of a table
_ROOM = 1 << 16
_MOST_CATEGORIES = 100
_MOST_SHARDS = 40


def print_findings(findings: Findings, console: Console | None = None, load: Load | None = None) -> None:
    """Print who is fastest, the tables and warnings; plain text, without colour, where it is not a terminal."""
    console = console or open_console()
    width = min(WIDTH, console.width)
    lossy = findings.summary["method"].isin(findings.lossy)
    headlines = {headline.place: headline for headline in find_headlines(findings, load)}
    for (model, suite), rows in findings.summary.groupby(["model", "suite"], sort=False):
        decoding = say_decoding(_of_place(findings, model, suite))
        console.print(_text(f"\n{model} on {suite}, {decoding}", style="bold"))
        headline = headlines.get((str(model), str(suite)))
        _print_headline(headline, console)
        for line in _replays(findings, str(model), str(suite)):
            console.print(_text(line, style="dim"))
        console.print(_overall(rows[~lossy[rows.index]], width))
        for table in _by_category(rows[~lossy[rows.index]], width):
            console.print(table)
        if lossy[rows.index].any():
            console.print(_text("lossy methods: their output may differ from vanilla's", style="bold"))
            console.print(_overall(rows[lossy[rows.index]], width))
    for served in served_tables(findings.detail[LOADED]):
        print_table(served, console)
    printed = []
    for entry in findings.reported:
        if entry.control is not None:
            source = f" of {entry.run.directory.name}" if len(findings.reported) > 1 else ""
            printed.append(entry.control.sentence())
            console.print(_text(f"A/A control{source}, {printed[-1]}", style="dim"))
    for shards in shards_tables(findings):
        if len(shards.rows) <= _MOST_SHARDS:
            print_table(shards, console)
    print_warnings([text for text in findings.warnings if not any(part in text for part in printed)], console)


def _print_headline(headline: Headline | None, console: Console) -> None:
    if headline is None:
        return
    console.print(_text(headline.lead, style="bold") + _text(f"{headline.rest} {headline.under}"))
    for remark in headline.remarks:
        console.print(_text(remark, style="bold yellow"))
    if headline.loads:
        console.print(_text(headline.loads))


def print_page(output: Path, console: Console | None = None) -> None:
    """What to open, as the last line."""
    (console or open_console()).print(_text(f"open {output / 'report.html'}"), soft_wrap=True)


def _of_place(findings: Findings, model: object, suite: object) -> list[Facts]:
    return [facts for facts in findings.facts if (facts.model, facts.suite) == (model, suite)]


def print_table(table: Printed, console: Console | None = None) -> None:
    """Print a table under its caption; a name that several rows share is printed once."""
    console = console or open_console()
    console.print(_text(table.where, style="bold"))
    console.print(_text(table.meaning, style="dim"))
    sheet = _sheet(table, None)
    if _width(sheet, console) > console.width:
        sheet = _sheet(table, _HEADER_WIDTH)
    sheet.width = _width(sheet, console)  # rather too wide than a figure cut short
    console.print(sheet, crop=False, no_wrap=True)


def _width(sheet: Table, console: Console) -> int:
    """Columns that a table takes where it has all the room it wants."""
    return console.measure(sheet, options=console.options.update(width=_ROOM)).maximum


def _sheet(table: Printed, width: int | None) -> Table:
    """width: of labels, which are broken to it; None = as long as they are."""
    sheet = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for column, title in enumerate(table.header):
        sheet.add_column(_text(title), justify="left" if column < table.labels else "right", no_wrap=True)
    names = [row[0].text for row in table.rows]
    apart = len(set(names)) < len(names) or width is not None  # a name of several lines or rows
    previous = ""
    for row in table.rows:
        labels = [cell.text if width is None else break_lines(cell.text, width) for cell in row[: table.labels]]
        if row[0].text == previous:
            labels[0] = ""
        elif previous and apart:
            sheet.add_section()
        previous = row[0].text
        sheet.add_row(*map(_text, labels), *(_text(cell.text) for cell in row[table.labels :]))
    return sheet


def open_console() -> Console:
    """Standard output; a hundred columns of plain text where it is not a terminal."""
    console = Screen(highlight=False)
    return console if console.is_terminal else Screen(highlight=False, width=WIDTH)


def _text(text: str, style: str = "") -> Text:
    """Whatever a run recorded reaches a terminal by this: as characters, never as markup or as an escape sequence."""
    return Text(printable(text), style=style)


def _replays(findings: Findings, model: str, suite: str) -> Iterator[str]:
    """What stood in for the model, or led it, a line each; nothing where it decoded by itself."""
    here = _of_place(findings, model, suite)
    for trace in dict.fromkeys(facts.trace for facts in here if not facts.timed):
        yield f"replay of {trace or 'recorded tokens'}"
    for trace in dict.fromkeys(facts.trace for facts in here if facts.time_only):
        yield f"{TIME_ONLY}, {trace or 'recorded tokens'}"


def _overall(rows: pd.DataFrame, width: int) -> Table:
    """A figure that is blank in every row is not shown."""
    shown = sort_rows(with_drafting(drop_repeated_rows(rows[rows["category"] == OVERALL])))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("method", no_wrap=True)
    columns = [entry for entry in _COLUMNS if shown.empty or shown[entry[1]].notna().any()]
    for title, _, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown.to_dict("records"):
        style = "dim" if row["method"] == CONTROL else ""
        cells = [_name(row["method"], row["variant"], width), *(write(row) for _, _, write in columns)]
        table.add_row(*map(_text, cells), style=style)
    return table


def _speedup(row: dict[str, Any], name: str = "speedup") -> str:
    speedup = format_number(row[name])
    bounds = format_interval(row[f"{name}_low"], row[f"{name}_high"])
    return f"{speedup} [{bounds}]" if bounds else speedup


def _errors(row: dict[str, Any]) -> str:
    return f"{row['errors']}/{row['cases'] + row['errors']}" if row["errors"] else "0"


# title, column of the summary, format of its cell
_COLUMNS: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("MAT", "mat", lambda row: format_number(row["mat"])),
    ("tokens/s", "tokens_per_s", lambda row: format_rate(row["tokens_per_s"])),
    ("speedup [95 %]", "speedup", _speedup),
    ("time only [95 %]", "time_only_speedup", lambda row: _speedup(row, "time_only_speedup")),
    ("step ms", "time_only_step_ms", lambda row: format_milliseconds(row["time_only_step_ms"])),
    ("accepted", "acceptance_rate", lambda row: format_share(row["acceptance_rate"])),
    ("tokens fed", "fed", lambda row: format_number(row["fed"])),
    ("drafting \N{MICRO SIGN}s", "drafting_us", lambda row: format_microseconds(row["drafting_us"])),
    ("lossless", "lossless", lambda row: format_share(row["lossless"])),
    ("errors", "errors", _errors),
)


def _name(method: str, variant: str, width: int) -> str:
    """On as many lines as it takes to leave the figures their room."""
    least, most = _NAME_WIDTHS
    return break_lines(label(method, variant), max(least, min(most, width - _FIGURES_WIDTH)))


def _by_category(rows: pd.DataFrame, width: int) -> Iterator[Table | Text]:
    """A row a figure of each method, speedup and MAT; MAT alone where no speedup is known.

    As many tables as the width needs, none for a single category, nor where every figure is blank; a line instead where
    tables of so many would hide the others.
    """
    categories = category_order(rows.loc[rows["category"] != OVERALL, "category"])
    methods = rows[~rows["method"].isin([VANILLA, CONTROL])]
    ordered = sort_rows(methods[methods["category"] == OVERALL])
    keys = dict.fromkeys(zip(ordered["method"], ordered["variant"], strict=True))
    names = {key: _name(*key, width) for key in keys}
    figures = {"speedup": "speedup", "mat": "MAT"} if methods["speedup"].notna().any() else {"mat": "MAT"}
    if len(categories) < 2 or not names or methods[list(figures)].isna().all(axis=None):
        return
    if len(categories) > _MOST_CATEGORIES:
        yield _text(f"{len(categories)} categories, at most {_MOST_CATEGORIES} are printed; summary.csv has them")
        return
    found = {
        (row["category"], row["method"], row["variant"], figure): mark_few(format_number(row[figure]), row)
        for row in rows.to_dict("records")
        for figure in figures
    }
    room = width - _EDGES - max(len(line) for name in names.values() for line in name.split("\n"))
    room -= _GUTTER + max(map(len, figures.values()))
    for chosen in _fitting(categories, room, max(map(len, found.values()))):
        yield _category_table(figures, chosen, names, found)
    if any(text.startswith("(") for text in found.values()):
        yield _text(FEW, style="dim")


def _fitting(categories: Sequence[str], room: int, cell: int) -> Iterator[list[str]]:
    """Runs of categories whose columns fit into ``room`` characters."""
    chosen: list[str] = []
    used = 0
    for category in categories:
        width = max(cell, *map(len, break_lines(category, _HEADER_WIDTH).split("\n"))) + _GUTTER
        if chosen and used + width > room:
            yield chosen
            chosen, used = [], 0
        chosen.append(category)
        used += width
    yield chosen


def _category_table(
    figures: dict[str, str],
    categories: Sequence[str],
    names: dict[tuple[str, str], str],
    found: dict[tuple[str, str, str, str], str],
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("", no_wrap=True)
    for category in categories:
        table.add_column(_text(break_lines(category, _HEADER_WIDTH)), justify="right", no_wrap=True)
    for key, name in names.items():
        for place, (figure, title) in enumerate(figures.items()):
            cells = (found.get((category, *key, figure), BLANK) for category in categories)
            table.add_row(_text("" if place else name), title, *map(_text, cells))
    return table


def print_warnings(warnings: Sequence[str], console: Console | None = None) -> None:
    """Each on its own lines, under how many there are; nothing where there are none."""
    console = console or open_console()
    if not warnings:
        return
    console.print(_text(f"\n{len(warnings)} warning{'s' if len(warnings) > 1 else ''}", style="bold yellow"))
    for warning in warnings:
        console.print(Padding(_text(f"! {warning}", style="yellow"), (0, 0, 0, 2)))
