"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): grade-school word problems with worked answers.

The forms: ``bare`` is the question alone; ``qa`` is ``Q: <question>\\nA:`` after N worked examples (``suite.shots``) in
the same form, which is how CARD and PEARL ask. Their eight examples are those of Wei et al. 2022 (arXiv 2201.11903,
appendix), which are not part of GSM8K and are not here: by default the examples are drawn from GSM8K's train split, so
the prompts are of CARD's form but not CARD's. To have CARD's, write the eight as rows of question and answer, the
answer ending in ``#### <number>`` or in words, and name that file with ``suite.shots_from``.
"""

from __future__ import annotations

import re

from specbench.suite.format import Form, Format
from specbench.suite.row import Row
from specbench.types import Case

BARE, QA = "bare", "qa"

_CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator: 48/2 = <<48/2=24>>24
_RESULT = "####"


def case(row: Row, form: Form) -> Case:
    """The row as a case, numbered by its place; its reference is the worked answer. Raises InputError."""
    question = row.text("question", "the problem")
    turn = f"{form.prefix}Q: {question}\nA:" if form.name == QA else question
    return Case(id=f"gsm8k/{row.index}", category="gsm8k", turns=(turn,), references=row.optional("answer"))


def shot(row: Row) -> str:
    """The row as a worked example: calculator notes left out, ``#### 72`` put as ``The answer is 72.``"""
    question = row.text("question", "the problem")
    worked, mark, result = row.text("answer", "the worked answer").rpartition(_RESULT)
    answer = _CALCULATION.sub("", worked).strip()
    said = f"{answer} The answer is {result.strip()}." if mark else result.strip()
    return f"Q: {question}\nA: {said}\n\n"


FORMAT = Format(
    case=case,
    key="question",
    example='{"question": "...", "answer": "... #### 72"}',
    holds="a .jsonl or .jsonl.gz file of problems",
    forms=(BARE, QA),
    shot=shot,
    shot_form=QA,
)
