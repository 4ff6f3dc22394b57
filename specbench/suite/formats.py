"""The suite formats by name (``suite.format``): each has a function that turns a row into a case,
and an entry.

A suite whose files have one of these formats needs no code, only a yaml in conf/suite/.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specbench.input import decode_text, numbered_lines, read_file
from specbench.records.answers import MT_BENCH, task_of
from specbench.suite.format import Reader, SourceRow, SuiteFormat, Wording, kind, parse_json_lines
from specbench.suite.messages import SYSTEM, USER, Message, read_message, read_tools
from specbench.suite.own import CATEGORY, OWN, own_case
from specbench.types import Case, InputError

BARE = "bare"  # the form of a question alone; the others are named by their format
FORMATS: dict[str, SuiteFormat] = {}
_R = TypeVar("_R", bound=Reader)


def _format(name: str, base: SuiteFormat | None = None, **about: Any) -> Callable[[_R], _R]:
    """Enters a function row -> case as the format of this name. about: entries in which it differs
    from the base.
    """

    def enter(case: _R) -> _R:
        FORMATS[name] = (
            replace(base, case=case, **about) if base else SuiteFormat(case=case, **about)
        )
        return case

    return enter


def format_named(name: str | None) -> SuiteFormat:
    """Returns the format that ``suite.format`` names, by default Spec-Bench's. Raises InputError
    for an unknown one.
    """
    if name is not None and name not in FORMATS:
        raise InputError(
            f"suite.format={name}: expected one of {', '.join(FORMATS)}, or null for questions."
        )
    return FORMATS[name or "questions"]


# Spec-Bench's question file: one JSON object a line with question_id, category, turns, reference.
# Spec-Bench reports six tasks, but its file spells the first as the eight raw categories of
# MT-Bench; here a case's category is the task, and its subcategory the raw word. A category that
# Spec-Bench does not have stays unchanged.


@_format(
    "questions", key="question_id", example='{"question_id": 1, "category": "qa", "turns": ["..."]}'
)
def _question(row: SourceRow, wording: Wording) -> Case:
    raw_category = row.text("category", "the name of a category such as qa")
    question, references = row.values.get("question_id"), row.values.get("reference")
    if not isinstance(question, str) or not question.strip():
        question = str(row.number("question_id", "a whole number or a non-empty string"))
    turns = row.values.get("turns")
    if not isinstance(turns, list) or not turns:
        raise InputError(
            f"{row.where}: {row.got('turns')}, expected a list of the user's messages, at least"
            " one."
        )
    for position, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            got = "is empty" if isinstance(turn, str) else f"is a {kind(turn)}"
            raise InputError(f"{row.where}: turn {position} {got}, expected a non-empty string.")
    if not isinstance(references, list | None):
        raise InputError(
            f"{row.where}: {row.got('reference')}, expected a list (or leave reference out)."
        )
    return Case(
        question, task_of(raw_category), tuple(turns), raw_category, tuple(references or ())
    )


# MT-Bench (Zheng et al. 2023, arXiv 2306.05685): 80 questions of two turns, ids 81 to 160. The
# authors' file is a question file. The copy on the hub (HuggingFaceH4/mt_bench_prompts) calls the
# turns ``prompt`` and has a hash of the text instead of the id. There the id follows from the row's
# place: the rows are in the authors' order, ten of each category, which is checked.


@_format("mt_bench", FORMATS["questions"])
def _mt_bench(row: SourceRow, wording: Wording) -> Case:
    if "prompt" not in row.values or "turns" in row.values:
        return _question(row, wording)
    there = row.text("category", "one of MT-Bench's categories")
    expected = MT_BENCH[row.index // 10] if row.index < len(MT_BENCH) * 10 else "no more rows"
    if there != expected:
        raise InputError(
            f"{row.where}: category is {there}, expected {expected}: the rows are not in MT-Bench's"
            " order, so their ids are unknown. Give the authors' question.jsonl with"
            " suite.path=<file>."
        )
    values = {**row.values, "question_id": 81 + row.index, "turns": row.values["prompt"]}
    return _question(replace(row, values=values), wording)


# HumanEval (Chen et al. 2021, arXiv 2107.03374): 164 signatures with docstrings, to be completed.
# ``bare`` is the prompt without blanks at its ends, as CARD and PEARL give it to a model without a
# template; ``exact`` is the file's prompt, which ends in a newline.


@_format(
    "humaneval",
    key="task_id",
    example='{"task_id": "HumanEval/0", "prompt": "def ..."}',
    forms=(BARE, "exact"),
)
def _humaneval(row: SourceRow, wording: Wording) -> Case:
    task = row.text("task_id", "the task's name such as HumanEval/0")
    prompt = row.text("prompt", "the signature and docstring to complete")
    turn = prompt if wording.form == "exact" else prompt.strip()
    return Case(task, "humaneval", (turn,), references=row.optional("canonical_solution"))


# MBPP (Austin et al. 2021, arXiv 2108.07732): short Python problems. The authors' file has all 974
# tasks without their split, which goes by task_id (1 to 10 for prompts, 11 to 510 test, 511 to 600
# validation, 601 to 974 training). ``bare`` is the description alone, as CARD gives it; ``script``
# puts description and first test into the frame of Token Recycling's question file.

_MBPP_TEST = range(11, 511)
_MBPP_FRAME = 'Create a Python script for this problem:\n```python\n"""\n{text}\n{test}\n"""\n\n```'


@_format(
    "mbpp",
    key="task_id",
    example='{"task_id": 11, "text": "Write a function ...", "test_list": ["assert ..."]}',
    forms=(BARE, "script"),
)
def _mbpp(row: SourceRow, wording: Wording) -> Case | None:
    task = row.number("task_id", "the task's number")
    if task not in _MBPP_TEST:
        return None
    turn = row.text("text", "the problem's description").strip()
    if wording.form == "script":
        tests = row.values.get("test_list")
        if not isinstance(tests, list) or not tests:
            raise InputError(
                f"{row.where}: {row.got('test_list')}, expected a list of assertions, at least one."
            )
        if not isinstance(tests[0], str):
            raise InputError(
                f"{row.where}: the first of test_list is a {kind(tests[0])}, expected an assertion."
            )
        turn = _MBPP_FRAME.format(text=turn, test=tests[0].strip())
    return Case(f"mbpp/{task}", "mbpp", (turn,), references=row.optional("code"))


# The MBPP questions of Token Recycling (Luo et al. 2025, arXiv 2408.08696): 399 whole prompts in a
# question file, of all splits of MBPP, most in a cleaned wording. The id is MBPP's task_id; the
# file calls the category ``code``.


@_format("token_recycling", FORMATS["questions"])
def _token_recycling(row: SourceRow, wording: Wording) -> Case:
    plain = _question(row, wording)
    return replace(plain, id=f"mbpp/{plain.id}", category="mbpp")


# GSM8K (Cobbe et al. 2021, arXiv 2110.14168): grade-school word problems with worked answers.
# ``qa`` is ``Q: <question>\nA:`` after N worked examples (suite.shots) in the same form, as CARD
# and PEARL ask. Their eight examples are those of Wei et al. 2022 (arXiv 2201.11903, appendix),
# which are not part of GSM8K and are not here: by default the examples are drawn from GSM8K's train
# split, so the prompts have CARD's form but not CARD's examples. For CARD's, write the eight as
# rows of question and answer, the answer ending in ``#### <number>`` or in words, and name that
# file with suite.shots_from.

_CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator: 48/2 = <<48/2=24>>24


@_format(
    "gsm8k",
    key="question",
    example='{"question": "...", "answer": "... #### 72"}',
    forms=(BARE, "qa"),
    shot=lambda row: _gsm8k_shot(row),
    shot_form="qa",
)
def _gsm8k(row: SourceRow, wording: Wording) -> Case:
    question = row.text("question", "the problem")
    turn = f"{wording.prefix}Q: {question}\nA:" if wording.form == "qa" else question
    return Case(f"gsm8k/{row.index}", "gsm8k", (turn,), references=row.optional("answer"))


def _gsm8k_shot(row: SourceRow) -> str:
    """Writes the row as a worked example: ``#### 72`` becomes "The answer is 72." and calculator
    notes go.
    """
    question = row.text("question", "the problem")
    worked, mark, result = row.text("answer", "the worked answer").rpartition("####")
    answer = _CALCULATION.sub("", worked).strip()
    ending = f"{answer} The answer is {result.strip()}." if mark else result.strip()
    return f"Q: {question}\nA: {ending}\n\n"


# MGSM (Shi et al. 2022, arXiv 2210.03057): 250 problems of GSM8K's test split in eleven languages.
# The authors' files are ``mgsm_<language>.tsv``, question and number a line; on the hub
# (juletxara/mgsm) each language is a configuration. A case's subcategory is its language.
# ``question`` is ``Question: <question>\n\nAnswer:``, as CARD and PEARL ask.

LANGUAGES = {
    "bn": "bengali", "de": "german", "en": "english", "es": "spanish", "fr": "french",
    "ja": "japanese", "ru": "russian", "sw": "swahili", "te": "telugu", "th": "thai",
    "zh": "chinese",
}  # fmt: skip


def _mgsm_case(row: SourceRow, wording: Wording, language: str, index: int) -> Case:
    """Returns the ``index``-th problem of a language, with the same id in the complete suite and in
    a part of it.
    """
    question = row.text("question", "the problem")
    turn = f"Question: {question}\n\nAnswer:" if wording.form == "question" else question
    # on the hub; the files group thousands (``2,125``)
    if row.values.get("answer_number") is not None:
        number = str(row.number("answer_number", "a whole number"))
    else:
        number = row.text("answer", "the number that is the answer").strip().replace(",", "")
    return Case(f"mgsm/{language}/{index}", "mgsm", (turn,), language, (number,))


def _mgsm_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    there = [file for language in LANGUAGES if (file := path / f"mgsm_{language}.tsv").is_file()]
    if not there:
        raise InputError(
            f"Suite folder {path} has no mgsm_<language>.tsv for any of {', '.join(LANGUAGES)}."
        )
    return there


def _mgsm_rows(raw: bytes, path: Path, example: str) -> list[SourceRow]:
    """Reads one language's file. Raises InputError with file and line number."""
    language = path.stem.removeprefix("mgsm_")
    if language not in LANGUAGES:
        raise InputError(
            f"Suite file {path}: its name does not say the language; expected mgsm_<language>.tsv, "
            f"with one of {', '.join(LANGUAGES)}."
        )
    rows: list[SourceRow] = []
    for number, line in numbered_lines(raw):
        place = f"line {number}"
        columns = decode_text(line, f"{path}, {place}").rstrip("\r").split("\t")
        if len(columns) != 2:
            raise InputError(
                f"{path}, {place}: {len(columns)} columns, expected the question, one tab and the"
                f" number: {example}."
            )
        values = dict(zip(("question", "answer"), columns, strict=True))
        rows.append(SourceRow(values, str(path), place, len(rows), language))
    return rows


