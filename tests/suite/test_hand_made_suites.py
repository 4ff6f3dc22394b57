"""Suites whose data is not here, each read from rows made by hand in the schema of its file."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from hand_made import HAND_MADE, HOLDER, SPEED, TALK, THROUGHPUT

from compose import job_for
from specbench.types import InputError


def suite_of(name, path, *settings):
    return job_for("model=tiny", f"suite={name}", f"suite.path={path}", "method=[pld]", *settings).suite


def write_parquet(path, *rows):
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


@pytest.mark.parametrize("name", [name for name in HAND_MADE if name not in list(THROUGHPUT)[1:]])
def test_a_suite_reads_a_file_of_its_schema(tmp_path, name):
    official, row, identifier, category, subcategory, words, references = HAND_MADE[name]
    if name.startswith("speed"):
        write_parquet(tmp_path / "test.parquet", row)
    else:
        (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    suite = suite_of(name, tmp_path)
    (case,) = suite.cases
    assert (suite.name, case.id, case.category, case.subcategory) == (name, identifier, category, subcategory)
    assert all(each in case.turns[0] for each in words)
    assert case.turns[1:] == {"speed_bench": ("Now g.",), "mt_bench_101": ("Who?",)}.get(name, case.turns[1:])
    assert case.references == references
    counted = [f"has 1 questions, the official file has {official}." in each for each in suite.warnings]
    assert counted[:1] == ([True] if official else [])  # math_500 without math-verify says that too


def test_speed_bench_refuses_placeholders_and_says_how_they_are_filled(tmp_path):
    rows = [SPEED | {"question_id": str(place), "category": name} for place, name in enumerate(("math", "qa", "qa"))]
    held = [row | {"turns": [f"{HOLDER}\n\nAnswer {{question}}"]} for row in rows]
    write_parquet(tmp_path / "a.parquet", SPEED, *held)
    with pytest.raises(InputError, match=r"3 of 4 rows hold a placeholder .*\(math 1, qa 2\).*prepare_data\.py"):
        suite_of("speed_bench", tmp_path)


@pytest.mark.parametrize(
    ("turn", "bare"),
    [
        ("Sort.\n" + "Answer now please.\n" * 3 + "Answer now", "Sort.\n"),
        ("Sort.\n" + "Answer now please.\n" * 3, "Sort.\n"),
        ("Sort. Answer now please.\nThen stop.", "Sort. Answer now please.\nThen stop."),
        ("Sort. Answer", "Sort. Answer"),
    ],
)
def test_speed_bench_padding_comes_off(tmp_path, turn, bare):
    path = write_parquet(tmp_path / "a.parquet", SPEED | {"turns": [turn]})
    name = "speed_bench_throughput_1k"
    assert suite_of(name, path).cases[0].turns == (turn,)
    assert suite_of(name, path, "suite.form=bare").cases[0].turns == (bare,)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("{nope}", "there is no nope, which suite.frame names; it has task, id, history"),
        ("{history.5.user}", "there is no history.5.user"),
        ("{task.user}", "there is no task.user"),
        ("Who? {}", r"suite.frame=Who\? \{\}: names no field, .* expected \{NAME\} in it, one of task, id, history"),
    ],
)
def test_a_frame_names_what_the_row_has(tmp_path, frame, says):
    (tmp_path / "a.jsonl").write_text(json.dumps(TALK))
    with pytest.raises(InputError, match=says):
        suite_of("mt_bench_101", tmp_path / "a.jsonl", f"suite.frame='{frame}'")
    with pytest.raises(InputError, match=r"suite\.frame=x: is for prompts of your own"):
        job_for("model=tiny", "suite=mini", "suite.frame=x", "method=[pld]")
