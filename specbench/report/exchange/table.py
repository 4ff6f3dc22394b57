"""What ``specbench report --import`` shows: files beside the methods of a run, blank where a file does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.report.exchange.formats import Imported, as_imported, read_imported
from specbench.report.frames.findings import Findings
from specbench.report.label import Cell, format_count, format_number, format_rate, format_share
from specbench.report.table import Table, to_csv, to_markdown, without_blanks, write_texts
from specbench.report.tables.terminal import open_console, print_table

NAME = "imported"
_MEANING = (
    "Files of other harnesses, each with the run's methods as that harness would have counted them. Steps: those that"
    " the acceptance length is of. At least n: share of steps that accepted so many drafts. Blank: not told."
)
_COLUMNS = {
    "requests": ("Requests", format_count),
    "tokens": ("Tokens", format_count),
    "steps": ("Steps", format_count),
    "length": ("Acceptance length", lambda value: format_number(value, 4)),
    "rate": ("Acceptance rate", format_share),
    "tokens_per_s": ("Tokens/s", format_rate),
}
_POSITIONS = 5  # that are printed; the csv has all


def imported_frame(files: Sequence[Imported], findings: Findings | None) -> pd.DataFrame:
    """A row a file or method and group, unrounded; NaN where there is nothing."""
    rows = []
    for name in dict.fromkeys(each.format for each in files):
        beside = as_imported(findings, name) if findings else []
        for each in (*(file for file in files if file.format == name), *beside):
            for group in each.groups:
                row = {"row": each.name, "format": name, "group": group.group}
                row |= {key: getattr(group, key) for key in (*_COLUMNS, "drafted", "accepted")}
                rows.append(row | {f"at_least_{place}": share for place, share in enumerate(group.positions, start=1)})
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(frame.columns[3:], float))


def imported_table(frame: pd.DataFrame) -> Table:
    """The figures as printed."""
    positions = [name for name in frame.columns if name.startswith("at_least_")][:_POSITIONS]
    titles = [title for title, _ in _COLUMNS.values()] + [f"At least {name.rpartition('_')[2]}" for name in positions]
    rows = []
    for row in frame.to_dict("records"):
        figures = [write(row[name]) for name, (_, write) in _COLUMNS.items()]
        figures += [format_share(row[name]) for name in positions]
        rows.append(tuple(map(Cell, (row["row"], row["format"], row["group"], *figures))))
    header = ("Row", "Format", "Group", *titles)
    return without_blanks(Table(NAME, "", _MEANING, header, tuple(rows), frozenset(), labels=3))


def show_imported(paths: Sequence[Path], findings: Findings | None, output: Path | None) -> None:
    """Print files, with the methods of runs beside them; write tables/imported.csv and .md where there is a place."""
    frame = imported_frame([read_imported(path) for path in paths], findings)
    table = imported_table(frame)
    print_table(table, open_console())
    if output:
        texts = {f"{NAME}.csv": to_csv(frame), f"{NAME}.md": to_markdown(table)}
        print("\n".join(map(str, write_texts(output / "tables", texts))))
