"""Worked examples: what they look like, that a seed draws them, and where they are looked for."""

import re

import pytest

from builders.records import write_json_lines
from builders.suites import suite_with
from specbench.types import InputError

ASKED = {"question": "How many?", "answer": "2\n#### 2"}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A data directory with one question and twenty training problems."""
    monkeypatch.setenv("SPECBENCH_DATA", str(tmp_path))
    folder = tmp_path / "suites" / "gsm8k"
    folder.mkdir(parents=True)
    write_json_lines(folder / "test.jsonl", [ASKED])
    rows = ({"question": f"Q{n}?", "answer": f"So {n}.\n#### {n}"} for n in range(20))
    write_json_lines(folder / "train.jsonl", rows)
    return folder


def suite(shots, **options):
    return suite_with(
        "gsm8k",
        **{"format": "gsm8k", "relative": "gsm8k/test.jsonl", "form": "qa", **options},
        shots=shots,
    )


def prompt(shots, **options):
    return suite(shots, **options).cases[0].turns[0]


def drawn(text):
    return [int(number) for number in re.findall(r"Q: Q(\d+)\?", text)]


def test_an_example_is_question_and_answer_without_the_notes_for_a_calculator(kept, tmp_path):
    own = {
        "question": "Clips?",
        "answer": "In May 48/2 = <<48/2=24>>24.\n48+24 = <<48+24=72>>72 in all.\n#### 1,072",
    }
    worded = {"question": "Trees?", "answer": "21 - 15 = 6. The answer is 6."}
    assert prompt(2, shots_from=write_json_lines(tmp_path / "own.jsonl", [own, worded])) == (
        "Q: Clips?\nA: In May 48/2 = 24.\n48+24 = 72 in all. The answer is 1,072.\n\n"
        "Q: Trees?\nA: 21 - 15 = 6. The answer is 6.\n\n"
        "Q: How many?\nA:"
    )
    assert prompt(0) == "Q: How many?\nA:"


def test_their_own_seed_draws_the_same_examples_on_every_machine_in_the_order_of_the_file(kept):
    assert drawn(prompt(8)) == [1, 4, 8, 10, 12, 13, 15, 17]
    assert drawn(prompt(8, shots_seed=1)) != drawn(prompt(8))
    assert drawn(prompt(20)) == list(range(20))
    assert prompt(8, sample=1, seed=5) == prompt(8)


def test_the_examples_file_is_part_of_the_suites_hash_but_not_of_the_official_one(kept):
    official = suite_with("gsm8k", format="gsm8k", path=kept / "test.jsonl").sha256
    before = suite(8, sha256=official)
    write_json_lines(
        kept / "train.jsonl", ({"question": f"R{n}?", "answer": "#### 1"} for n in range(20))
    )
    after = suite(8, sha256=official)
    assert len({official, before.sha256, after.sha256}) == 3
    assert before.warnings == after.warnings == ()


@pytest.mark.parametrize(
    ("shots", "options", "says"),
    [
        (8, {"form": "bare"}, "suite.form=bare .* set suite.form=qa"),
        (8, {"format": "humaneval", "form": None}, "suite.shots=8: .*no worked examples"),
        (21, {}, r"suite.shots=21: .*train\.jsonl has 20 rows"),
        (2, {"shots_from": "own.jsonl"}, r"own\.jsonl, line 2: there is no answer"),
        (1, {}, "(?s)Suite gsm8k examples.*suite.shots_from=<file>.*suites/gsm8k/train.jsonl"),
    ],
)
def test_examples_that_cannot_be_are_refused_with_the_setting_to_change(
    kept, tmp_path, monkeypatch, shots, options, says
):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "own.jsonl", [ASKED, {"question": "No answer?"}])
    if "train" in says and shots == 1:
        (kept / "train.jsonl").unlink()
    with pytest.raises(InputError, match=says):
        prompt(shots, **options)
