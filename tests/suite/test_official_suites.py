"""Every suite of conf/suite with the real data: how many cases, which is the first and the last, and no warning."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hand_made import HAND_MADE

from compose import job_for
from specbench.runs.config import conf_dir
from specbench.suite.formats import LANGUAGES

BUNDLED = "mini"


@dataclass(frozen=True)
class Expected:
    """What a suite holds: categories by count, ids of the first and last case, how the first prompt begins and ends."""

    categories: dict[str, int]
    first: str
    last: str
    begins: str
    ends: str
    references: int


DUCKS = "Janet\u2019s ducks lay 16 eggs per day."
MARKET = "every day at the farmers' market?"
SIMILAR = 'Create a Python script for this problem:\n```python\n"""\nWrite a function to find the shared elements'
SPEC_BENCH = dict.fromkeys(("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag"), 80)
OFFICIAL = {
    "spec_bench": Expected(SPEC_BENCH, "81", "560", "Compose an engaging travel blog", "attractions.", 359),
    "mt_bench": Expected({"multi-turn": 80}, "81", "160", "Compose an engaging travel blog", "attractions.", 39),
    "humaneval": Expected(
        {"humaneval": 164}, "HumanEval/0", "HumanEval/163", "from typing import List", 'True\n    """', 164
    ),
    "mbpp": Expected({"mbpp": 500}, "mbpp/11", "mbpp/510", "Write a python function to remove first", "string.", 500),
    "token_recycling_399": Expected({"mbpp": 399}, "mbpp/2", "mbpp/809", SIMILAR, '"""\n\n```', 0),
    "gsm8k": Expected({"gsm8k": 1319}, "gsm8k/0", "gsm8k/1318", DUCKS, MARKET, 1319),
    "gsm8k_8shot": Expected({"gsm8k": 1319}, "gsm8k/0", "gsm8k/1318", "Q: ", f"\n\nQ: {DUCKS}", 1319),
    "mgsm": Expected({"mgsm": 2750}, "mgsm/bn/0", "mgsm/zh/249", "\u099c\u09c7\u09a8\u09c7\u099f", "?", 2750),
    "mgsm_110": Expected({"mgsm": 110}, "mgsm/bn/0", "mgsm/zh/9", "Question: \u099c", "\n\nAnswer:", 110),
}


def suite_of(name):
    return job_for("model=tiny", f"suite={name}", "method=[pld]").suite


def test_every_suite_of_the_configuration_is_pinned_here():
    there = {path.stem for path in (conf_dir() / "suite").glob("*.yaml")}
    assert there == {
        *OFFICIAL,
        *HAND_MADE,
        BUNDLED,
        "file",
        "trace",
    }  # whatever suite.path names, or a replayed trace holds


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


def test_token_recyclings_questions_are_of_all_splits_of_mbpp_and_in_the_frame_of_the_form_script(data):
    tasks = {int(case.id.removeprefix("mbpp/")) for case in suite_of("token_recycling_399").cases}
    assert len(tasks & set(range(11, 511))) == 239
    official = {case.id: case.turns for case in job_for("suite=mbpp", "suite.form=script", "method=[pld]").suite.cases}
    same = [case for case in suite_of("token_recycling_399").cases if official.get(case.id) == case.turns]
    assert len(same) == 95  # the others are of another split, or in a cleaned wording


def test_the_part_of_mgsm_is_the_first_ten_of_each_language_under_the_same_ids(data):
    whole = job_for("suite=mgsm", "suite.form=question", "method=[pld]").suite.cases
    assert Counter(case.subcategory for case in whole) == dict.fromkeys(LANGUAGES, 250)
    assert list(suite_of("mgsm_110").cases) == [case for case in whole if int(case.id.rsplit("/")[-1]) < 10]


def test_eight_examples_stand_before_every_question_and_none_is_of_the_test_split(data):
    bare = {case.turns[0] for case in suite_of("gsm8k").cases}
    for case in suite_of("gsm8k_8shot").cases:
        *examples, asked = case.turns[0].split("Q: ")[1:]
        assert len(examples) == 8
        assert asked.endswith("\nA:")
        assert asked.removesuffix("\nA:") in bare
        assert not {example.split("\nA: ")[0] for example in examples} & bare
        assert all("<<" not in example and "####" not in example for example in examples)
