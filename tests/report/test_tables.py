"""Tables as they are pasted into papers and pages, and as a terminal shows them."""

import io
import re
from pathlib import Path

import pytest
from report.conftest import compile_latex
from rich.console import Console

from specbench.report import build_report
from specbench.report.label import BLANK, Cell, break_lines, format_share
from specbench.report.table import Table, without_blanks
from specbench.report.tables.terminal import print_table
from specbench.report.writers import to_latex

LAYOUTS = {
    "article": (r"\documentclass{article}\usepackage{booktabs,graphicx}", True),
    "wide margins": (
        r"\documentclass{article}\usepackage{booktabs,graphicx}\usepackage[margin=1in]{geometry}",
        True,
    ),
    "a column": (r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}", True),
    "booktabs alone": (r"\documentclass{article}\usepackage{booktabs}", False),
}
PROFILE = (
    Path(__file__).resolve().parents[2]
    / "results/profiles/published/h100-llama-3.1-8b-vllm-0.10.json"
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_latex_compiles(make_run, tmp_path, layout):
    """Every column that a report may have, predictions and load too, and no wider than a line;
    without graphicx too.
    """
    odd = dict.fromkeys(("a_b%c&d#e$f{g}", "x^y~z\\w"), (3.0, 0.4, 1e-3)) | {
        "2\N{MULTIPLICATION SIGN}3": (1.0, 0.2, 1e-3)
    }
    directory = make_run(methods=odd)
    report = build_report([directory], plots=False, profile=PROFILE, concurrency=[1, 8, 32, 128])
    assert report.summary["speedup_low"].notna().any()
    assert report.summary["predicted_speedup"].notna().any()
    tables = "".join(rf"\input{{{path}}}" for path in (directory / "tables").glob("*.tex"))
    preamble, fits = LAYOUTS[layout]
    log = compile_latex(preamble, tables, tmp_path)
    assert not fits or not re.search(r"Overfull \\hbox", log), log[-2000:]


def test_latex_puts_intervals_and_variants_under_their_figures_and_names():
    odd = Cell("a_b%c&d#e$f{g}"), Cell("1.00")
    named = Cell("pld [max_ngram=3]"), Cell("1.50", "1.41, 1.59")
    rows = (named, (Cell("sam"), Cell("1.20")), odd)
    table = Table("overall", "here.", "", ("Method", "Decode tokens/s"), rows, frozenset({(0, 1)}))
    lines = to_latex([table]).splitlines()
    place = lines.index(r"PLD & \textbf{1.50} \\")
    assert lines[place + 1] == r"{\scriptsize [max\_ngram=3]} & {\scriptsize [1.41, 1.59]} \\"
    assert lines[place + 3] == r"SAM-Decoding & 1.20 \\"
    assert r"a\_b\%c\&d\#e\$f\{g\} & 1.00 \\" in lines
    assert r"Method & \shortstack[r]{Decode\\tokens/s} \\" in lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.12345, "12.3 %"),
        (0.99999, "99.9 %"),
        (1e-6, "0.1 %"),
        (float("nan"), "–"),
    ],
)
def test_only_all_is_a_hundred_percent(value, text):
    assert format_share(value) == text


def test_columns_of_blanks_are_left_out_and_long_names_break():
    cells = (("pld", BLANK, "1.00", BLANK), ("sam", BLANK, "2.00", "5"))
    rows = tuple(tuple(map(Cell, row)) for row in cells)
    table = Table(
        "t", "", "", ("Method", "Speedup", "MAT", "Fed"), rows, frozenset({(1, 2), (1, 3)})
    )
    kept = without_blanks(table)
    assert kept.header == ("Method", "MAT", "Fed")
    assert [[cell.text for cell in row] for row in kept.rows] == [
        ["pld", "1.00", BLANK],
        ["sam", "2.00", "5"],
    ]
    assert kept.best == {(1, 1), (1, 2)}
    bare = Table("t", "", "", ("Method", "MAT"), (), frozenset())
    assert without_blanks(bare) == bare
    assert break_lines("a_very_long_name,with=3", 12) == "a_very_long_\nname,with=3"
    assert break_lines("x" * 30, 12).split("\n") == ["x" * 12, "x" * 12, "x" * 6]
    assert break_lines("pld", 12) == "pld"


def printed_table(rows: list[tuple[str, ...]], width: int, labels: int = 1) -> list[str]:
    header = ("Method", *(f"Figure {number}" for number in range(1, len(rows[0]))))
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    out = io.StringIO()
    print_table(
        Table("t", "where", "meaning", header, cells, frozenset(), labels),
        Console(file=out, width=width),
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


ROWS = [("suffix_decoding_local", "1.25", "2.02"), ("sam_token_recycling", "0.75", "59.54")]


def test_names_on_a_terminal_are_whole_or_broken_and_printed_once():
    lines = printed_table(ROWS, 60)
    assert [line.split() for line in lines if "_" in line] == [list(row) for row in ROWS]
    assert "" not in lines[lines.index(" Method                 Figure 1  Figure 2") : -1]
    lines = printed_table(ROWS, 36)
    assert "suffix_decoding_local" not in "\n".join(lines)
    assert all(len(line) <= 36 for line in lines)
    assert [word for line in lines for word in line.split() if "." in word] == [
        "1.25",
        "2.02",
        "0.75",
        "59.54",
    ]
    lines = printed_table(
        [("pld", "qa", "1"), ("pld", "math", "2"), ("sam", "qa", "3")], 60, labels=2
    )
    assert sum("pld" in line for line in lines) == 1


def test_figures_are_whole_on_any_terminal():
    """If even broken names leave no space, the table is wider than the terminal; no digit is
    lost.
    """
    rows = [("a_method_with_a_long_name", *(f"{number}.125" for number in range(9)))]
    for width in (30, 80, 90, 110, 200):
        text = "\n".join(printed_table(rows, width))
        assert "…" not in text
        assert all(figure in text.split() for figure in rows[0][1:])
        assert ("a_method_with_a_long_name" in text) == (width >= 120)
