"""The MBPP questions of Token Recycling (Luo et al. 2025, arXiv 2408.08696): 399 whole prompts in a question file.

They are of all splits of MBPP, most in a cleaned wording. The id is MBPP's task_id and the category is the suite's
own, where the file says ``code``.
"""

from __future__ import annotations

from dataclasses import replace

from specbench.suite import question_file
from specbench.suite.format import Form
from specbench.suite.row import Row
from specbench.types import Case


def case(row: Row, form: Form) -> Case:
    """The row as a case; the prompt is taken as it stands. Raises InputError for what is not a question."""
    plain = question_file.case(row, form)
    return replace(plain, id=f"mbpp/{plain.id}", category="mbpp")


FORMAT = replace(question_file.FORMAT, case=case)