FORMATS["mgsm"] = SuiteFormat(
    case=lambda row, wording: _mgsm_case(row, wording, row.part, row.index),
    key="question",
    example="Janet's ducks lay 16 eggs per day. ...<tab>18",
    holds="a folder of mgsm_<language>.tsv files, or one of them",
    forms=(BARE, "question"),
    parse=_mgsm_rows,
    files=_mgsm_files,
)


# CARD's and PEARL's part of MGSM: the first ten problems of each language in one file of JSON
# lines. It numbers its 110 rows from 0 and has the names of the languages, one of them misspelt
# (``tegulu``); a case has its id of the whole suite.

_CODES = {name: code for code, name in LANGUAGES.items()} | {"tegulu": "te"}


@_format(
    "mgsm_110",
    key="question_id",
    example='{"question_id": 0, "question": "...", "category": "bengali", "answer": "18"}',
    forms=("question", BARE),
)
def _mgsm_110(row: SourceRow, wording: Wording) -> Case:
    language = row.text("category", "the language such as german")
    if language not in _CODES:
        raise InputError(
            f"{row.where}: category is {language}, expected one of {', '.join(_CODES)}."
        )
    return _mgsm_case(
        row, wording, _CODES[language], row.number("question_id", "a whole number") % 10
    )


FORMATS["own"] = OWN


