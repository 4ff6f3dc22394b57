"""What a mean hides, and the lists of plots and of detail frames, from which every file and title comes."""

import html
import math
from pathlib import Path

import pandas as pd
import pytest

from builders.records import failed, record, turn
from builders.reports import tried
from specbench.records.record import CONTROL, VANILLA, CaseRecord, TurnRecord
from specbench.records.store import Run
from specbench.report import gather, read_findings
from specbench.report.columns import COLUMNS, OVERALL_COLUMNS, RESULT, Column
from specbench.report.frames import summary
from specbench.report.frames.detail import (
    AUDIT,
    DETAILS,
    LOADED,
    OBJECTIVE,
    QUALITY,
    TIME_SPLIT,
    DetailFrame,
    count_gains,
    count_own_figures,
    count_positions,
    count_sources,
)
from specbench.report.page.page import gallery
from specbench.report.plots.acceptance import draw_accept_lengths, draw_accept_positions
from specbench.report.plots.bars import draw_sources, draw_time_split
from specbench.report.plots.canvas import drawing
from specbench.report.plots.catalogue import PLOTS, draw_plots, title_of
from specbench.report.plots.scene import first_scene
from specbench.report.table import KEYS
from specbench.report.tables import summary as tables
from specbench.report.tables.summary import build_tables

SKIPPED = "specbench.report.plots.catalogue"  # the log that says why a plot is left out


def detail_of(records, manifest):
    return gather([Run(Path("r"), manifest, records)]).detail


def test_gains_positions_and_sources_by_hand():
    records = [record("pld", "a", [turn([1, 3, 1])]), record("pld", "b", [turn([4]), turn([1])])]
    assert list(count_gains(tried(records))) == [(1, 3, 0.6), (2, 0, 0.0), (3, 1, 0.2), (4, 1, 0.2)]
    assert list(count_gains(tried([]))) == []
    # accepted 3 of depth 3, 0 of 3, 1 of 2, 2 of 3, and a step without a draft
    records = [record("pld", "a", [turn([4, 1, 2, 3, 1], depth=[3, 3, 2, 3, 0])])]
    assert list(count_positions(tried(records))) == [
        (1, 4, 4, 3, 3 / 4, 3 / 4),
        (2, 4, 3, 2, 2 / 4, 2 / 3),
        (3, 3, 2, 1, 1 / 3, 1 / 2),
    ]
    rows = list(count_positions(tried([record("pld", "a", [turn([1, 1], depth=[2, 2])])])))
    assert rows[1][:4] == (2, 2, 0, 0)
    assert math.isnan(rows[1][5])
    assert list(count_positions(tried([record("pearl", "a", [turn([9], depth=[2])])]))) == [
        (1, 1, 1, 1, 1, 1),
        (2, 1, 1, 1, 1, 1),
    ]
    turns = [turn([2], sources={"dynamic": [6, 1]}), turn([3], sources={"dynamic": [0, 0], "frozen": [2, 2]})]
    assert list(count_sources(tried([record("cacheback", "a", turns)]))) == [
        ("dynamic", 6, 1, 0.75, 1 / 3, 1 / 6),
        ("frozen", 2, 2, 0.25, 2 / 3, 1.0),
    ]


def test_peers_and_failed_cases_are_left_out_and_the_time_split_adds_up(make_manifest):
    records = [
        record(VANILLA, "a", [turn([1])]),
        record("pld", "a", [turn([2], [3], sources={"context": [3, 1]})]),
        record("pld", "b", [turn([9], [9])]),
        failed("pld", "b", round=1),
        record("hf_assisted", "a", [turn([2], phases_s={})]),
    ]
    detail = detail_of(records, make_manifest({"pld": {}, "hf_assisted": {"peer": True}}))
    assert set(detail["time_split"]["method"]) == {VANILLA, "pld"}
    assert set(detail["accept_positions"]["method"]) == set(detail["accept_sources"]["method"]) == {"pld"}
    lengths = detail["accept_lengths"].groupby("method")["tokens"].max().to_dict()
    assert lengths == {VANILLA: 1, "pld": 2, "hf_assisted": 2}
    records = [record("pld", "a", [turn([1, 1], phases_s={"draft": 0.25, "forward": 0.5})])]
    row = detail_of(records, make_manifest({"pld": {}}))["time_split"].iloc[0]
    assert (row["draft_ms"], row["forward_ms"], row["step_ms"]) == (125, 250, 375)
    assert math.isnan(row["prepare_ms"])


