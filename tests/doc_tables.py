"""The tables of the docs that follow a list in the code. ``python tests/doc_tables.py`` writes them."""

from __future__ import annotations

from collections.abc import Callable

import rooms

from specbench.report.data.detail import DETAILS, TIME_SPLIT

DOCS = rooms.ROOT / "docs"
PHASES_ROW = "[ms a step] by phase, and their sum `step_ms`. Peers have no phases, so no row"


def frames() -> str:
    """The frames of detail as a Markdown table."""
    lines = ["| file | a row | figures |", "|---|---|---|", f"| `{TIME_SPLIT}.csv` | method | {PHASES_ROW} |"]
    return "\n".join([*lines, *(f"| `{each.name}.csv` | {each.row} | {each.meaning} |" for each in DETAILS.values())])


TABLES: dict[str, tuple[str, Callable[[], str]]] = {  # page -> name of its table, what makes it
    "architecture.md": ("rooms", rooms.table),
    "measurement.md": ("frames", frames),
}


def page_with_table(page: str) -> str:
    """The text of a page with its table in place."""
    name, make = TABLES[page]
    begin, end = f"<!-- {name}: written by tests/doc_tables.py -->", f"<!-- end of {name} -->"
    before, found, rest = (DOCS / page).read_text(encoding="utf-8").partition(begin)
    assert found, f"docs/{page} lacks {begin}"
    return f"{before}{begin}\n\n{make()}\n\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    for page in TABLES:
        (DOCS / page).write_text(page_with_table(page), encoding="utf-8")
