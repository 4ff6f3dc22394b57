"""HumanEval (Chen et al. 2021, arXiv 2107.03374): 164 signatures with docstrings, to be completed.

The forms: ``bare`` is the prompt without blanks at its ends, as CARD and PEARL give it to a model without a template;
``exact`` is the prompt as the file has it, which ends in a newline.
"""

from __future__ import annotations

from specbench.suite.format import Form, Format
from specbench.suite.row import Row
from specbench.types import Case

BARE, EXACT = "bare", "exact"


def case(row: Row, form: Form) -> Case:
    """The row as a case; its reference is the canonical solution. Raises InputError for what is not a task."""
    task = row.text("task_id", "the task's name such as HumanEval/0")
    prompt = row.text("prompt", "the signature and docstring to complete")
    return Case(
        id=task,
        category="humaneval",
        turns=(prompt if form.name == EXACT else prompt.strip(),),
        references=row.optional("canonical_solution"),
    )


FORMAT = Format(
    case=case,
    key="task_id",
    example='{"task_id": "HumanEval/0", "prompt": "def ..."}',
    holds="a .jsonl or .jsonl.gz file of tasks",
    forms=(BARE, EXACT),
)
