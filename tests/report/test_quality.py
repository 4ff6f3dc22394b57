"""Answers that are checked: what a lossy method loses against vanilla, and that a lossless one does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report.conftest import manifest_of, write_run

import specbench
from builders.records import failed, record, turn
from builders.runs import job_for
from specbench.input import InputError
from specbench.records.record import VANILLA, CaseRecord
from specbench.report import build_report
from specbench.report.build import read_findings
from specbench.runs.execution import execute

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
    manifest = manifest_of({"pld": {}, "medusa": {"lossless": False}}, rounds=2)
    run = write_run(tmp_path_factory.mktemp("quality") / "run", manifest, list(answers(2)))
    return build_report([run], plots=False)


def test_a_lossy_method_loses_points_and_quality_is_next_to_speed(report):
    rows = {row["method"]: row for row in report.findings.detail["quality"].to_dict("records")}
    assert [row["cases"] for row in rows.values()] == [12, 12, 12]
    assert rows[VANILLA]["correct"] == rows["pld"]["correct"] == 9 / 12
    assert rows["medusa"]["correct"] == pytest.approx(4 / 12)
    assert rows["medusa"]["difference"] == pytest.approx(-5 / 12)
    assert rows["medusa"]["difference_low"] < rows["medusa"]["difference_high"] < 0
    assert rows["pld"]["difference"] == rows["pld"]["difference_low"] == rows["pld"]["difference_high"] == 0
    assert math.isnan(rows[VANILLA]["difference"])
    assert rows[VANILLA]["correct_low"] < 0.75 < rows[VANILLA]["correct_high"]
    page = (report.output / "report.html").read_text("utf-8")
    assert 'id="answers"' in page
    text = (report.output / "tables/quality.md").read_text("utf-8")
    assert "| medusa | 12 of 14 | 33.3 % \\[" in text
    assert "| -41.7 \\[" in text
    assert "| pld | 12 of 14 | 75.0 % \\[" in text
    assert "| +0.0 |" in text
    assert (report.output / "tables/quality.csv").is_file()


def test_a_record_says_it_only_where_it_was_checked():
    plain, checked = record("pld", "a", [turn([1])]), record("pld", "a", [turn([1])], correct=False)
    assert "correct" not in json.loads(plain.to_json())
    assert CaseRecord.from_json(checked.to_json()).correct is False
    assert CaseRecord.from_json(plain.to_json()).correct is None


TINY = Path(specbench.__file__).parent / "assets/tiny"
PASSED = {VANILLA: 9, "pld": 9, "medusa": 4}  # of the ten programs that both finished
CODE = "    return 1\n"


@pytest.fixture
def code_run(tmp_path):
    """Ten programs, one that failed under a method, and a category that no sandbox knows."""
    from specbench.report.tokenizer import read_tokenizer

    ids = read_tokenizer(TINY).encode(CODE, add_special_tokens=False).ids
    proposed = {VANILLA: [0] * (len(ids) - 1), "pld": [2] * (len(ids) - 1), "medusa": [2] * (len(ids) - 1)}
    made = {name: turn([1] * len(each), each, ids=ids, text=CODE.strip()) for name, each in proposed.items()}
    records = []
    for place in range(10):
        about = {"block": place}
        records += [record(name, f"HumanEval/{place}", [made[name]], "code", **about) for name in proposed]
    records += [
        record(VANILLA, "HumanEval/x", [made[VANILLA]], "code", block=10),
        failed("pld", "HumanEval/x", "code"),
    ]
    records += [record("medusa", "HumanEval/x", [made["medusa"]], "code", block=10)]
    records[-2].block = 10
    records += [record(name, "q", [made[name]], "qa", block=11) for name in proposed]
    manifest = manifest_of({"pld": {}, "medusa": {"lossless": False}}, control=False)
    return write_run(tmp_path / "run", manifest, records)


def rows_of_sandbox(run, tmp_path):
    """A sandbox's output for the exported samples: each with its verdict."""
    from specbench.commands.report import main

    assert main([str(run), "--export", "samples", "--output", str(tmp_path), "--tokenizer", str(TINY)]) == 0
    samples = [json.loads(line) for name in PASSED for line in (tmp_path / name / "samples.jsonl").open()]
    assert {sample["completion"] for sample in samples} == {CODE}  # its blanks kept
    place = {f"HumanEval/{number}": number for number in range(10)}
    kept = [sample for sample in samples if sample["task_id"] != "q"]
    return [row | {"passed": place.get(row["task_id"], 99) < PASSED[row["method"]]} for row in kept]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_code_that_passed_stands_next_to_speed(code_run, tmp_path):
    rows = rows_of_sandbox(code_run, tmp_path / "out")
    report = build_report([code_run], plots=False, passed=[write_rows(tmp_path / "r.jsonl", rows)])
    found = {row["method"]: row for row in report.findings.detail["quality"].to_dict("records")}
    assert [row["cases"] for row in found.values()] == [11, 10, 11]
    assert found["pld"]["correct"] == 9 / 10
    assert found["pld"]["difference"] == found["pld"]["difference_high"] == 0  # on the ten that both finished
    assert found["medusa"]["difference"] == pytest.approx(-5 / 11)
    assert found["medusa"]["difference_high"] < 0
    assert "| pld | 10 of 11 | 90.0 % \\[" in (report.output / "tables/quality.md").read_text("utf-8")
    assert read_findings([code_run]).detail["quality"].empty  # without the file
    rows = [row for row in rows_of_sandbox(code_run, tmp_path / "out") if row["method"] != "medusa"]
    frame = read_findings([code_run], passed=[write_rows(tmp_path / "r.jsonl", rows)]).detail["quality"]
    assert list(frame["method"]) == [VANILLA, "pld"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1:], r"1 rows are missing: HumanEval/0 of vanilla; expected one row an answer"),
        (lambda rows: [*rows, rows[0]], r"line 33: HumanEval/0 of vanilla has a row already"),
        (lambda rows: [*rows, rows[0] | {"task_id": "no"}], r"the run: no of vanilla; expected .* such as HumanEval/0"),
        (lambda rows: [*rows, rows[0] | {"round": 1}], r"of no answer of the run: HumanEval/0 of vanilla in round 1"),
        (lambda rows: [rows[0] | {"passed": "yes"}], r"r\.jsonl, line 1: passed"),
        (lambda rows: [], r"r\.jsonl: no rows; expected lines such as"),
    ],
)
def test_rows_that_do_not_fit_the_run_are_named(code_run, tmp_path, change, message):
    rows = change(rows_of_sandbox(code_run, tmp_path / "out"))
    with pytest.raises(InputError, match=message):
        read_findings([code_run], passed=[write_rows(tmp_path / "r.jsonl", rows)])


LOSSY = ("head=random", "tree=[[2],[1,1]]")


@pytest.mark.exhaustive
def test_a_lossy_method_loses_on_the_bundled_problems(tmp_path):
    """Medusa with random heads and a bar that nothing misses; the command of docs/suites.md on the ten of mini."""
    settings = ["suite=mini", "suite.categories=[math_reasoning]", "decode.temperature=0.5", "measure=quick"]
    settings += ["decode.accept=typical", "decode.accept_threshold=1e-30"]
    lossy = [f"method.medusa.{each}" for each in LOSSY]
    execute(job_for("model=tiny", *settings, "method=[medusa]", *lossy), tmp_path / "run", lambda *_: None)
    frame = read_findings([tmp_path / "run"]).detail["quality"].set_index("method")
    assert frame.loc["medusa", "difference_high"] < 0 < frame.loc[VANILLA, "correct"]
