"""MT-Bench (Zheng et al. 2023, arXiv 2306.05685): 80 questions of two turns, ids 81 to 160.

The authors' file is a question file. The copy on the hub (HuggingFaceH4/mt_bench_prompts) calls the turns ``prompt``
and has a hash of the text in place of the id, so there the id is told by the row's place: the rows stand in the
authors' order, ten of each category, which is checked.
"""

from __future__ import annotations

from dataclasses import replace

from specbench.suite import question_file
from specbench.suite.format import Form
from specbench.suite.question_file import MT_BENCH
from specbench.suite.row import Row
from specbench.types import Case, InputError

_FIRST_ID = 81
_PER_CATEGORY = 10


def case(row: Row, form: Form) -> Case:
    """The row as a case, in either spelling. Raises InputError for what is not a question, or not in its place."""
    if "prompt" not in row.values or "turns" in row.values:
        return question_file.case(row, form)
    there = row.text("category", "one of MT-Bench's categories")
    expected = MT_BENCH[row.index // _PER_CATEGORY] if row.index < len(MT_BENCH) * _PER_CATEGORY else "no more rows"
    if there != expected:
        raise InputError(
            f"{row.where}: category is {there}, expected {expected}: the rows are not in MT-Bench's order, so their "
            "ids cannot be told. Give the authors' question.jsonl with suite.path=<file>."
        )
    values = {**row.values, "question_id": _FIRST_ID + row.index, "turns": row.values["prompt"]}
    return question_file.case(replace(row, values=values), form)


FORMAT = replace(question_file.FORMAT, case=case)
