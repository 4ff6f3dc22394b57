"""A run directory from another user: its names are data wherever they are printed, and no other
file is written.
"""

from __future__ import annotations

import csv
import io
import os
import re

import pandas as pd
import pytest
from report.conftest import build_run, fail

from specbench.commands.report import main
from specbench.input import InputError
from specbench.names import file_name, printable
from specbench.report import build_report
from specbench.report.label import Cell
from specbench.report.plots.scene import slug
from specbench.report.table import Table
from specbench.report.writers import to_csv, to_latex, to_markdown

MARKUP = "</script><img src=x onerror=alert(1)>"
ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eevil"
HOSTILE = (
    "/tmp/absolute", "../../up", "..", ".", "", ".hidden", "-rf", "a/b", "a\\b", "C:name",
    "with\0nul", "line\nbreak", "n" * 300, "\u6a21" * 300, "\ud800", MARKUP, ESCAPES, "trailing.",
    " ", "~", "a?b*c",
)  # fmt: skip
USUAL = (
    "pld",
    "vanilla_aa",
    "token_recycling_hot",
    "llama-3.1-8b",
    "my method",
    "\u6a21\u578b",
    "a+b=c",
    "x [k=3]",
)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_file_name_is_one_part_of_a_path(name, tmp_path):
    found = file_name(name)
    assert (tmp_path / f".{found}-{found}.json.12345.partial").parent == tmp_path
    (tmp_path / found).touch()
    assert [path.name for path in tmp_path.iterdir()] == [found]
    assert not found.startswith((".", "-"))


def test_a_usual_name_stays_and_no_two_names_become_one():
    assert [file_name(name) for name in USUAL] == list(USUAL)
    for spell in (file_name, slug):
        names = [spell(name) for name in HOSTILE]
        assert len(set(names)) == len(names)
    assert slug("random-110m") == "random_110m"


def test_a_report_is_written_into_its_own_folder(make_run, tmp_path, refused):
    """Links in a run directory lead nowhere: those to files and folders that others made are
    refused.
    """
    run = make_run("sweep/a", per_category=1, control=False)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "page").write_text("mine")
    (run / "report.html").symlink_to(victim / "page")
    (run / f".summary.csv.{os.getpid()}.partial").symlink_to(victim / "page")
    with pytest.raises(InputError, match=r"report.html: exists and was not written by specbench"):
        build_report([run], plots=False)
    (run / "report.html").unlink()
    build_report([run], plots=False)
    (run / "tables").rename(run / "tables.old")
    make_run("sweep/b", per_category=1, control=False)
    for reported, link in ((run, "tables"), (run, "plots"), (run.parent, "report")):
        (reported / link).symlink_to(victim)
        assert "is a link" in refused("report", reported)
        (reported / link).unlink()
    assert [path.name for path in victim.iterdir()] == ["page"]
    assert (victim / "page").read_text() == "mine"


METHODS = dict.fromkeys(("../../escape", MARKUP, "=1+1", ESCAPES), (4.0, 0.35, 4e-4))
CATEGORIES = (MARKUP, ESCAPES, '=HYPERLINK("x")', "a | b", r"\input{x}", "$x^2$", "line\nbreak")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose every name is hostile."""

    def edit(manifest, records):
        manifest["model"]["name"] = f"../{MARKUP}{ESCAPES}"
        manifest["suite"]["name"] = f"=cmd|'/c calc'!A0 {MARKUP}"
        manifest["warnings"] = [MARKUP, ESCAPES]
        manifest["machine"]["cpu"] = {MARKUP: ESCAPES}
        for number, entry in enumerate(records):
            entry.subcategory, entry.lossless = entry.category, None  # vanilla fails in some cases
            entry.turns[0].text = f"{MARKUP}{ESCAPES}"
            if number % len(METHODS) == 2:
                fail(entry, f"{MARKUP}{ESCAPES}")

    return build_run(
        tmp_path_factory.mktemp("hostile") / "in" / "run",
        METHODS,
        categories=CATEGORIES,
        per_category=2,
        edit=edit,
    )


def test_answers_of_hostile_methods_stay_in_their_folder(hostile, tmp_path):
    before = sorted(path for path in tmp_path.parent.rglob("*") if tmp_path not in path.parents)
    assert main([str(hostile), "--export-answers", str(tmp_path / "answers")]) == 0
    assert len(list((tmp_path / "answers").glob("*.jsonl"))) == len(METHODS) + 2
    assert [path.name for path in tmp_path.iterdir()] == ["answers"]
    assert (
        sorted(path for path in tmp_path.parent.rglob("*") if tmp_path not in path.parents)
        == before
    )


def test_a_terminal_gets_no_escape_sequence(hostile, capsys):
    assert main([str(hostile), "--no-plots"]) == 0
    printed = capsys.readouterr()
    assert r"\x1b]0;title" in printed.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed.out + printed.err)


def test_files_have_no_character_that_steers_or_hides(hostile, tmp_path):
    """And the page has names, messages and answers as text."""
    report = build_report([hostile], tmp_path / "out", plots=False)
    assert {"summary.csv", "overall.csv", "report.html"} <= {path.name for path in report.files}
    for path in report.files:
        assert not re.search(
            "[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", path.read_text("utf-8")
        ), path
    page = (report.output / "report.html").read_text("utf-8")
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert page.partition("<section")[0].count("&lt;/script&gt;") > 5


def test_a_page_runs_nothing_in_a_browser(hostile, browser, tmp_path):
    browser.open(build_report([hostile], tmp_path / "out", plots=False).output / "report.html")
    assert browser.run("document.querySelectorAll('img, iframe, object, embed, form').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.body.textContent").count(MARKUP) > 5
    assert browser.troubles == []


@pytest.mark.exhaustive
def test_plots_of_hostile_names(hostile, tmp_path):
    """Of two models, whose names are in the files'."""
    other = build_run(
        tmp_path / "other", {"pld": (4.0, 0.35, 4e-4)}, categories=["qa"], per_category=1
    )
    files = build_report([hostile, other], tmp_path / "out").files
    assert all(path.is_relative_to(tmp_path / "out") for path in files)
    assert not re.search("[\x00-\x1f]", "".join(map(str, files)))


def test_csv_names_are_no_formulas_and_figures_stay():
    figures = ["-5", "-1e-5", "-.5", "+3", "x=1", "a,b", 'q"']
    values = ["=1+1", "+x", "-x", "@x", "\t=1", f"={ESCAPES}", " =1", *figures, None]
    frame = pd.DataFrame(
        {"=name": values, "figure": [-float(number) for number in range(len(values))]}
    )
    rows = list(csv.reader(io.StringIO(to_csv(frame))))
    assert rows[0] == ["'=name", "figure"]
    quoted = ["'=1+1", "'+x", "'-x", "'@x", r"'\t=1", f"'={printable(ESCAPES)}", "' =1"]
    assert [row[0] for row in rows[1:]] == [*quoted, *figures, ""]
    assert [float(row[1]) for row in rows[1:]] == frame["figure"].tolist()


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_tables_to_paste_keep_one_line_a_row(name):
    table, usual = (
        Table(it, it, it, (it, "x"), ((Cell(it), Cell("1")),), frozenset()) for it in (name, "d")
    )
    markdown, latex = to_markdown([table]), to_latex([table])
    assert len(markdown.splitlines()) == 5
    assert latex.count("\n") == to_latex([usual]).count("\n")
    for text in (markdown, latex):
        assert printable(text) == text
        assert "<img" not in markdown
