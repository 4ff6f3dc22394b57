"""The formats: what a valid row of each becomes, how its forms are put, and that a bad row is named
with its place.
"""

import gzip
import json

import pytest

from builders.suites import suite_with
from specbench.records.answers import MT_BENCH
from specbench.types import Case, InputError

DEEP = "[" * 100_000  # JSON that no parser may follow
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "\ndef f():\n",
    "canonical_solution": "    return 1\n",
    "test": "...",
}
MBPP = {
    "task_id": 11,
    "text": "Write f. ",
    "code": "def f(): ...",
    "test_list": [" assert f()", "assert not f"],
}
GSM8K = {"question": "How many?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}
PART = {"question_id": 81, "question": "Quantos?", "category": "tegulu", "answer": "18"}
QUESTION = {"question_id": 602, "category": "code", "turns": ["Write f.\n"]}
ASKED = {"question_id": 1, "category": "qa", "turns": ["Who?"]}
GOOD = {
    "questions": ASKED,
    "humaneval": HUMANEVAL,
    "mbpp": MBPP,
    "gsm8k": GSM8K,
    "mgsm_110": PART,
    "token_recycling": QUESTION,
}
FRAMED = (
    'Create a Python script for this problem:\n```python\n"""\nWrite f.\nassert f()\n"""\n\n```'
)
FORMS = {
    "humaneval": ("exact", "\ndef f():\n"),
    "mbpp": ("script", FRAMED),
    "gsm8k": ("qa", "Q: How many?\nA:"),
    "mgsm_110": ("bare", "Quantos?"),
}


def lines_of(*rows):
    """The bytes of a file of rows; a row may be a line as text."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def read(tmp_path, name, raw, file="q.jsonl", **options):
    (tmp_path / file).write_bytes(raw)
    return list(suite_with(name, format=name, path=tmp_path / file, **options).cases)


def load(tmp_path, name, *rows, **options):
    """The cases of a file of rows."""
    return read(tmp_path, name, lines_of(*rows), **options)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("humaneval", Case("HumanEval/0", "humaneval", ("def f():",), "", ("    return 1\n",))),
        ("mbpp", Case("mbpp/11", "mbpp", ("Write f.",), "", ("def f(): ...",))),
        ("gsm8k", Case("gsm8k/0", "gsm8k", ("How many?",), "", (GSM8K["answer"],))),
        ("mgsm_110", Case("mgsm/te/1", "mgsm", ("Question: Quantos?\n\nAnswer:",), "te", ("18",))),
        ("token_recycling", Case("mbpp/602", "mbpp", ("Write f.\n",), "code", ())),
        ("questions", Case("1", "qa", ("Who?",), "qa", ())),
    ],
)
def test_a_row_becomes_a_case_of_its_suite_in_the_form_that_is_named(tmp_path, name, case):
    assert load(tmp_path, name, GOOD[name]) == [case]
    if name in FORMS:
        form, text = FORMS[name]
        assert load(tmp_path, name, GOOD[name], form=form)[0].turns == (text,)


def test_a_question_keeps_its_turns_references_and_raw_category(tmp_path):
    """White space in turns stays, other fields are ignored, and a reference may be missing."""
    row = {
        "question_id": 81,
        "category": "writing",
        "turns": ["  a\n", "b"],
        "reference": ["a", ["b", "c"]],
        "more": 0,
    }
    assert load(tmp_path, "questions", row) == [
        Case("81", "multi-turn", ("  a\n", "b"), "writing", ("a", ["b", "c"]))
    ]
    (case,) = load(tmp_path, "questions", ASKED | {"question_id": "66c0", "reference": None})
    assert (case.id, case.references) == ("66c0", ())


@pytest.mark.parametrize("raw", [*MT_BENCH, "qa", "code"])
def test_the_eight_raw_categories_of_mt_bench_are_the_multi_turn_task_and_others_stay(
    tmp_path, raw
):
    (case,) = load(tmp_path, "questions", ASKED | {"category": raw})
    assert (case.category, case.subcategory) == ("multi-turn" if raw in MT_BENCH else raw, raw)


def test_blank_lines_line_ends_marks_and_gzip_are_read_over(tmp_path):
    """So is a line separator in a string: only a newline ends a line."""
    text = "one\u2028two\x85three"
    raw = lines_of(
        ASKED, "", json.dumps({**ASKED, "question_id": 2, "turns": [text]}, ensure_ascii=False), ""
    )
    expected = read(tmp_path, "questions", raw)
    assert [(case.id, case.turns) for case in expected] == [("1", ("Who?",)), ("2", (text,))]
    assert read(tmp_path, "questions", b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n")) == expected
    assert read(tmp_path, "questions", gzip.compress(raw)) == expected


def test_a_folder_of_mgsm_is_read_language_by_language_and_counted_as_a_whole(tmp_path):
    for language in ("zh", "bn", "xx"):
        (tmp_path / f"mgsm_{language}.tsv").write_text("?\t1\nUnd?\t2,125\n", encoding="utf-8")
    suite = suite_with(
        "mgsm", format="mgsm", path=tmp_path, expected=2750, categories=["zh"], form="question"
    )
    assert [case.id for case in suite.cases] == ["mgsm/zh/0", "mgsm/zh/1"]
    assert suite.cases[1].turns == ("Question: Und?\n\nAnswer:",)
    assert (suite.cases[1].references, suite.origin) == (("2125",), str(tmp_path))
    assert suite.warnings == (
        f"Suite mgsm: {tmp_path} has 4 questions, the official file has 2750.",
    )


def test_the_hash_of_a_folder_is_of_its_files_one_after_the_other(tmp_path):
    load(tmp_path, "mgsm", "a?\t1", file="mgsm_de.tsv")
    load(tmp_path, "mgsm", "b?\t2", file="mgsm_en.tsv")
    whole = tmp_path / "mgsm_zh" / "mgsm_zh.tsv"
    whole.parent.mkdir()
    whole.write_text("a?\t1\nb?\t2\n")
    folder, file = (suite_with("mgsm", format="mgsm", path=path) for path in (tmp_path, whole))
    assert folder.sha256 == file.sha256


def test_tasks_of_mbpp_outside_the_test_split_are_left_out(tmp_path):
    rows = [{**MBPP, "task_id": task} for task in (10, 11, 510, 511)]
    assert [case.id for case in load(tmp_path, "mbpp", *rows)] == ["mbpp/11", "mbpp/510"]
    for left in (rows[:1], ["", ""]):
        with pytest.raises(InputError, match=r"q\.jsonl contains no questions"):
            load(tmp_path, "mbpp", *left)


def asked(**entries):
    return ASKED | {"question_id": 2} | entries


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("questions", "{not json", "not JSON"),
        ("questions", DEEP, "not JSON .*recursion"),
        ("questions", asked(turns=["\ud83d"]), "not JSON"),  # half a character
        (
            "questions",
            '{"question_id": 0, "question_id": 1, "category": "qa", "turns": ["a"]}',
            "'question_id' twice",
        ),
        ("questions", '["a"]', "got a list"),
        ("questions", asked(turns=["a", " \n"]), "turn 2 is empty"),
        ("questions", asked(question_id=True), "question_id is a true or false"),
        ("questions", asked(question_id="1"), "question_id 1 is on line 1"),
        ("humaneval", "{", "not JSON .*HumanEval/0"),
        ("mgsm_110", {**PART, "category": "latin"}, "category is latin, .*bengali"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_bad_row_is_named_with_its_file_and_line(tmp_path, name, row, says):
    """Blank lines count."""
    with pytest.raises(InputError, match=rf"q\.jsonl, line 3: .*{says}"):
        load(tmp_path, name, GOOD[name], "", row)


PACKED = gzip.compress(lines_of(*(asked(question_id=number) for number in range(50))))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (PACKED[:4], r"q\.jsonl is a damaged gzip file"),
        (PACKED[:-4], r"q\.jsonl is a damaged gzip file"),
        (gzip.compress(b"\n" * (65 << 20), 1), "more than 100 times"),
        (
            lines_of(ASKED) + b'{"turns": ["caf\xe9"]}',
            r"line 2: not UTF-8 \(byte \d+ of the line is 0xe9",
        ),
    ],
    ids=["cut", "without its end", "a bomb", "not UTF-8"],
)
def test_a_damaged_file_is_named(tmp_path, raw, says):
    with pytest.raises(InputError, match=says):
        read(tmp_path, "questions", raw)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent.jsonl", "no such file"),
        ("", "is a directory"),
        ("empty.jsonl", "is empty"),
    ],
)
def test_a_file_that_is_not_there_to_read_is_named_with_the_reason_and_the_fix(
    tmp_path, name, says
):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError) as caught:
        suite_with("q", path=tmp_path / name)
    assert str(caught.value).startswith(f"Suite file {tmp_path / name}: {says}")
    assert "suite.path=" in str(caught.value)


@pytest.mark.parametrize(
    ("tests", "says"),
    [([], "test_list is an empty"), ([3], "the first .* a number")],
)
def test_the_first_test_is_needed_only_where_it_is_put(tmp_path, tests, says):
    row = {**MBPP, "test_list": tests}
    assert load(tmp_path, "mbpp", row)
    with pytest.raises(InputError, match=rf"line 1: {says}"):
        load(tmp_path, "mbpp", row, form="script")


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("mgsm_de.tsv", "Wie viel? 18", r"mgsm_de\.tsv, line 2: 1 columns"),
        (
            "mgsm_xx.tsv",
            "Wie viel?\t18",
            r"mgsm_xx\.tsv: its name does not say the language; .* de",
        ),
    ],
)
def test_a_bad_file_of_mgsm_is_named_with_its_line(tmp_path, file, line, says):
    with pytest.raises(InputError, match=says):
        load(tmp_path, "mgsm", "Wie viel?\t18", line, file=file)


@pytest.mark.parametrize("name", ["gsm8k", "csv"])
def test_a_form_or_a_format_that_there_is_not_is_refused_with_those_that_there_are(name):
    says = {"gsm8k": "form=nope: .*bare", "csv": "format=csv: .*humaneval"}
    with pytest.raises(InputError, match=rf"suite\.{says[name]}"):
        suite_with(name, format=name, form="nope")


def test_a_folder_without_a_language_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no mgsm_<language>\.tsv for any of bn, de"):
        suite_with("mgsm", format="mgsm", path=tmp_path)


SCHEMA = {
    "name": "mv",
    "description": "Move.",
    "parameters": {"type": "dict", "properties": {"to": {"type": "float"}}},
}
SORT = {"name": "sort", "description": "Sort.", "parameters": {"type": "dict", "properties": {}}}
USER = {"role": "user", "content": "Move it."}
LONG = {
    "id": "multi_turn_0", "question": [[USER], [], [{"role": "user", "content": "Go."}]],
    "involved_classes": ["GorillaFileSystem"], "missed_function": {"1": ["sort"]},
}  # fmt: skip


def with_docs(folder, *functions):
    (folder / "multi_turn_func_doc").mkdir()
    (folder / "multi_turn_func_doc" / "gorilla_file_system.json").write_bytes(lines_of(*functions))


def test_functions_of_bfcl_stand_in_the_prompt_or_are_tools(tmp_path):
    with_docs(tmp_path, SCHEMA | {"response": {"type": "dict"}}, SORT)
    (case,) = load(tmp_path, "bfcl", LONG, form="tools")
    parameters = {"type": "object", "properties": {"to": {"type": "number"}}}
    assert case.tools == ({"type": "function", "function": SCHEMA | {"parameters": parameters}},)
    more = f"These functions can be called now, too, described in JSON:\n[{json.dumps(SORT)}]"
    assert case.turns == ("Move it.", more, "Go.")
    (case,) = load(tmp_path, "bfcl", LONG)
    assert case.tools == ()
    assert case.turns[0].startswith(
        'These functions can be called, described in JSON:\n[{"name": "mv"'
    )
    assert case.turns[0].endswith("and nothing else.\nRequest: Move it.")
    one = {
        "id": "live",
        "question": [[{"role": "system", "content": "Be brief."}, LONG["question"][0][0]]],
    }
    (case,) = load(tmp_path, "bfcl", one | {"function": [SCHEMA]}, form="tools")
    assert (case.system, case.turns, len(case.tools)) == ("Be brief.", ("Move it.",), 1)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": [[], [USER]], "missed_function": {}}, r"question\.0 is an empty list"),
        (
            {"question": [[{"role": "assistant", "content": "x"}]]},
            r"question\.0 has a message of assistant",
        ),
        ({"involved_classes": ["Rocket"]}, "involved_classes has Rocket, .*GorillaFileSystem"),
        ({"involved_classes": ["MathAPI"]}, r"math_api\.json: no such file; copy"),
    ],
)
def test_a_bad_row_of_bfcl_is_named(tmp_path, row, says):
    with_docs(tmp_path, SCHEMA, SORT)
    with pytest.raises(InputError, match=f"q.jsonl, line 1: .*{says}"):
        load(tmp_path, "bfcl", LONG | row, form="tools")
