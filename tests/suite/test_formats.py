"""The formats: what a good row of each becomes, how its forms are put, and that a bad row is named with its place."""

import json

import pytest

from specbench.suite import Selection, load_suite
from specbench.suite.formats import FORMATS
from specbench.types import Case, InputError

HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "\ndef f():\n", "canonical_solution": "    return 1\n", "test": "..."}
MBPP = {"task_id": 11, "text": "Write f. ", "code": "def f(): ...", "test_list": [" assert f()", "assert not f"]}
GSM8K = {"question": "How many?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}
PART = {"question_id": 81, "question": "Quantos?", "category": "tegulu", "answer": "18"}
QUESTION = {"question_id": 602, "category": "code", "turns": ["Write f.\n"]}
GOOD = {"humaneval": HUMANEVAL, "mbpp": MBPP, "gsm8k": GSM8K, "mgsm_110": PART, "token_recycling": QUESTION}
FRAMED = 'Create a Python script for this problem:\n```python\n"""\nWrite f.\nassert f()\n"""\n\n```'


def load(tmp_path, name, *rows, file="q.jsonl", **options):
    """The cases of a file of rows; a row may be a line as text."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path = tmp_path / file
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(load_suite(name, format=name, path=path, **options).cases)


@pytest.mark.parametrize(
    ("name", "form", "turn"),
    [
        ("humaneval", None, "def f():"),
        ("humaneval", "bare", "def f():"),
        ("humaneval", "exact", "\ndef f():\n"),
        ("mbpp", None, "Write f."),
        ("mbpp", "bare", "Write f."),
        ("mbpp", "script", FRAMED),
        ("gsm8k", None, "How many?"),
        ("gsm8k", "bare", "How many?"),
        ("gsm8k", "qa", "Q: How many?\nA:"),
        ("mgsm_110", None, "Question: Quantos?\n\nAnswer:"),
        ("mgsm_110", "question", "Question: Quantos?\n\nAnswer:"),
        ("mgsm_110", "bare", "Quantos?"),
        ("token_recycling", None, "Write f.\n"),
    ],
)
def test_a_question_is_put_in_the_form_that_is_named(tmp_path, name, form, turn):
    (case,) = load(tmp_path, name, GOOD[name], form=form)
    assert case.turns == (turn,)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("humaneval", Case("HumanEval/0", "humaneval", ("def f():",), "", ("    return 1\n",))),
        ("mbpp", Case("mbpp/11", "mbpp", ("Write f.",), "", ("def f(): ...",))),
        ("gsm8k", Case("gsm8k/0", "gsm8k", ("How many?",), "", (GSM8K["answer"],))),
        ("mgsm_110", Case("mgsm/te/1", "mgsm", ("Question: Quantos?\n\nAnswer:",), "te", ("18",))),
        ("token_recycling", Case("mbpp/602", "mbpp", ("Write f.\n",), "code", ())),
    ],
)
def test_a_row_becomes_a_case_of_its_suite(tmp_path, name, case):
    assert load(tmp_path, name, GOOD[name]) == [case]


def test_a_language_of_mgsm_is_told_by_its_file(tmp_path):
    cases = load(tmp_path, "mgsm", "Wie viel?\t18", "", "Und nun?\t2,125", file="mgsm_de.tsv", form="question")
    assert [case.id for case in cases] == ["mgsm/de/0", "mgsm/de/1"]
    assert cases[1] == Case("mgsm/de/1", "mgsm", ("Question: Und nun?\n\nAnswer:",), "de", ("2125",))


def test_a_folder_of_mgsm_is_read_language_by_language_and_counted_as_a_whole(tmp_path):
    for language in ("zh", "bn", "xx"):
        (tmp_path / f"mgsm_{language}.tsv").write_text("?\t1\n?\t2\n", encoding="utf-8")
    suite = load_suite("mgsm", format="mgsm", path=tmp_path, expected=2750, selection=Selection(categories=("zh",)))
    assert [case.id for case in suite.cases] == ["mgsm/zh/0", "mgsm/zh/1"]
    assert suite.origin == str(tmp_path)
    assert suite.warnings == (f"Suite mgsm: {tmp_path} has 4 questions, the official file has 2750.",)


def test_the_hash_of_a_folder_is_of_its_files_one_after_the_other(tmp_path):
    load(tmp_path, "mgsm", "a?\t1", file="mgsm_de.tsv")
    load(tmp_path, "mgsm", "b?\t2", file="mgsm_en.tsv")
    whole = tmp_path / "mgsm_zh" / "mgsm_zh.tsv"
    whole.parent.mkdir()
    whole.write_text("a?\t1\nb?\t2\n")
    folder, file = (load_suite("mgsm", format="mgsm", path=path) for path in (tmp_path, whole))
    assert folder.sha256 == file.sha256


def test_tasks_of_mbpp_outside_the_test_split_are_left_out(tmp_path):
    rows = [{**MBPP, "task_id": task} for task in (10, 11, 510, 511)]
    assert [case.id for case in load(tmp_path, "mbpp", *rows)] == ["mbpp/11", "mbpp/510"]
    with pytest.raises(InputError, match=r"q\.jsonl holds no questions of the suite"):
        load(tmp_path, "mbpp", rows[0])


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("humaneval", "{", "not JSON .*HumanEval/0"),
        ("humaneval", {**HUMANEVAL, "task_id": 1}, "task_id is a number"),
        (
            "humaneval",
            {**HUMANEVAL, "task_id": "HumanEval/1", "prompt": " "},
            "prompt is blank, expected the signature",
        ),
        ("humaneval", HUMANEVAL, "task_id HumanEval/0 is on line 1 already"),
        ("mbpp", {**MBPP, "task_id": "12"}, "task_id is a string, expected the task's number"),
        ("mbpp", {"task_id": 12}, "there is no text"),
        ("mbpp", MBPP, "task_id mbpp/11 is on line 1 already"),
        ("gsm8k", {"answer": "#### 1"}, "there is no question, expected the problem"),
        ("gsm8k", {"question": None}, "question is null"),
        ("gsm8k", "[]", "got a list; expected one object a line"),
        ("mgsm_110", {**PART, "category": "latin"}, "category is latin, expected one of bengali, german"),
        ("mgsm_110", {**PART, "question_id": None}, "question_id is null, expected a whole number"),
        ("mgsm_110", {**PART, "question_id": 82, "answer": 18}, "answer is a number"),
        ("mgsm_110", {**PART, "question_id": 91}, "question_id mgsm/te/1 is on line 1 already"),
        ("token_recycling", {**QUESTION, "turns": []}, "turns is an empty list"),
        ("token_recycling", QUESTION, "question_id mbpp/602 is on line 1 already"),
    ],
)
def test_a_bad_row_is_named_with_its_file_and_line(tmp_path, name, row, says):
    with pytest.raises(InputError, match=rf"q\.jsonl, line 2: .*{says}"):
        load(tmp_path, name, GOOD[name], row)


@pytest.mark.parametrize(
    ("tests", "says"), [(None, "test_list is null"), ([], "test_list is an empty list"), ([3], "the first .* a number")]
)
def test_the_first_test_is_needed_only_where_it_is_put(tmp_path, tests, says):
    row = {**MBPP, "test_list": tests}
    assert load(tmp_path, "mbpp", row)
    with pytest.raises(InputError, match=rf"line 1: {says}"):
        load(tmp_path, "mbpp", row, form="script")


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("mgsm_de.tsv", "Wie viel? 18", r"mgsm_de\.tsv, line 2: 1 columns, expected the question, one tab"),
        ("mgsm_de.tsv", "Wie\tviel?\t18", "line 2: 3 columns"),
        ("mgsm_de.tsv", "\t18", "line 2: question is an empty string"),
        ("mgsm_de.tsv", "Wie viel?\t ", "line 2: answer is blank"),
        ("mgsm_xx.tsv", "Wie viel?\t18", r"mgsm_xx\.tsv: its name does not say the language; .* bn, de"),
    ],
)
def test_a_bad_file_of_mgsm_is_named_with_its_line(tmp_path, file, line, says):
    with pytest.raises(InputError, match=says):
        load(tmp_path, "mgsm", "Wie viel?\t18", line, file=file)


def test_text_of_mgsm_that_is_not_utf_8_is_named_with_its_line(tmp_path):
    (tmp_path / "mgsm_fr.tsv").write_bytes(b"caf\xe9\t18\n")
    with pytest.raises(InputError, match=r"mgsm_fr\.tsv, line 1: not UTF-8"):
        load_suite("mgsm", format="mgsm", path=tmp_path)


def test_a_folder_without_a_language_and_a_folder_in_place_of_a_file_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no mgsm_<language>\.tsv for any of bn, de"):
        load_suite("mgsm", format="mgsm", path=tmp_path)
    with pytest.raises(InputError, match="is a directory; give a"):
        load_suite("gsm8k", format="gsm8k", path=tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_form_that_a_format_has_not_is_refused_with_those_that_it_has(name):
    forms = FORMATS[name].forms
    says = f"suite.form=nope: expected one of {', '.join(forms)}" if forms else "suite.form=nope: .*leave it out"
    with pytest.raises(InputError, match=says):
        load_suite(name, format=name, form="nope")


def test_an_unknown_format_is_refused_with_those_that_there_are():
    with pytest.raises(InputError, match=r"suite\.format=csv: expected one of questions, mt_bench, humaneval"):
        load_suite("mine", format="csv")
