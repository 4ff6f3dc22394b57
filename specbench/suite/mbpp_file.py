"""MBPP (Austin et al. 2021, arXiv 2108.07732): short Python problems, of which tasks 11 to 510 are the test split.

The authors' file holds all 974 tasks and does not say the split; the split is by task_id, as the paper gives it
(1 to 10 for prompts, 11 to 510 test, 511 to 600 validation, 601 to 974 training). The forms: ``bare`` is the
description alone, as CARD gives it; ``script`` puts description and first test into the frame of Token Recycling's
question file.
"""

from __future__ import annotations

from specbench.suite.format import Form, Format
from specbench.suite.row import Row, kind
from specbench.types import Case, InputError

BARE, SCRIPT = "bare", "script"
TEST = range(11, 511)

_FRAME = 'Create a Python script for this problem:\n```python\n"""\n{text}\n{test}\n"""\n\n```'


def case(row: Row, form: Form) -> Case | None:
    """The row as a case, None outside the test split; its reference is the solution. Raises InputError."""
    task = row.whole("task_id", "the task's number")
    if task not in TEST:
        return None
    text = row.text("text", "the problem's description").strip()
    turn = _FRAME.format(text=text, test=_first_test(row)) if form.name == SCRIPT else text
    return Case(id=f"mbpp/{task}", category="mbpp", turns=(turn,), references=row.optional("code"))


def _first_test(row: Row) -> str:
    tests = row.values.get("test_list")
    if not isinstance(tests, list) or not tests:
        raise InputError(f"{row.where}: {row.got('test_list')}, expected a list of assertions, at least one.")
    if not isinstance(tests[0], str):
        raise InputError(f"{row.where}: the first of test_list is a {kind(tests[0])}, expected an assertion.")
    return tests[0].strip()


FORMAT = Format(
    case=case,
    key="task_id",
    example='{"task_id": 11, "text": "Write a function ...", "test_list": ["assert ..."]}',
    holds="a .jsonl or .jsonl.gz file of tasks",
    forms=(BARE, SCRIPT),
)
