"""The generator of the bundled corpus: same seed same text, right answers, and a suite that was
never trained on.
"""

from __future__ import annotations

import json
import random
import re
from itertools import islice
from pathlib import Path

import pytest

from scripts.tiny.corpus import MAKERS, SHARES, documents, suite, write_suite

MINI = Path(__file__).resolve().parent.parent / "specbench" / "assets" / "mini" / "question.jsonl"
STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
OPERATIONS = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
}


def _mini() -> list[dict]:
    return [json.loads(line) for line in MINI.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("task", MAKERS)
def test_every_turn_has_one_finished_answer(task: str) -> None:
    rng, known = random.Random(3), {}
    for _ in range(1000):
        document = MAKERS[task](rng)
        assert document.category == task
        assert known.setdefault(document.turns, document.answers) == document.answers
        assert len(document.turns) == len(document.answers) == (2 if task == "multi-turn" else 1)
        for text in document.turns + document.answers:
            assert text == text.strip()
            assert text
            assert "{" not in text or task == "code"
    assert len(known) > 900


def test_arithmetic_is_right_and_small() -> None:
    rng = random.Random(11)
    for _ in range(500):
        answer = MAKERS["math_reasoning"](rng).answers[0]
        steps = STEP.findall(answer)
        assert steps
        for left, sign, right, result in steps:
            assert OPERATIONS[sign](int(left), int(right)) == int(result)
            assert sign != "/" or int(left) % int(right) == 0
            assert 0 <= int(result) < 100
        assert answer.endswith(f"The answer is {steps[-1][3]}.")


def test_code_compiles() -> None:
    rng = random.Random(13)
    for _ in range(500):
        document = MAKERS["code"](rng)
        blocks = re.findall(r"```python\n(.*?)\n```", document.answers[0], flags=re.DOTALL)
        assert len(blocks) == 1
        compile(blocks[0], "<answer>", "exec")
        name = re.search(r"`(\w+)`", document.turns[0])
        assert name is not None
        assert blocks[0].startswith(f"def {name[1]}(")


def test_bundled_suite_is_the_one_the_generator_makes(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    assert write_suite(path) == 70
    assert path.read_bytes() == MINI.read_bytes()


def test_no_question_of_the_suite_is_in_the_corpus() -> None:
    asked = {question["turns"][0] for question in _mini()}
    assert all(document.held_out for document in suite())
    sample = list(islice(documents(seed=1), 8_000))
    assert not any(document.held_out for document in sample)
    assert not asked & {turn for document in sample for turn in document.turns}
    assert {document.category for document in sample} == set(SHARES)
