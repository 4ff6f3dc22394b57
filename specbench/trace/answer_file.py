"""A Spec-Bench answer file as a trace: texts and token counts, put to the suite's questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specbench.records.answers import FAILED, Answer, read_answers
from specbench.suite.prompt import PromptBuilder
from specbench.trace.recorded import Recorded, RecordedTurn, Trace, conversation_ids, digest_of
from specbench.types import Case, InputError, named


def read_answer_file(path: Path, cases: Sequence[Case], builder: PromptBuilder, end: int | None) -> Trace:
    """The answered ones of ``cases`` in their order; of a question that is answered twice the last counts.

    A Spec-Bench answer file counts each answer's tokens but holds only its text. A text that comes out one token short
    ended with EOS, which is put back; one that comes out whole was cut at the length limit, the longest count of the
    file. An answer with another count lost something in decoding (a split character, a stripped newline).
    end: the EOS id. Raises InputError when the file is none, or answers no question of the suite.
    """
    with named("model.trace: "):
        lines = read_answers(path, timed=False)
    answers = {str(answer.question_id): answer for answer in lines}
    there = [case for case in cases if case.id in answers]
    shared = [case for case in there if _whole(case, answers[case.id])]
    if not shared:
        raise InputError(
            f"model.trace={path}: has a good answer to none of the suite's {len(cases)} selected questions (it has"
            f" {', '.join(list(answers)[:5])} ...); expected the suite that it was made with, e.g. suite=spec_bench"
        )
    limit = _limit(answers)
    found: list[Recorded] = []
    exact = 0
    for case in shared:
        recorded, right = _answered(case, answers[case.id], builder, end, limit)
        found.append(recorded)
        exact += right
    return Trace(
        kind="answers",
        origin=str(path),
        sha256=digest_of(path),
        conversations=tuple(found),
        ends=frozenset() if end is None else frozenset({end}),
        exact=exact,
        model=lines[0].model_id,
        failed=len(there) - len(shared),
        repeated=len(lines) - len(answers),
    )


def _whole(case: Case, answer: Answer) -> bool:
    """One good answer a turn."""
    texts = [turn.text for turn in answer.turns]
    return len(texts) == len(case.turns) and FAILED not in texts and all(text.strip() for text in texts)


def _limit(answers: Mapping[str, Answer]) -> int | None:
    """The length limit the file was made with: its longest count, if more than one answer has it."""
    counts = [turn.new_tokens for answer in answers.values() for turn in answer.turns]
    longest = max(counts)
    return longest if counts.count(longest) > 1 else None


def _answered(
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
