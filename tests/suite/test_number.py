"""Numbers of answers and references, in the notations of the suites."""

import json

import pytest

from builders.suites import suite_with
from specbench.suite.number import is_right
from specbench.types import Case

GSM8K = "She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18"


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        (GSM8K, "9 * 2 = 18 dollars", True),
        (GSM8K, "18 dollars in 7 days", False),  # its last number
        (GSM8K, "The answer is 18. Next question: 2 + 2 = 4", True),  # behind the mark
        (GSM8K, "#### 17\n#### 18", True),
        (GSM8K, r"so \boxed{18}.", True),
        ("The answer is 33 coins, I think 4.", "33", None),  # ends in no number of its own
        (r"Thus \boxed{1,000}.", "1000", True),
        ("2125", "2,125", True),
        ("2125", "2.125 Euro", True),  # grouped as in German
        ("-5", "10 - 15 = -5", True),
        ("-5", "\u22125", True),
        ("4", "it takes 3-4", True),  # a range, not minus four
        ("18", "\u0967\u096e", True),  # Devanagari
        # RULER's needles: all of them, any case
        (["8930103", "17"], "They are 17 and 8930103.", True),
        (["8930103", "17"], "It is 8930103.", False),
        (["2F-a"], "2f-A", True),
        ("a rose", "18", None),
        ("9" * 5000, "9" * 5000, True),
    ],
)
def test_numbers(reference, answer, right):
    assert is_right(Case("a", "math", ("?",), references=(reference,)), answer) is right


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        (r"It is $\boxed{\frac{1}{2}}$.", r"so \boxed{0.5}", True),
        (r"It is $\boxed{\frac{1}{2}}$.", r"so $\frac{2}{3}$", False),
        (r"$\boxed{\left( 3, \frac{\pi}{2} \right)}$, as asked", r"\boxed{(3,\pi/2)}", True),
        (r"$\boxed{3\sqrt{13}}$", r"\boxed{\sqrt{117}}", True),
        (r"$\boxed{\text{Evelyn}}$", "no idea", False),
        (r"$\boxed{3}$", r"\boxed{\frac{6}{2}}", True),
    ],
)
def test_expressions_are_compared_by_the_maths_library(monkeypatch, reference, answer, right):
    pytest.importorskip("math_verify")
    case = Case("a", "math", ("?",), references=(reference,))
    assert is_right(case, answer) is right
    monkeypatch.setattr("specbench.suite.number._math_verify", lambda: None)
    assert is_right(case, answer) is (False if "{3}" in reference else None)


def test_a_run_says_that_its_expressions_are_not_compared(monkeypatch, tmp_path):
    rows = [
        {"prompt": "?", "reference": text}
        for text in (r"It is $\boxed{\frac{1}{2}}$.", r"\boxed{3}", "4", "a")
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr("specbench.suite.number._math_verify", lambda: None)
    (message,) = suite_with("own", path=tmp_path / "p.jsonl", format="own").warnings
    assert "2 of 4 references stand in \\boxed" in message
    assert "pip install 'specbench[math]'" in message
    monkeypatch.setattr("specbench.suite.number._math_verify", lambda: pytest)
    assert not suite_with("own", path=tmp_path / "p.jsonl", format="own").warnings


def test_of_several_turns_the_last_has_the_last_reference():
    case = Case("a", "math", ("?", "and?"), references=("1", "2"))
    assert (is_right(case, "1"), is_right(case, "2")) == (False, True)
    assert is_right(Case("a", "math", ("?",)), "18") is None


def test_mini_has_ten_problems_and_each_reference_solves_its_own():
    cases = suite_with("mini").cases
    found = [
        (case.category, is_right(case, str(case.references[0])))
        for case in cases
        if case.references
    ]
    assert [category for category, right in found if right] == ["math_reasoning"] * 10
    assert all(right is None for category, right in found if category != "math_reasoning")
