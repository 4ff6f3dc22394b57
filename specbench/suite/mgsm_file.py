"""MGSM (Shi et al. 2022, arXiv 2210.03057): 250 problems of GSM8K's test split in eleven languages.

The authors' files are ``mgsm_<language>.tsv``, question and number a line; on the hub (juletxara/mgsm) each language
is a configuration. A case's subcategory is its language. The forms: ``bare`` is the question alone; ``question`` is
``Question: <question>\\n\\nAnswer:``, as CARD and PEARL ask.
"""

from __future__ import annotations

from pathlib import Path

from specbench.suite.format import Form, Format
from specbench.suite.json_lines import decoded
from specbench.suite.row import Row
from specbench.types import Case, InputError

BARE, QUESTION = "bare", "question"
LANGUAGES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")

_STEM = "mgsm_"


def case(row: Row, form: Form) -> Case:
    """The row as a case, numbered within its language; its reference is the number. Raises InputError."""
    return case_in(row, form, row.part, row.index)


def case_in(row: Row, form: Form, language: str, index: int) -> Case:
    """The ``index``-th problem of a language as a case: the same id in the whole suite and in a part of it."""
    question = row.text("question", "the problem")
    turn = f"Question: {question}\n\nAnswer:" if form.name == QUESTION else question
    return Case(
        id=f"mgsm/{language}/{index}",
        category="mgsm",
        turns=(turn,),
        subcategory=language,
        references=(_number(row),),
    )


def files(path: Path) -> list[Path]:
    """The files that a path stands for: itself, or a folder's in the order of ``LANGUAGES``. Raises InputError."""
    if not path.is_dir():
        return [path]
    there = [file for language in LANGUAGES if (file := path / f"{_STEM}{language}.tsv").is_file()]
    if not there:
        raise InputError(f"Suite folder {path} has no mgsm_<language>.tsv for any of {', '.join(LANGUAGES)}.")
    return there


def parse(raw: bytes, path: Path, example: str) -> list[Row]:
    """The rows of one language's file, the language by its name. Raises InputError with file and line number."""
    language = path.stem.removeprefix(_STEM)
    if language not in LANGUAGES:
        raise InputError(
            f"Suite file {path}: its name does not say the language; expected mgsm_<language>.tsv, "
            f"with one of {', '.join(LANGUAGES)}."
        )
    rows: list[Row] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        columns = decoded(line, f"{path}, {place}").rstrip("\r").split("\t")
        if len(columns) != 2:
            raise InputError(
                f"{path}, {place}: {len(columns)} columns, expected the question, one tab and the number: {example}."
            )
        rows.append(Row(dict(zip(("question", "answer"), columns, strict=True)), str(path), place, len(rows), language))
    return rows


def _number(row: Row) -> str:
    """The answer's digits: the files group thousands (``2,125``), the hub has a number of its own."""
    if row.values.get("answer_number") is not None:
        return str(row.whole("answer_number", "a whole number"))
    return row.text("answer", "the number that is the answer").strip().replace(",", "")


FORMAT = Format(
    case=case,
    key="question",
    example="Janet's ducks lay 16 eggs per day. ...<tab>18",
    holds="a folder of mgsm_<language>.tsv files, or one of them",
    forms=(BARE, QUESTION),
    parse=parse,
    files=files,
)
