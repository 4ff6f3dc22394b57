"""Answers that are checked: what a lossy method loses against vanilla, and that a lossless one does not."""

from __future__ import annotations

import json
import math

import pytest
from report.conftest import write_run
from report.handmade import record, turn

from specbench.record import VANILLA, CaseRecord
from specbench.report import build_report
from specbench.report.build import read_findings

RIGHT = {VANILLA: 9, "pld": 9, "medusa": 4}  # of twelve problems


def answers(rounds=1):
    """Twelve problems, the first so many correct in every round, and two cases that are none."""
    for number in range(rounds):
        for place in range(14):
            for method, right in RIGHT.items():
                checked = {"correct": place < right} if place < 12 else {}
                steps = [1] * 9 if method == VANILLA else [3, 3, 3]
                proposed = [0] * 9 if method == VANILLA else [2, 2, 2]
                about = {"round": number, "block": 14 * number + place, **checked}
                yield record(method, f"c{place}", [turn(steps, proposed)], "math" if checked else "qa", **about)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    from report.conftest import manifest_of

    manifest = manifest_of({"pld": {}, "medusa": {"lossless": False}}, rounds=2)
    run = write_run(tmp_path_factory.mktemp("quality") / "run", manifest, list(answers(2)))
    return build_report([run], plots=False)


def test_a_lossy_method_loses_points_and_a_lossless_one_none(report):
    rows = {row["method"]: row for row in report.findings.detail["quality"].to_dict("records")}
    assert [row["cases"] for row in rows.values()] == [12, 12, 12]
    assert rows[VANILLA]["correct"] == rows["pld"]["correct"] == 9 / 12
    assert rows["medusa"]["correct"] == pytest.approx(4 / 12)
    assert rows["medusa"]["difference"] == pytest.approx(-5 / 12)
    assert rows["medusa"]["difference_low"] < rows["medusa"]["difference_high"] < 0
    assert rows["pld"]["difference"] == rows["pld"]["difference_low"] == rows["pld"]["difference_high"] == 0
    assert math.isnan(rows[VANILLA]["difference"])
    assert rows[VANILLA]["correct_low"] < 0.75 < rows[VANILLA]["correct_high"]


def test_quality_stands_beside_speed(report):
    page = (report.output / "report.html").read_text("utf-8")
    assert 'id="answers"' in page
    text = (report.output / "tables/quality.md").read_text("utf-8")
    assert "| medusa | 12 | 33.3 % \\[" in text
    assert "| -41.7 \\[" in text
    assert "| pld | 12 | 75.0 % \\[" in text
    assert "| +0.0 |" in text
    assert (report.output / "tables/quality.csv").is_file()


def test_a_run_without_references_has_no_such_table(make_run):
    run = make_run(per_category=1)
    assert read_findings([run]).detail["quality"].empty
    assert not (build_report([run], plots=False).output / "tables/quality.csv").exists()


def test_a_record_says_it_only_where_it_was_checked():
    plain, checked = record("pld", "a", [turn([1])]), record("pld", "a", [turn([1])], correct=False)
    assert "correct" not in json.loads(plain.to_json())
    assert CaseRecord.from_json(checked.to_json()).correct is False
    assert CaseRecord.from_json(plain.to_json()).correct is None