# SPEED-Bench (Abramovich et al. 2026, arXiv 2604.09557), v1.1: parquet whose rows are filled by the
# authors' script. Columns: question_id, category, sub_category, turns, source, src_id, difficulty,
# multiturn. On the hub the turns of most rows are a placeholder. The script also brings a
# throughput prompt to its length in o200k tokens: it cuts longer ones and appends ``_PADDING``
# repeatedly to shorter ones. ``padded`` keeps the padding, ``bare`` removes it.

_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
_PADDING = "Answer now please.\n"


@_format(
    "speed_bench",
    OWN,
    key="question_id",
    example='{"question_id": "...", "category": "coding", "turns": ["..."]}',
    holds="the parquet file that prepare_data.py wrote, or its folder",
    forms=("padded", BARE),
    refuse=lambda rows, origin: _refuse_placeholders(rows, origin),
)
def _speed_bench(row: SourceRow, wording: Wording) -> Case:
    case = own_case(row, wording)
    category = row.text("category", "one of SPEED-Bench's categories such as coding")
    if case.messages:  # of its agents
        return replace(
            case, category=category, subcategory=str(row.values.get("sub_category") or "")
        )
    turns = []
    for turn in case.turns:
        head, _, last = turn.rpartition(_PADDING)
        # the last padding is cut to the length
        if wording.form == BARE and head and _PADDING.startswith(last):
            turn = re.sub(rf"(?:{re.escape(_PADDING)})*\Z", "", head)
        turns.append(turn)
    subcategory = str(row.values.get("sub_category") or "")
    return replace(case, category=category, subcategory=subcategory, turns=tuple(turns))


