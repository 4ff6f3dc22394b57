"""Spec-Bench's answer file: one line of JSON a question, written by its ``evaluation/eval.py``, read by ``speed.py``.

Only the first of a line's choices counts, as in ``speed.py``. Accept lengths of all turns stand in one list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.store import RunError, write_atomically

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
MULTI_TURN = "multi-turn"
FAILED = "ERROR"  # what eval.py writes for a turn that raised; its counts are then those of the turn before
_EXPECTED = (
    "expected a line of Spec-Bench's answer file: question_id, category, choices with turns, new_tokens, wall_time and "
    "accept_lengths"
)


@dataclass(frozen=True, slots=True)
class AnswerTurn:
    """One turn. decoding_steps, new_tokens: counts as the method gave them. wall_time_s: [s], the prefill included."""

    text: str
    decoding_steps: int
    new_tokens: int
    wall_time_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One question's answer. category: the raw word of the question file. task: what tables group by.

    accept_lengths: (steps of all turns,) tokens emitted by each.
    """

    question_id: int | str
    category: str
    task: str
    model_id: str
    turns: tuple[AnswerTurn, ...]
    accept_lengths: tuple[int, ...]
    answer_id: str = ""
    tstamp: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Over all turns."""
        return sum(turn.new_tokens for turn in self.turns)

    @property
    def wall_time_s(self) -> float:
        """[s] over all turns."""
        return sum(turn.wall_time_s for turn in self.turns)

    def to_json(self) -> str:
        """The line of an answer file."""
        choice = {
            "index": 0,
            "turns": [turn.text for turn in self.turns],
            "decoding_steps": [turn.decoding_steps for turn in self.turns],
            "new_tokens": [turn.new_tokens for turn in self.turns],
            "wall_time": [turn.wall_time_s for turn in self.turns],
            "accept_lengths": list(self.accept_lengths),
        }
        line = {
            "question_id": self.question_id,
            "category": self.category,
            "answer_id": self.answer_id,
            "model_id": self.model_id,
            "choices": [choice],
            "tstamp": self.tstamp,
        }
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


def task_of(category: str) -> str:
    """MT-Bench's eight raw categories are one task of Spec-Bench; any other is its own."""
    return MULTI_TURN if category in MT_BENCH else category


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write an answer file, questions in the given order."""
    write_atomically(path, "".join(answer.to_json() + "\n" for answer in answers))


def read_answers(path: Path) -> list[Answer]:
    """The answers of a file, in file order. Raises RunError naming the file, the line and what is wrong with it."""
    if not path.is_file():
        raise RunError(f"answer file {path}: no such file; {_EXPECTED}")
    answers = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            answers.append(_parse(json.loads(line)))
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise RunError(f"{path}, line {number}: {error}; {_EXPECTED}") from error
        except KeyError as error:
            raise RunError(f"{path}, line {number}: lacks {error}; {_EXPECTED}") from error
    if not answers:
        raise RunError(f"answer file {path}: holds no answers; {_EXPECTED}")
    return answers


def _parse(line: dict[str, Any]) -> Answer:
    choice = line["choices"][0]
    texts, tokens, times = choice["turns"], choice["new_tokens"], choice["wall_time"]
    accepted = tuple(int(length) for length in choice["accept_lengths"])
    steps = choice.get("decoding_steps") or [0] * len(texts)  # some adapters' files lack it; no figure needs it
    lengths = [len(texts), len(steps), len(tokens), len(times)]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"turns, decoding_steps, new_tokens and wall_time have lengths {lengths}, one entry a turn each"
        )
    category, question = str(line["category"]), line["question_id"]
    if not isinstance(question, int | str):
        raise ValueError(f"question_id is a {type(question).__name__}")
    turns = zip(texts, steps, tokens, times, strict=True)
    answer = Answer(
        question_id=question,
        category=category,
        task=task_of(category),
        model_id=str(line.get("model_id", "")),
        turns=tuple(AnswerTurn(str(text), int(step), int(new), float(time)) for text, step, new, time in turns),
        accept_lengths=accepted,
        answer_id=str(line.get("answer_id", "")),
        tstamp=float(line.get("tstamp", 0.0)),
    )
    if answer.wall_time_s <= 0:
        raise ValueError(f"question {question} took {answer.wall_time_s} s")
    return answer
