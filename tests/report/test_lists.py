"""One list of plots and one of detail frames: every file and title comes from them."""

import html
from pathlib import Path

from builders.records import record, turn
from specbench.records.record import VANILLA
from specbench.records.store import Run
from specbench.report import gather
from specbench.report.columns import COLUMNS, OVERALL_COLUMNS, RESULT, Column
from specbench.report.frames import summary
from specbench.report.frames.detail import AUDIT, DETAILS, LOADED, QUALITY, TIME_SPLIT, DetailFrame
from specbench.report.page.page import gallery
from specbench.report.plots.catalogue import PLOTS, title_of
from specbench.report.table import KEYS
from specbench.report.tables import summary as tables
from specbench.report.tables.summary import build_tables


def test_every_picture_is_in_the_list_of_plots(built):
    names = {path.stem for path in (built.output / "plots").iterdir()}
    assert names <= {plot.name for plot in PLOTS}
    assert len({plot.name for plot in PLOTS}) == len(PLOTS)


def test_the_page_takes_the_titles_of_the_list(built):
    page = gallery([path for path in built.files if path.suffix == ".png"])
    for plot in PLOTS:
        drawn = (built.output / "plots" / f"{plot.name}.png").is_file()
        assert (f'alt="{plot.title}"' in html.unescape(page)) is drawn
        assert title_of(f"{plot.name}-big-mini") == f"{plot.title}, big-mini"


def test_every_csv_is_a_table_or_a_frame_of_the_list(built):
    names = {path.stem for path in (built.output / "tables").glob("*.csv")} - {"pairs"}
    made = set(build_tables(built.summary, built.findings.facts))
    assert (
        names - made == {TIME_SPLIT, AUDIT, *DETAILS} == set(built.findings.detail) - {LOADED, QUALITY}
    )  # alone, no references


def test_a_frame_is_added_in_one_place(make_manifest, monkeypatch):
    """Counted for every method but vanilla, named and written as the others are."""

    added = DetailFrame("turns", "method", "turns", ("turns",), lambda found, _: iter([(len(found),)]), drafts=True)
    monkeypatch.setitem(DETAILS, added.name, added)
    records = [record(name, "a", [turn([1])]) for name in (VANILLA, "pld")]
    frame = gather([Run(Path("r"), make_manifest({"pld": {}}), records)]).detail["turns"]
    assert frame[["method", "turns"]].values.tolist() == [["pld", 1]]


def test_every_figure_of_the_summary_is_declared_once_and_documented():
    names = [name for column in RESULT for name in column.names]
    assert len(set(names)) == len(names)
    assert (*KEYS, *names) == COLUMNS
    page = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text(encoding="utf-8")
    assert all(f"`{column.figure}`" in page for column in RESULT if column.value)


def test_a_figure_is_added_in_one_place(two_cases, monkeypatch):
    """A column is computed, printed with its caption, and blank where it does not apply."""
    records, manifest = two_cases
    added = Column("Turns", "turns", str, value=lambda scope: int(scope.cases["turns"].sum()), caption="Turns: asked.")
    monkeypatch.setattr(summary, "RESULT", (*RESULT, added))
    monkeypatch.setattr(summary, "COLUMNS", (*COLUMNS, *added.names))
    monkeypatch.setattr(tables, "OVERALL_COLUMNS", (*OVERALL_COLUMNS, added))
    findings = gather([Run(Path("r"), manifest, records)])
    (overall,) = build_tables(findings.summary, findings.facts)["overall"]
    assert overall.header[-1] == "Turns"
    assert [row[-1].text for row in overall.rows] == ["2", "2"]
    assert "Turns: asked." in overall.meaning
