"""Every suite of conf/suite: with the real data, or with rows made by hand in the schema of its
file.
"""

import functools
from collections import Counter
from dataclasses import dataclass

import pytest

from builders.records import write_json_lines
from builders.runs import job_for
from builders.suites import HAND_MADE, HOLDER, SPEED, TALK, THROUGHPUT, write_parquet
from specbench.runs.config import conf_dir
from specbench.suite.formats import LANGUAGES
from specbench.types import InputError


@dataclass(frozen=True)
class Expected:
    """The contents of a suite: categories by count, first and last id, and how the first prompt
    begins and ends.
    """

    categories: dict[str, int]
    first: str
    last: str
    begins: str
    ends: str
    references: int


DUCKS = "Janet\u2019s ducks lay 16 eggs per day."
MARKET = "every day at the farmers' market?"
SIMILAR = (
    'Create a Python script for this problem:\n```python\n"""\nWrite a function to find the shared'
    " elements"
)
SPEC_BENCH = dict.fromkeys(
    ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag"), 80
)
OFFICIAL = {
    "spec_bench": Expected(
        SPEC_BENCH, "81", "560", "Compose an engaging travel blog", "attractions.", 359
    ),
    "mt_bench": Expected(
        {"multi-turn": 80}, "81", "160", "Compose an engaging travel blog", "attractions.", 39
    ),
    "humaneval": Expected(
        {"humaneval": 164},
        "HumanEval/0",
        "HumanEval/163",
        "from typing import List",
        'True\n    """',
        164,
    ),
    "mbpp": Expected(
        {"mbpp": 500},
        "mbpp/11",
        "mbpp/510",
        "Write a python function to remove first",
        "string.",
        500,
    ),
    "token_recycling_399": Expected({"mbpp": 399}, "mbpp/2", "mbpp/809", SIMILAR, '"""\n\n```', 0),
    "gsm8k": Expected({"gsm8k": 1319}, "gsm8k/0", "gsm8k/1318", DUCKS, MARKET, 1319),
    "gsm8k_8shot": Expected(
        {"gsm8k": 1319}, "gsm8k/0", "gsm8k/1318", "Q: ", f"\n\nQ: {DUCKS}", 1319
    ),
    "mgsm": Expected(
        {"mgsm": 2750}, "mgsm/bn/0", "mgsm/zh/249", "\u099c\u09c7\u09a8\u09c7\u099f", "?", 2750
    ),
    "mgsm_110": Expected(
        {"mgsm": 110}, "mgsm/bn/0", "mgsm/zh/9", "Question: \u099c", "\n\nAnswer:", 110
    ),
}


@functools.cache
def suite_of(name, *settings):
    return job_for("model=tiny", f"suite={name}", "method=[pld]", *settings).source.suite


def test_every_suite_of_the_configuration_is_pinned_here():
    there = {path.stem for path in (conf_dir() / "suite").glob("*.yaml")}
    # what suite.path names, or a trace contains
    assert there == {*OFFICIAL, *HAND_MADE, "mini", "starter", "file", "trace"}


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_suite_is_whole(data, name):
    expected, suite = OFFICIAL[name], suite_of(name)
    first, last = suite.cases[0], suite.cases[-1]
    assert (suite.name, suite.warnings) == (name, ())
    assert Counter(case.category for case in suite.cases) == expected.categories
    assert len({case.id for case in suite.cases}) == len(suite.cases)
    assert (first.id, last.id) == (expected.first, expected.last)
    assert first.turns[0].startswith(expected.begins)
    assert expected.ends in first.turns[0]
    assert sum(1 for case in suite.cases if case.references) == expected.references
    assert all(turn.strip() for case in suite.cases for turn in case.turns)


def test_mt_bench_is_the_multi_turn_task_of_spec_bench(data):
    assert suite_of("mt_bench").cases == suite_of("spec_bench").cases[:80]


def test_the_part_of_mgsm_is_the_first_ten_of_each_language_under_the_same_ids(data):
    whole = suite_of("mgsm", "suite.form=question").cases
    assert Counter(case.subcategory for case in whole) == dict.fromkeys(LANGUAGES, 250)
    assert list(suite_of("mgsm_110").cases) == [
        case for case in whole if int(case.id.rsplit("/")[-1]) < 10
    ]


@pytest.mark.parametrize("name", [name for name in HAND_MADE if name not in list(THROUGHPUT)[1:]])
def test_a_suite_reads_a_file_of_its_schema(tmp_path, name):
    official, row, identifier, category, subcategory, words, references = HAND_MADE[name]
    if name.startswith("speed"):
        write_parquet(tmp_path / "test.parquet", [row])
    else:
        write_json_lines(tmp_path / "test.jsonl", [row])
    suite = suite_of(name, f"suite.path={tmp_path}")
    (case,) = suite.cases
    assert (suite.name, case.id, case.category, case.subcategory) == (
        name,
        identifier,
        category,
        subcategory,
    )
    assert all(each in case.turns[0] for each in words)
    assert case.turns[1:] == {"speed_bench": ("Now g.",), "mt_bench_101": ("Who?",)}.get(
        name, case.turns[1:]
    )
    assert case.references == references
    counted = [
        f"has 1 questions, the official file has {official}." in each for each in suite.warnings
    ]
    assert counted[:1] == ([True] if official else [])  # math_500 without math-verify says that too


def test_speed_bench_refuses_placeholders_and_says_how_they_are_filled(tmp_path):
    rows = [
        SPEED | {"question_id": str(place), "category": name}
        for place, name in enumerate(("math", "qa", "qa"))
    ]
    placeholders = [row | {"turns": [f"{HOLDER}\n\nAnswer {{question}}"]} for row in rows]
    write_parquet(tmp_path / "a.parquet", [SPEED, *placeholders])
    with pytest.raises(
        InputError, match=r"3 of 4 rows contain a placeholder .*\(math 1, qa 2\).*prepare_data\.py"
    ):
        suite_of("speed_bench", f"suite.path={tmp_path}")


@pytest.mark.parametrize(
    ("turn", "bare"),
    [
        ("Sort.\n" + "Answer now please.\n" * 3 + "Answer now", "Sort.\n"),
        ("Sort.\n" + "Answer now please.\n" * 3, "Sort.\n"),
        ("Sort. Answer now please.\nThen stop.", "Sort. Answer now please.\nThen stop."),
    ],
)
def test_speed_bench_padding_comes_off(tmp_path, turn, bare):
    given = ("speed_bench_throughput_1k", f"suite.path={tmp_path}")
    write_parquet(tmp_path / "a.parquet", [SPEED | {"turns": [turn]}])
    assert suite_of(*given).cases[0].turns == (turn,)
    assert suite_of(*given, "suite.form=bare").cases[0].turns == (bare,)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("{nope}", "there is no nope, .*suite.frame"),
        ("Who? {}", r"suite.frame=Who\? \{\}: names no field"),
    ],
)
def test_a_frame_names_what_the_row_has(tmp_path, frame, says):
    write_json_lines(tmp_path / "a.jsonl", [TALK])
    with pytest.raises(InputError, match=says):
        suite_of("mt_bench_101", f"suite.path={tmp_path}", f"suite.frame='{frame}'")
    with pytest.raises(InputError, match=r"suite\.frame=x: is for prompts of your own"):
        suite_of("mini", "suite.frame=x")
