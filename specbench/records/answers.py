"""Reads and writes Spec-Bench's answer file: one line of JSON per question, as its
``evaluation/eval.py`` writes it.

Only the first of a line's choices counts, as in Spec-Bench's ``speed.py``. The accept lengths of
all turns are one list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import InputError, numbered_lines, parse_as, read_file
from specbench.records.record import OVERALL, Count, Figure, Seconds
from specbench.records.store import write_atomically

MT_BENCH = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
MULTI_TURN = "multi-turn"
# what eval.py writes for a turn that raised; its counts are then those of the turn before
FAILED = "ERROR"
_EXPECTED = (
    "expected a line of Spec-Bench's answer file: question_id, category, choices with turns,"
    " new_tokens, wall_time and accept_lengths"
)


@dataclass(frozen=True, slots=True)
class AnswerTurn:
    """One turn. decoding_steps, new_tokens: counts as the method gave them. wall_time_s: [s], the
    prefill included.
    """

    text: str
    decoding_steps: int
    new_tokens: int
    wall_time_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One question's answer. category: the raw word of the question file. task: what tables group
    by.

    accept_lengths: (steps of all turns,) tokens emitted by each. misspelt: its file calls them
    ``accept_lengths:``.
    """

    question_id: int | str
    category: str
    task: str
    model_id: str
    turns: tuple[AnswerTurn, ...]
    accept_lengths: tuple[int, ...]
    answer_id: str = ""
    tstamp: float = 0.0
    misspelt: bool = False

    @property
    def new_tokens(self) -> int:
        """Tokens of all turns."""
        return sum(turn.new_tokens for turn in self.turns)

    @property
    def wall_time_s(self) -> float:
        """Time of all turns [s]."""
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
    """The task of a raw category: MT-Bench's eight are one task of Spec-Bench, any other is its
    own.
    """
    return MULTI_TURN if category in MT_BENCH else category


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write an answer file, questions in the given order."""
    write_atomically(path, "".join(answer.to_json() + "\n" for answer in answers))


class _Line(TypedDict):
    question_id: int | str
    category: str
    choices: Annotated[list[_Choice], Field(min_length=1)]
    answer_id: NotRequired[str]
    model_id: NotRequired[str]
    tstamp: NotRequired[Figure]


_Choice = TypedDict(
    "_Choice",
    {
        "turns": Annotated[list[str], Field(min_length=1)],
        "new_tokens": list[Count],
        "wall_time": NotRequired[list[Seconds]],
        # some adapters' files lack it; no figure needs it
        "decoding_steps": NotRequired[list[Count] | None],
        "accept_lengths": NotRequired[list[Count]],
        "accept_lengths:": NotRequired[list[Count]],  # as the adapter of REST writes it
    },
)


def read_answers(path: Path, timed: bool = True) -> list[Answer]:
    """The answers of a file, in file order. Raises InputError naming the file, the line and what is
    wrong with it.

    timed: whether every line must have wall times and accept lengths, which the formulas need and a
    trace does not.
    """
    answers = []
    for number, line in numbered_lines(read_file(path, "answer file ", _EXPECTED)):
        where = f"{path}, line {number}"
        found = parse_as(_Line, line, where, _EXPECTED)
        if fault := _find_fault(found, timed):
            raise InputError(f"{where}: {fault}; {_EXPECTED}")
        choice = found["choices"][0]
        none = [0] * len(choice["turns"])
        counts = (
            choice.get("decoding_steps") or none,
            choice["new_tokens"],
            choice.get("wall_time") or none,
        )
        answers.append(
            Answer(
                question_id=found["question_id"],
                category=found["category"],
                task=task_of(found["category"]),
                model_id=found.get("model_id", ""),
                turns=tuple(
                    AnswerTurn(*turn) for turn in zip(choice["turns"], *counts, strict=True)
                ),
                accept_lengths=tuple(
                    choice.get("accept_lengths", choice.get("accept_lengths:", ()))
                ),
                answer_id=found.get("answer_id", ""),
                tstamp=found.get("tstamp", 0.0),
                misspelt="accept_lengths" not in choice and "accept_lengths:" in choice,
            )
        )
    if not answers:
        raise InputError(f"answer file {path}: contains no answers; {_EXPECTED}")
    return answers


def _find_fault(line: _Line, timed: bool) -> str | None:
    """Returns the fault that the schema does not find; None for a valid line."""
    choice = line["choices"][0]
    lengths = [len(choice["turns"]), len(choice["new_tokens"])]
    lengths += [
        len(column) for column in (choice.get("decoding_steps"), choice.get("wall_time")) if column
    ]
    if len(set(lengths)) > 1:
        return (
            f"turns, new_tokens, decoding_steps and wall_time have lengths {lengths}, one entry a"
            " turn each"
        )
    if line["category"] == OVERALL:
        return f"category {OVERALL!r} is the row of all categories"
    if timed and not choice.keys() & {"accept_lengths", "accept_lengths:"}:
        return "choices.0.accept_lengths is missing"
    if timed and sum(choice.get("wall_time", [])) <= 0:
        return f"question {line['question_id']} took {sum(choice.get('wall_time', []))} s"
    return None
