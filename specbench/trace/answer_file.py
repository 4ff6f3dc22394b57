"""A Spec-Bench answer file as a trace: the texts tokenised anew inside their conversations, EOS put back.

The file counts each answer's tokens but holds only its text. A text that comes out one token short ended with EOS, one
that comes out whole was cut at the length limit, which is the longest count of the file. How many answers come out
with the recorded count is reported: the others lost something in decoding (a split character, a stripped newline).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specbench.answers import FAILED, Answer, read_answers
from specbench.store import RunError
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn
from specbench.trace.retokenise import conversation_ids
from specbench.types import Case, InputError


def read(
    path: Path, cases: Sequence[Case], builder: PromptBuilder, end: int | None
) -> tuple[list[Recorded], int, int, str, int]:
    """The answered ones of ``cases`` in their order, answers in all, answers with the recorded count, who answered, and
    how many cases lack a good answer.

    end: the EOS id. Raises InputError when the file is none, or answers no question of the suite.
    """
    try:
        answers = {str(answer.question_id): answer for answer in read_answers(path)}
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
    named = [case for case in cases if case.id in answers]
    shared = [case for case in named if _whole(case, answers[case.id])]
    if not shared:
        raise InputError(
            f"model.trace={path}: has a good answer to none of the suite's {len(cases)} selected questions (it has"
            f" {', '.join(list(answers)[:5])} ...); expected the suite that it was made with, e.g. suite=spec_bench"
        )
    limit = _limit(answers)
    found: list[Recorded] = []
    turns = exact = 0
    for case in shared:
        answer = answers[case.id]
        recorded, right = _conversation(case, answer, builder, end, limit)
        found.append(recorded)
        turns, exact = turns + len(recorded.turns), exact + right
    return found, turns, exact, next(iter(answers.values())).model_id, len(named) - len(shared)


def _whole(case: Case, answer: Answer) -> bool:
    """One good answer a turn."""
    texts = [turn.text for turn in answer.turns]
    return len(texts) == len(case.turns) and FAILED not in texts and all(text.strip() for text in texts)


def _limit(answers: Mapping[str, Answer]) -> int | None:
    """The length limit the file was made with: its longest count, if more than one answer has it."""
    counts = [turn.new_tokens for answer in answers.values() for turn in answer.turns]
    longest = max(counts)
    return longest if counts.count(longest) > 1 else None


def _conversation(
    case: Case, answer: Answer, builder: PromptBuilder, end: int | None, limit: int | None
) -> tuple[Recorded, int]:
    texts = [turn.text for turn in answer.turns]
    turns: list[RecordedTurn] = []
    exact = 0
    for place, given in enumerate(answer.turns):
        prompt, ids = conversation_ids(builder, case.turns[: place + 1], texts[: place + 1])
        cut = given.new_tokens == len(ids) or given.new_tokens == limit
        if end is not None and not cut:
            ids = (*ids, end)
        exact += len(ids) == given.new_tokens
        turns.append(RecordedTurn.of(prompt, ids, given.text))
    return Recorded(case, tuple(turns)), exact
