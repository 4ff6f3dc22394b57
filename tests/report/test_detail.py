"""What a mean hides, and the lists of plots and of detail frames, from which every file and title
comes.
"""

import html
import math
from pathlib import Path

from builders.records import failed, record, turn
from builders.reports import found_in, tried
from specbench.records.record import VANILLA
from specbench.report import read_findings
from specbench.report.columns import COLUMNS, RESULT
from specbench.report.frames.detail import (
    AUDIT,
    DETAILS,
    LOADED,
    OBJECTIVE,
    QUALITY,
    TIME_SPLIT,
    count_gains,
    count_own_figures,
    count_positions,
    count_sources,
)
from specbench.report.page.page import gallery
from specbench.report.plots.canvas import drawing
from specbench.report.plots.catalogue import PLOTS, draw_plots, title_of
from specbench.report.table import KEYS
from specbench.report.tables.summary import build_tables

SKIPPED = "specbench.report.plots.catalogue"  # the log that says why a plot is left out


def test_gains_positions_and_sources_by_hand():
    def found(count, *turns):
        return list(
            count(tried([record("pld", str(place), own) for place, own in enumerate(turns)]))
        )

    gains = [(1, 3, 0.6), (2, 0, 0.0), (3, 1, 0.2), (4, 1, 0.2)]
    assert found(count_gains, [turn([1, 3, 1])], [turn([4]), turn([1])]) == gains
    assert found(count_gains) == []
    # accepted 3 of depth 3, 0 of 3, 1 of 2, 2 of 3, and a step without a draft
    assert found(count_positions, [turn([4, 1, 2, 3, 1], depth=[3, 3, 2, 3, 0])]) == [
        (1, 4, 4, 3, 3 / 4, 3 / 4),
        (2, 4, 3, 2, 2 / 4, 2 / 3),
        (3, 3, 2, 1, 1 / 3, 1 / 2),
    ]
    _, second = found(count_positions, [turn([1, 1], depth=[2, 2])])
    assert second[:4] == (2, 2, 0, 0)
    assert math.isnan(second[5])
    beyond = [(1, 1, 1, 1, 1, 1), (2, 1, 1, 1, 1, 1)]  # more was accepted than the draft was deep
    assert found(count_positions, [turn([9], depth=[2])]) == beyond
    turns = [
        turn([2], sources={"dynamic": [6, 1]}),
        turn([3], sources={"dynamic": [0, 0], "frozen": [2, 2]}),
    ]
    sources = [("dynamic", 6, 1, 0.75, 1 / 3, 1 / 6), ("frozen", 2, 2, 0.25, 2 / 3, 1.0)]
    assert found(count_sources, turns) == sources
    own = [turn([], stats={"hits": 3.0, "misses": 1.0}), turn([], stats={"hits": 1.0})]
    figures = [("hits", 2, 4.0, 2.0), ("misses", 1, 1.0, 1.0)]
    assert found(count_own_figures, own, [turn([])]) == figures


def test_peers_and_failed_cases_are_left_out_and_the_time_split_adds_up(make_manifest):
    records = [
        record(VANILLA, "a", [turn([1])]),
        record("pld", "a", [turn([2], [3], sources={"context": [3, 1]})]),
        record("pld", "b", [turn([9], [9])]),
        failed("pld", "b", round=1),
        record("hf_assisted", "a", [turn([2], phases_s={})]),
    ]
    detail = found_in(records, make_manifest({"pld": {}, "hf_assisted": {"peer": True}})).detail
    assert set(detail["time_split"]["method"]) == {VANILLA, "pld"}
    assert (
        set(detail["accept_positions"]["method"])
        == set(detail["accept_sources"]["method"])
        == {"pld"}
    )
    lengths = detail["accept_lengths"].groupby("method")["tokens"].max().to_dict()
    assert lengths == {VANILLA: 1, "pld": 2, "hf_assisted": 2}
    records = [record("pld", "a", [turn([1, 1], phases_s={"draft": 0.25, "forward": 0.5})])]
    row = found_in(records, make_manifest({"pld": {}})).detail["time_split"].iloc[0]
    assert (row["draft_ms"], row["forward_ms"], row["step_ms"]) == (125, 250, 375)
    assert math.isnan(row["prepare_ms"])


def test_what_does_not_apply_is_skipped_with_a_reason(make_run, caplog):
    findings = read_findings(
        [make_run(methods={"hf_assisted": (4.0, 0.5, 1e-3)}, per_category=1, categories=("qa",))]
    )
    with caplog.at_level("DEBUG", logger=SKIPPED), drawing():
        names = {name for name, _ in draw_plots(findings)}
    assert {"time_split", "accept_lengths"} <= names
    assert not {"accept_positions", "accept_sources", "radar"} & names
    assert "no method drafts from more than one source" in caplog.text
    assert "1 categories, a radar needs 3" in caplog.text


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
        names - made
        == {TIME_SPLIT, AUDIT, *DETAILS}
        == set(built.findings.detail) - {LOADED, OBJECTIVE, QUALITY}
    )  # alone, no references


def test_every_figure_of_the_summary_is_declared_once_and_documented():
    names = [name for column in RESULT for name in column.names]
    assert len(set(names)) == len(names)
    assert (*KEYS, *names) == COLUMNS
    page = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text("utf-8")
    assert all(f"`{column.figure}`" in page for column in RESULT if column.value)
