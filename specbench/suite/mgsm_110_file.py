"""CARD's and PEARL's part of MGSM: the first ten problems of each language in one file of JSON lines.

The file counts its 110 rows through and spells the languages out, one of them wrongly (``tegulu``); here a case has
the id that it has in the whole suite.
"""

from __future__ import annotations

from specbench.suite.format import Form, Format
from specbench.suite.mgsm_file import BARE, QUESTION, case_in
from specbench.suite.row import Row
from specbench.types import Case, InputError

_PER_LANGUAGE = 10
_CODES = {
    "bengali": "bn",
    "german": "de",
    "english": "en",
    "spanish": "es",
    "french": "fr",
    "japanese": "ja",
    "russian": "ru",
    "swahili": "sw",
    "tegulu": "te",
    "telugu": "te",
    "thai": "th",
    "chinese": "zh",
}


def case(row: Row, form: Form) -> Case:
    """The row as a case of MGSM. Raises InputError for what is not a problem and for an unknown language."""
    language = row.text("category", "the language such as german")
    if language not in _CODES:
        raise InputError(f"{row.where}: category is {language}, expected one of {', '.join(_CODES)}.")
    number = row.whole("question_id", "a whole number")
    return case_in(row, form, _CODES[language], number % _PER_LANGUAGE)


FORMAT = Format(
    case=case,
    key="question_id",
    example='{"question_id": 0, "question": "...", "category": "bengali", "answer": "18"}',
    holds="a .jsonl or .jsonl.gz file of problems",
    forms=(QUESTION, BARE),
)
