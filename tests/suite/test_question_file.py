"""The question file: what is read from a good one, and that every kind of bad one names its file and line."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from bad_input.case import DEEP

from specbench.records.answers import MT_BENCH
from specbench.report.frames.summary import TASKS
from specbench.suite.format import Wording
from specbench.suite.formats import FORMATS
from specbench.types import Case, InputError

FORMAT = FORMATS["questions"]
PATH = Path("questions.jsonl")
GOOD = {"question_id": 1, "category": "qa", "turns": ["Who?"]}


def parse(raw: bytes, path: Path) -> list[Case]:
    return FORMAT.cases(FORMAT.parse(raw, path, FORMAT.example), Wording(), str(path))


def lines(*rows: object) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def test_a_row_becomes_a_case():
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["a", ["b", "c"]]}
    expected = Case("81", "multi-turn", ("Write.", "Again."), "writing", ("a", ["b", "c"]))
    assert parse(lines(row), PATH) == [expected]


@pytest.mark.parametrize("raw", MT_BENCH)
def test_the_eight_raw_categories_of_mt_bench_are_the_multi_turn_task(raw):
    (case,) = parse(lines({**GOOD, "category": raw}), PATH)
    assert (case.category, case.subcategory) == ("multi-turn", raw)


@pytest.mark.parametrize("name", [*TASKS, "code", "arena-bench-v1"])
def test_other_categories_are_kept_as_they_are(name):
    (case,) = parse(lines({**GOOD, "category": name}), PATH)
    assert (case.category, case.subcategory) == (name, name)


def test_ids_may_be_words_references_may_be_missing_and_other_fields_are_ignored():
    row = {"question_id": "66c0", "category": "qa", "turns": ["Who?"], "reference": None, "required_temperature": 0}
    (case,) = parse(lines(row), PATH)
    assert (case.id, case.references) == ("66c0", ())


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_read_over():
    raw = b"\xef\xbb\xbf" + lines(GOOD, "", {**GOOD, "question_id": 2}, "").replace(b"\n", b"\r\n")
    assert [case.id for case in parse(raw, PATH)] == ["1", "2"]


def test_a_line_separator_inside_a_string_does_not_end_the_line():
    text = "one\u2028two\x85three"
    raw = json.dumps({**GOOD, "turns": [text]}, ensure_ascii=False).encode()
    assert parse(raw, PATH)[0].turns == (text,)


def test_turns_keep_their_white_space():
    (case,) = parse(lines({**GOOD, "turns": ["  def f():\n    return\n"]}), PATH)
    assert case.turns == ("  def f():\n    return\n",)


def test_a_gzipped_file_reads_as_the_plain_one():
    raw = lines(GOOD, {**GOOD, "question_id": 2})
    assert parse(gzip.compress(raw), PATH) == parse(raw, PATH)


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in GOOD.items() if name != key}


def changed(**entries: object) -> dict[str, object]:
    return GOOD | {"question_id": 2} | entries


@pytest.mark.parametrize(
    ("second_line", "says"),
    [
        ("{not json", "not JSON .*expected one object a line"),
        (DEEP, "not JSON .*recursion"),
        (f'{{"question_id": {DEEP}', "not JSON .*recursion"),
        ('{"question_id": "\\ud800", "category": "qa"}', "not JSON"),  # half a character
        (changed(category="\udfff"), "not JSON"),
        (changed(turns=["\ud83d"]), "not JSON"),
        ('{"question_id": Infinity}', "not JSON"),
        ('{"question_id": NaN}', "not JSON"),
        (f'{{"question_id": {"1" * 5000}}}', "not JSON .*out of range"),
        ("\0\0\0", "not JSON"),
        ('{"question_id": 0, "question_id": 1, "category": "qa", "turns": ["a"]}', "'question_id' twice"),
        ('["a"]', "got a list; expected one object a line"),
        ("7", "got a number; expected one object a line"),
        ("null", "got a null; expected one object a line"),
        (without("turns"), "there is no turns, expected a list"),
        (changed(turns=[]), "turns is an empty list"),
        (changed(turns="Who?"), "turns is a string, expected a list"),
        (changed(turns=["a", " \n"]), "turn 2 is empty"),
        (changed(turns=[3]), "turn 1 is a number"),
        (changed(turns=[None]), "turn 1 is a null"),
        (changed(turns=[["a"]]), "turn 1 is a list"),
        (without("question_id"), "there is no question_id"),
        (changed(question_id=None), "question_id is null"),
        (changed(question_id=True), "question_id is a true or false"),
        (changed(question_id=1.5), "question_id is a number, expected a whole number"),
        ('{"question_id": 1e999, "category": "qa", "turns": ["a"]}', "whole number"),
        (changed(question_id=[1]), "question_id is a list"),
        (changed(question_id=""), "question_id is an empty string"),
        (changed(question_id=" "), "question_id is blank"),
        (without("category"), "there is no category"),
        (changed(category=None), "category is null"),
        (changed(category=3), "category is a number"),
        (changed(reference="42"), "reference is a string, expected a list"),
        (GOOD, "question_id 1 is on line 1 already"),
        (changed(question_id="1"), "question_id 1 is on line 1 already"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_bad_line_is_named_with_what_is_wrong_with_it(second_line, says):
    with pytest.raises(InputError, match=rf"questions\.jsonl, line 2: .*{says}"):
        parse(lines(GOOD, second_line), PATH)


def test_blank_lines_count_in_line_numbers():
    with pytest.raises(InputError, match="line 4"):
        parse(lines(GOOD, "", "", "{"), PATH)


def test_text_that_is_not_utf_8_is_named_with_its_line_and_byte():
    raw = lines(GOOD) + b'\n{"question_id": 2, "turns": ["caf\xe9"]}'
    with pytest.raises(InputError, match=r"line 2: not UTF-8 \(byte \d+ of the line is 0xe9\): save"):
        parse(raw, PATH)


@pytest.mark.parametrize("damage", [slice(0, 4), slice(0, 20), slice(None, -4)])
def test_a_damaged_gzip_file_is_named(damage):
    packed = gzip.compress(lines(*({**GOOD, "question_id": number} for number in range(50))))
    with pytest.raises(InputError, match=r"questions\.jsonl is a damaged gzip file"):
        parse(packed[damage], PATH)


def test_a_gzip_file_that_unpacks_into_far_more_is_refused():
    with pytest.raises(InputError, match="more than 100 times"):
        parse(gzip.compress(b"\n" * (65 << 20), 1), PATH)


def test_a_file_of_blank_lines_holds_no_questions():
    with pytest.raises(InputError, match="holds no questions"):
        parse(b"\n\n", PATH)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent.jsonl", "no such file"),
        ("", "is a directory"),
        ("empty.jsonl", "is empty"),
        ("empty.jsonl/inside", "cannot be read (Not a directory)"),
        ("x" * 300, "cannot be read (File name too long)"),
    ],
)
def test_a_file_that_is_not_there_to_read_is_named_with_the_reason_and_the_fix(tmp_path, name, says):
    (tmp_path / "empty.jsonl").touch()
    path = tmp_path / name
    with pytest.raises(InputError) as caught:
        FORMAT.read_rows(path)
    assert str(caught.value).startswith(f"Suite file {path}: {says}")
    assert "suite.path=" in str(caught.value)


def test_the_file_of_spec_bench_has_its_480_questions(spec_bench_file):
    cases = parse(spec_bench_file.read_bytes(), spec_bench_file)
    assert Counter(case.category for case in cases) == dict.fromkeys(TASKS, 80)
    assert [case.id for case in cases] == [str(number) for number in range(81, 561)]
    assert sum(len(case.turns) for case in cases) == 560
    assert Counter(case.subcategory for case in cases if case.category == "multi-turn") == dict.fromkeys(MT_BENCH, 10)
    assert sum(1 for case in cases if case.references) == 359