def _refuse_placeholders(rows: Sequence[SourceRow], origin: str) -> str:
    counts = Counter(
        str(row.values.get("category"))
        for row in rows
        if _PLACEHOLDER in str(row.values.get("turns"))
    )
    if not counts:
        return ""
    shown = ", ".join(f"{category} {count}" for category, count in sorted(counts.items()))
    return (
        f"{origin}: {counts.total()} of {len(rows)} rows contain a placeholder in place of their"
        f" turns ({shown}): their licences keep them out of the data set. Fill them with"
        " prepare_data.py of NVIDIA's Model-Optimizer (examples/specdec_bench: pip install -r"
        " requirements_speed.txt; python prepare_data.py --config NAME), then give the folder of"
        " the parquet files that it writes with suite.path=FOLDER."
    )


# BFCL (Patil et al. 2025): requests and the functions that may be called, described in
# ``function``, or for files of several turns in the folder ``multi_turn_func_doc`` next to the
# file, one file for each of ``involved_classes``. No answer is recorded: the model answers every
# turn itself, and its calls are not carried out. A turn without a message adds the functions that
# ``missed_function`` names: they are described in the turn itself, as BFCL's prompts do. ``prompt``
# describes functions in the first turn, for any model; ``tools`` by the chat template, for which
# the names of types become those of JSON schema.

_BFCL_DOCS = "multi_turn_func_doc"
_BFCL_FILES = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TwitterAPI": "posting_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "VehicleControlAPI": "vehicle_control.json",
}
_BFCL_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_BFCL_PROMPT = (
    "These functions can be called, described in JSON:\n{}\n\nAnswer with the calls that the"
    " request needs, each as name(argument=value, ...), and nothing else.\nRequest: {}"
)
_BFCL_MORE = "These functions can be called now, too, described in JSON:\n{}"


