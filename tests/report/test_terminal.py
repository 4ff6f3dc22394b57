"""Tables on a terminal: names are whole where there is room, and nothing is cut off where there is not."""

from __future__ import annotations

import io

from rich.console import Console

from specbench.report.label import Cell
from specbench.report.table import Table
from specbench.report.tables.terminal import print_table


def printed(rows: list[tuple[str, ...]], width: int, labels: int = 1) -> list[str]:
    header = ("Method", *(f"Figure {number}" for number in range(1, len(rows[0]))))
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    out = io.StringIO()
    print_table(Table("t", "where", "meaning", header, cells, frozenset(), labels), Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


ROWS = [("suffix_decoding_local", "1.25", "2.02"), ("sam_token_recycling", "0.75", "59.54")]


def test_names_are_whole_where_there_is_room():
    lines = printed(ROWS, 60)
    assert [line.split() for line in lines if "_" in line] == [list(row) for row in ROWS]
    assert "" not in lines[lines.index(" Method                 Figure 1  Figure 2") : -1]


def test_names_are_broken_where_there_is_none():
    lines = printed(ROWS, 36)
    assert "suffix_decoding_local" not in "\n".join(lines)
    assert all(len(line) <= 36 for line in lines)
    assert [word for line in lines for word in line.split() if "." in word] == ["1.25", "2.02", "0.75", "59.54"]


def test_a_name_of_several_rows_is_said_once():
    lines = printed([("pld", "qa", "1"), ("pld", "math", "2"), ("sam", "qa", "3")], 60, labels=2)
    assert sum("pld" in line for line in lines) == 1


def test_figures_are_whole_on_any_terminal():
    """If even broken names leave no space, the table is wider than the terminal; no digit is lost."""
    rows = [("a_method_with_a_long_name", *(f"{number}.125" for number in range(9)))]
    for width in (30, 80, 90, 110, 200):
        text = "\n".join(printed(rows, width))
        assert "…" not in text
        assert all(figure in text.split() for figure in rows[0][1:])
        assert ("a_method_with_a_long_name" in text) == (width >= 120)
