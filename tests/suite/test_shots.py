"""Worked examples: what they look like, that a seed draws them, and where they are looked for."""

import re

import pytest

from builders.records import write_json_lines
from specbench.suite import Selection, Shots, load_suite
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


def prompt(shots, **options):
    given = {"format": "gsm8k", "relative": "gsm8k/test.jsonl", "form": "qa", **options}
    return load_suite("gsm8k", shots=shots, **given).cases[0].turns[0]


def drawn(text):
    return [int(number) for number in re.findall(r"Q: Q(\d+)\?", text)]


def test_an_example_is_question_and_answer_without_the_notes_for_a_calculator(kept, tmp_path):
    own = {"question": "Clips?", "answer": "In May 48/2 = <<48/2=24>>24.\n48+24 = <<48+24=72>>72 in all.\n#### 1,072"}
    worded = {"question": "Trees?", "answer": "21 - 15 = 6. The answer is 6."}
    text = prompt(Shots(2, source=write_json_lines(tmp_path / "own.jsonl", [own, worded])))
    assert text == (
        "Q: Clips?\nA: In May 48/2 = 24.\n48+24 = 72 in all. The answer is 1,072.\n\n"
        "Q: Trees?\nA: 21 - 15 = 6. The answer is 6.\n\n"
        "Q: How many?\nA:"
    )


def test_a_seed_draws_the_same_examples_on_every_machine_in_the_order_of_the_file(kept):
    assert drawn(prompt(Shots(8, seed=0))) == [1, 4, 8, 10, 12, 13, 15, 17]
    assert drawn(prompt(Shots(8, seed=1))) != drawn(prompt(Shots(8)))
    assert drawn(prompt(Shots(20))) == list(range(20))


def test_sampling_the_suite_with_another_seed_leaves_the_examples_alone(kept):
    assert prompt(Shots(8), selection=Selection(sample=1, seed=5)) == prompt(Shots(8))


def test_no_examples_leave_the_bare_form_of_question_and_answer(kept):
    assert prompt(Shots()) == "Q: How many?\nA:"


def test_the_examples_file_is_part_of_the_suites_hash_but_not_of_the_official_one(kept):
    official = load_suite("gsm8k", format="gsm8k", path=kept / "test.jsonl").sha256
    options = {"format": "gsm8k", "relative": "gsm8k/test.jsonl", "form": "qa", "shots": Shots(8), "sha256": official}
    before = load_suite("gsm8k", **options)
    write_json_lines(kept / "train.jsonl", ({"question": f"R{n}?", "answer": "#### 1"} for n in range(20)))
    after = load_suite("gsm8k", **options)
    assert len({official, before.sha256, after.sha256}) == 3
    assert before.warnings == after.warnings == ()


@pytest.mark.parametrize(
    ("shots", "options", "says"),
    [
        (Shots(-1), {}, "suite.shots=-1: expected a whole number of at least 0"),
        (Shots(True), {}, "suite.shots=True: expected a whole number"),
        (Shots(8, seed="a"), {}, "suite.shots_seed='a': expected a whole number"),
        (Shots(8), {"form": "bare"}, "suite.form=bare puts no examples .* set suite.form=qa"),
        (Shots(8), {"format": "humaneval", "form": None}, "suite.shots=8: .*format has no worked examples"),
        (Shots(21), {}, r"suite.shots=21: .*train\.jsonl has 20 rows"),
        (Shots(1, source="absent.jsonl"), {}, r"absent\.jsonl: no such file; give .* with suite.shots_from=<file>"),
    ],
)
def test_examples_that_cannot_be_are_refused_with_the_knob_to_set(kept, shots, options, says):
    with pytest.raises(InputError, match=says):
        prompt(shots, **options)


def test_a_bad_row_among_the_examples_is_named_with_its_line(kept, tmp_path):
    own = write_json_lines(tmp_path / "own.jsonl", [ASKED, {"question": "No answer?"}])
    with pytest.raises(InputError, match=r"own\.jsonl, line 2: there is no answer"):
        prompt(Shots(2, source=own))


def test_examples_that_are_nowhere_name_their_own_knob_and_place(kept):
    (kept / "train.jsonl").unlink()
    with pytest.raises(InputError) as caught:
        prompt(Shots(1))
    message = str(caught.value)
    for part in ("Suite gsm8k examples", "suite.shots_from=<file>", "suites/gsm8k/train.jsonl"):
        assert part in message