@_format(
    "bfcl",
    OWN,
    example=(
        '{"id": "simple_0", "question": [[{"role": "user", "content": "..."}]], "function":'
        ' [{"name": "..."}]}'
    ),
    holds=(
        "a file BFCL_*.json; those of several turns need the folder multi_turn_func_doc next to"
        " them"
    ),
    forms=("prompt", "tools"),
)
def _bfcl(row: SourceRow, wording: Wording) -> Case:
    if wording.frame is not None:
        return own_case(row, wording)
    given, missed = row.values.get("question"), row.values.get("missed_function") or {}
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(turn, list) for turn in given)
    ):
        raise InputError(
            f"{row.where}: {row.got('question')}, expected a list of turns, each a list of"
            " messages."
        )
    if not isinstance(missed, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in missed.values()
    ):
        raise InputError(
            f"{row.where}: {row.got('missed_function')}, expected the names of functions by turn."
        )
    functions = _bfcl_functions(row)
    late = {name for names in missed.values() for name in names}
    system, turns = None, list[str]()
    for number, turn in enumerate(given):
        name = f"{row.where}: question.{number}"
        messages = [read_message(f"{name}.{place}", message) for place, message in enumerate(turn)]
        if number == 0 and messages and messages[0]["role"] == SYSTEM:
            system = messages.pop(0)["content"]
        if other := [message["role"] for message in messages if message["role"] != USER]:
            raise InputError(f"{name} has a message of {other[0]}, expected the user's.")
        texts = [message["content"] for message in messages]
        added = [each for each in functions if each["name"] in missed.get(str(number), ())]
        if added:
            texts.append(_BFCL_MORE.format(json.dumps(added, ensure_ascii=False)))
        if not texts:
            raise InputError(
                f"{name} is an empty list, expected a message, or functions of"
                f" missed_function.{number}."
            )
        turns.append("\n\n".join(texts))
    first = [each for each in functions if each["name"] not in late]
    tools: tuple[Message, ...] = ()
    if wording.form == "tools":
        named_so = [
            {key: _bfcl_types(value) for key, value in each.items() if key != "response"}
            for each in first
        ]
        tools = read_tools(f"{row.where}: function", named_so)
    else:
        turns[0] = _BFCL_PROMPT.format(json.dumps(first, ensure_ascii=False), turns[0])
    return Case(
        row.text("id", "the row's name such as simple_0"),
        CATEGORY,
        tuple(turns),
        system=system,
        tools=tools,
    )


def _bfcl_functions(row: SourceRow) -> list[dict[str, Any]]:
    """Returns the descriptions of the row's functions: its own, or those of its classes."""
    classes = row.values.get("involved_classes")
    if "function" in row.values or not isinstance(classes, list):
        found = row.values.get("function")
        if not isinstance(found, list) or not all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in found
        ):
            raise InputError(
                f"{row.where}: {row.got('function')}, expected descriptions, each with a name."
            )
        return found
    functions = []
    for name in classes:
        if not isinstance(name, str) or name not in _BFCL_FILES:
            raise InputError(
                f"{row.where}: involved_classes has {name}, expected some of"
                f" {', '.join(_BFCL_FILES)}."
            )
        path = Path(row.source).parent / _BFCL_DOCS / _BFCL_FILES[name]
        raw = read_file(
            path, f"{row.where}: ", f"copy BFCL's folder {_BFCL_DOCS} next to the file."
        )
        for each in parse_json_lines(raw, path, '{"name": "...", "parameters": {}}'):
            if each.fault:
                raise InputError(each.fault)
            each.text("name", "the name of a function")
            functions.append(dict(each.values))
    return functions


def _bfcl_types(value: Any) -> Any:
    """Returns a description with JSON schema's names of types."""
    if isinstance(value, dict):
        kind_of = value.get("type")
        own = (
            {"type": _BFCL_TYPES[kind_of]}
            if isinstance(kind_of, str) and kind_of in _BFCL_TYPES
            else {}
        )
        return {key: _bfcl_types(each) for key, each in value.items()} | own
    return [_bfcl_types(each) for each in value] if isinstance(value, list) else value


# RULER (Hsieh et al. 2024, arXiv 2404.06654): rows as prompts of one's own. An answer needs all of
# a row's outputs: the one number of a needle, or the several numbers or words of the other tasks.


@_format("ruler", OWN)
def _ruler(row: SourceRow, wording: Wording) -> Case:
    case = own_case(row, wording)
    return replace(case, references=(list(case.references),))
