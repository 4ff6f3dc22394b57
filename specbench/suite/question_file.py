"""The Spec-Bench question file: one JSON object a line with ``question_id``, ``category``, ``turns``, ``reference``.

Spec-Bench reports six tasks, but its file spells the first as the eight raw categories of MT-Bench; here a case's
category is the task and the raw word is kept as its subcategory. A category that Spec-Bench does not know stays as it
is.
"""

from __future__ import annotations

from specbench.suite.format import Form, Format
from specbench.suite.row import Row, kind
from specbench.types import Case, InputError

MULTI_TURN = "multi-turn"
TASKS = (MULTI_TURN, "translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def case(row: Row, form: Form) -> Case:
    """The row as a case; it has no forms. Raises InputError, with file and line, for what is not a question."""
    raw_category = row.text("category", "the name of a category such as qa")
    return Case(
        id=_question_id(row),
        category=MULTI_TURN if raw_category in MT_BENCH else raw_category,
        turns=_turns(row),
        subcategory=raw_category,
        references=_references(row),
    )


def _question_id(row: Row) -> str:
    value = row.values.get("question_id")
    if isinstance(value, str) and value.strip():
        return value
    return str(row.whole("question_id", "a whole number or a non-empty string"))


def _turns(row: Row) -> tuple[str, ...]:
    turns = row.values.get("turns")
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{row.where}: {row.got('turns')}, expected a list of the user's messages, at least one.")
    for position, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            got = "is empty" if isinstance(turn, str) else f"is a {kind(turn)}"
            raise InputError(f"{row.where}: turn {position} {got}, expected a non-empty string.")
    return tuple(turns)


def _references(row: Row) -> tuple[object, ...]:
    references = row.values.get("reference")
    if references is None:
        return ()
    if not isinstance(references, list):
        raise InputError(f"{row.where}: {row.got('reference')}, expected a list (or leave reference out).")
    return tuple(references)


FORMAT = Format(
    case=case,
    key="question_id",
    example='{"question_id": 1, "category": "qa", "turns": ["..."]}',
)
