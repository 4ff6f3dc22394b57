"""Answers that are checked: what a lossy method loses against vanilla, and that a lossless one does
not.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report.conftest import manifest_of, write_run

import specbench
from builders.records import failed, record, turn, write_json_lines
from builders.runs import job_for
from specbench.commands.report import main
from specbench.input import InputError
from specbench.records.record import VANILLA, CaseRecord
from specbench.report import build_report
from specbench.report.build import read_findings
from specbench.report.tokenizer import read_tokenizer
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
                yield record(
                    method,
                    f"c{place}",
                    [turn(steps, proposed)],
                    "math" if checked else "qa",
                    **about,
                )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    manifest = manifest_of({"pld": {}, "medusa": {"lossless": False}}, rounds=2)
    run = write_run(tmp_path_factory.mktemp("quality") / "run", manifest, list(answers(2)))
    return build_report([run], plots=False)


def test_a_lossy_method_loses_points_and_quality_is_next_to_speed(report):
    rows = report.findings.detail["quality"].set_index("method")
    assert set(rows["cases"]) == {12}
    assert rows["correct"].to_dict() == {name: right / 12 for name, right in RIGHT.items()}
    lossy, same, vanilla = rows.loc["medusa"], rows.loc["pld"], rows.loc[VANILLA]
    assert lossy["difference"] == pytest.approx(-5 / 12)
    assert lossy["difference_low"] < lossy["difference_high"] < 0
    assert same["difference"] == same["difference_low"] == same["difference_high"] == 0
    assert math.isnan(vanilla["difference"])
    assert vanilla["correct_low"] < 0.75 < vanilla["correct_high"]
    assert 'id="answers"' in (report.output / "report.html").read_text("utf-8")
    text = (report.output / "tables/quality.md").read_text("utf-8")
    for part in (
        "| medusa | 12 of 14 | 33.3 % \\[",
        "| -41.7 \\[",
        "| pld | 12 of 14 | 75.0 % \\[",
        "| +0.0 |",
    ):
        assert part in text
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
    ids = read_tokenizer(TINY).encode(CODE, add_special_tokens=False).ids
    steps = len(ids) - 1

    def answer(name, block, case):
        category = "qa" if case == "q" else "code"
        if (name, case) == ("pld", "HumanEval/x"):
            return failed(name, case, category, block=block)
        proposed = [0 if name == VANILLA else 2] * steps
        made = turn([1] * steps, proposed, ids=ids, text=CODE.strip())
        return record(name, case, [made], category, block=block)

    cases = [*(f"HumanEval/{place}" for place in (*range(10), "x")), "q"]
    records = [answer(name, block, case) for block, case in enumerate(cases) for name in PASSED]
    manifest = manifest_of({"pld": {}, "medusa": {"lossless": False}}, control=False)
    return write_run(tmp_path / "run", manifest, records)


def rows_of_sandbox(run, tmp_path):
    """A sandbox's output for the exported samples: each with its verdict."""
    given = ["--export", "samples", "--output", str(tmp_path), "--tokenizer", str(TINY)]
    assert main([str(run), *given]) == 0
    samples = [
        json.loads(line) for name in PASSED for line in (tmp_path / name / "samples.jsonl").open()
    ]
    assert {sample["completion"] for sample in samples} == {CODE}  # its blanks kept
    place = {f"HumanEval/{number}": number for number in range(10)}
    kept = [sample for sample in samples if sample["task_id"] != "q"]
    return [row | {"passed": place.get(row["task_id"], 99) < PASSED[row["method"]]} for row in kept]


def test_code_that_passed_stands_next_to_speed(code_run, tmp_path):
    rows = rows_of_sandbox(code_run, tmp_path / "out")
    file = write_json_lines(tmp_path / "r.jsonl", rows)
    report = build_report([code_run], plots=False, passed=[file])
    found = report.findings.detail["quality"].set_index("method")
    assert found["cases"].tolist() == [11, 10, 11]
    pld, medusa = found.loc["pld"], found.loc["medusa"]
    assert pld["correct"] == 9 / 10
    assert pld["difference"] == pld["difference_high"] == 0  # on the ten that both finished
    assert medusa["difference"] == pytest.approx(-5 / 11)
    assert medusa["difference_high"] < 0
    assert "| pld | 10 of 11 | 90.0 % \\[" in (report.output / "tables/quality.md").read_text(
        "utf-8"
    )
    assert read_findings([code_run]).detail["quality"].empty  # without the file
    write_json_lines(file, [row for row in rows if row["method"] != "medusa"])
    frame = read_findings([code_run], passed=[file]).detail["quality"]
    assert list(frame["method"]) == [VANILLA, "pld"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows[1:],
            r"1 rows are missing: HumanEval/0 of vanilla; expected one row an answer",
        ),
        (lambda rows: [*rows, rows[0]], r"line 33: HumanEval/0 of vanilla has a row already"),
        (
            lambda rows: [*rows, rows[0] | {"task_id": "no"}],
            r"the run: no of vanilla; expected .* such as HumanEval/0",
        ),
        (lambda rows: [rows[0] | {"passed": "yes"}], r"r\.jsonl, line 1: passed"),
    ],
)
def test_rows_that_do_not_fit_the_run_are_named(code_run, tmp_path, change, message):
    rows = change(rows_of_sandbox(code_run, tmp_path / "out"))
    with pytest.raises(InputError, match=message):
        read_findings([code_run], passed=[write_json_lines(tmp_path / "r.jsonl", rows)])


LOSSY = ("head=random", "tree=[[2],[1,1]]")


@pytest.mark.exhaustive
def test_a_lossy_method_loses_on_the_bundled_problems(tmp_path):
    """Medusa with random heads and a bar that nothing misses; the command of docs/suites.md on the
    ten of mini.
    """
    settings = [
        "suite=mini",
        "suite.limit=null",
        "suite.categories=[math_reasoning]",
        "decode.temperature=0.5",
        "measure=quick",
    ]
    settings += ["decode.accept=typical", "decode.accept_threshold=1e-30"]
    lossy = [f"method.medusa.{each}" for each in LOSSY]
    execute(
        job_for("model=tiny", *settings, "method=[medusa]", *lossy),
        tmp_path / "run",
        lambda *_: None,
    )
    frame = read_findings([tmp_path / "run"]).detail["quality"].set_index("method")
    assert frame.loc["medusa", "difference_high"] < 0 < frame.loc[VANILLA, "correct"]