def test_details_agree_with_the_summary(built):
    summary = built.summary[built.summary["category"] == "overall"].set_index("method")
    lengths = pd.read_csv(built.output / "tables/accept_lengths.csv")
    for method, rows in lengths.groupby("method"):
        assert (rows["tokens"] * rows["steps"]).sum() / rows["steps"].sum() == pytest.approx(summary.loc[method, "mat"])
        assert rows["share"].sum() == pytest.approx(1)
    positions = pd.read_csv(built.output / "tables/accept_positions.csv")
    assert CONTROL not in set(positions["method"])
    for method, rows in positions.groupby("method"):
        accepted = (
            summary.loc[method, "acceptance_rate"] * summary.loc[method, "mean_draft"] * summary.loc[method, "steps"]
        )
        assert rows["accepted"].sum() == pytest.approx(accepted)  # chains: one node a position


@pytest.mark.parametrize("count", [1, pytest.param(13, marks=pytest.mark.exhaustive)])
def test_plots_hold_one_method_and_many(make_run, count):
    def edit(manifest, records):
        for number, entry in enumerate(records):
            for each in entry.turns:
                if sum(each.proposed):
                    each.sources = {"$dynamic$": [5, 1], f"a source with quite some name {number % 3}": [3, 2]}

    methods = {f"a_rather_long_method_name_{number}": (30.0 * number, 0.7, 1e-3) for number in range(1, count + 1)}
    scene = first_scene(read_findings([make_run(methods=methods, peers=(), per_category=1, edit=edit)]))
    with drawing():
        for draw in (draw_time_split, draw_accept_lengths, draw_accept_positions, draw_sources):
            assert draw(scene).axes


def test_what_does_not_apply_is_skipped_with_a_reason(make_run, caplog):
    findings = read_findings([make_run(methods={"hf_assisted": (4.0, 0.5, 1e-3)}, per_category=1, categories=("qa",))])
    with caplog.at_level("DEBUG", logger=SKIPPED), drawing():
        names = {name for name, _ in draw_plots(findings)}
    assert {"time_split", "accept_lengths"} <= names
    assert not {"accept_positions", "accept_sources", "radar"} & names
    assert "no method drafts from more than one source" in caplog.text
    assert "1 categories, a radar needs 3" in caplog.text


def test_a_methods_own_figures_are_summed_and_averaged():
    def turn(**stats):
        return TurnRecord(1, [1], "eos", [], [], [], [], 0.0, 0.0, {}, stats=stats)

    def record(*turns):
        return CaseRecord("1", "qa", "", "card", 0, 0, 0, "ok", list(turns))

    found = list(count_own_figures(tried([record(turn(hits=3.0, misses=1.0), turn(hits=1.0)), record(turn())])))
    assert found == [("hits", 2, 4.0, 2.0), ("misses", 1, 1.0, 1.0)]


def test_every_picture_title_and_csv_comes_from_a_list(built):
    names = {path.stem for path in (built.output / "plots").iterdir()}
    assert names <= {plot.name for plot in PLOTS}
    assert len({plot.name for plot in PLOTS}) == len(PLOTS)
    page = gallery([path for path in built.files if path.suffix == ".png"])
    for plot in PLOTS:
        drawn = (built.output / "plots" / f"{plot.name}.png").is_file()
        assert (f'alt="{plot.title}"' in html.unescape(page)) is drawn
        assert title_of(f"{plot.name}-big-mini") == f"{plot.title}, big-mini"
    names = {path.stem for path in (built.output / "tables").glob("*.csv")} - {"pairs"}
    made = set(build_tables(built.summary, built.findings.facts))
    assert (
        names - made == {TIME_SPLIT, AUDIT, *DETAILS} == set(built.findings.detail) - {LOADED, OBJECTIVE, QUALITY}
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
