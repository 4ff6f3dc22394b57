"""The user's own prompts: an unchanged file of prompts, messages or turns; missing ids and
categories are added.

The file is JSON lines, JSON, csv, tsv, parquet, a folder of such files, a data set that `datasets`
wrote, or a chat log. A conversation gives its user's messages as turns; the model under test writes
the answers between them. A conversation with tools is recorded: each of its assistant's messages is
a turn, after the recorded messages before it.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specbench.input import InputError, decode_text, parse_json
from specbench.records.answers import task_of
from specbench.suite.format import SourceRow, SuiteFormat, Wording, parse_json_lines
from specbench.suite.messages import (
    ASSISTANT,
    SYSTEM,
    USER,
    Message,
    find_cuts,
    has_tools,
    pair_results,
    read_message,
    read_tools,
)
from specbench.types import Case, named

CATEGORY = "prompts"  # of rows without one
# what a case needs -> the names that it may have in a file; the first that the row has counts
FIELDS = {
    "prompt": (
        *("turns", "messages", "conversations", "conversation", "history", "trajectory"),
        *("prompt", "question", "instruction", "text"),
    ),
    "id": ("id", "question_id", "task_id", "case", "trajectory_id", "traj_id"),
    "category": ("category",),
    "reference": ("reference", "references", "answer"),
    "system": ("system", "system_prompt"),
}
# what Alpaca and Dolly keep apart from the instruction
MATERIAL = {"instruction": ("input", "context")}
AUTO, RECORDED = "auto", "recorded"  # the forms of a conversation
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".jsonl.gz")
_EXCESS = "fields after the last column"  # of a csv's row
_PLACE = re.compile(r"\{([^{}\n]+)\}")  # a name of any words; {} is text, as in \boxed{}

_EXAMPLE = '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'

_TABLES = {  # suffix -> a valid file
    ".csv": '  prompt,category\n  "Why is the sky blue, and not green?",qa',
    ".tsv": "  prompt\tcategory\n  Why is the sky blue?\tqa",
}


_Turns = tuple[tuple[str, ...], object, str | None, tuple[Message, ...]]


def own_case(row: SourceRow, wording: Wording) -> Case:
    """Makes a case of a row of prompts. Raises InputError for a row without a prompt."""
    framed = wording.frame is not None
    whole: _Turns = (
        ((_framed(row, wording.frame or ""),), None, None, ()) if framed else _turns(row, wording)
    )
    turns, answer, system, messages = whole
    column, chosen = _find(row, "system", wording.fields), "system" in wording.fields
    if column and (
        chosen or (system is None and not framed and isinstance(row.values[column], str))
    ):
        system = row.text(column, "a system message")
    key = _find(row, "id", wording.fields)
    identifier = str(row.values[key]).strip() if key else f"{row.part}-{row.index}"
    given_category = _find(row, "category", wording.fields)
    raw = (
        row.text(given_category, "the name of a category such as qa")
        if given_category
        else CATEGORY
    )
    given = _find(row, "reference", wording.fields)
    reference = row.values[given] if given else answer
    if reference is None or reference != reference:  # a table of numbers has NaN for a missing one
        reference = []
    references = tuple(reference) if isinstance(reference, list) else (reference,)
    # MT-Bench's
    task = (
        task_of(raw) if len(turns) > 1 and isinstance(row.values.get("question_id"), int) else raw
    )
    tools = () if framed else _tools(row)
    return Case(
        identifier, task, turns, raw if given_category else "", references, system, messages, tools
    )


def _framed(row: SourceRow, frame: str) -> str:
    """Fills ``{NAME}`` in the frame with the row's field of that name, ``{NAME.0.content}`` with an
    entry of it.
    """
    if not _PLACE.search(frame):
        raise InputError(
            f"suite.frame={frame}: names no field, so all prompts would be the same; expected"
            f" {{NAME}} in it, one of {_shorten(row.values)}."
        )

    def value(found: re.Match[str]) -> str:
        there: object = row.values
        for step in [found[1]] if found[1] in row.values else found[1].split("."):
            try:
                there = there[int(step) if isinstance(there, list) else step]  # type: ignore[index]
            except (KeyError, IndexError, TypeError, ValueError):
                has = f"which suite.frame names; it has {_shorten(row.values)}."
                raise InputError(f"{row.where}: there is no {found[1]}, {has}") from None
        return there if isinstance(there, str) else json.dumps(there, ensure_ascii=False)

    return _PLACE.sub(value, frame)


def _find(row: SourceRow, field: str, fields: Mapping[str, str]) -> str | None:
    """Returns the row's name of a field, or None. Raises InputError if the name that suite.fields
    gives is missing.
    """
    if field in fields:
        if fields[field] not in row.values:
            there = f"it has {_shorten(row.values)}"
            raise InputError(
                f"{row.where}: {row.got(fields[field])}, which suite.fields names as {field};"
                f" {there}."
            )
        return fields[field]
    absent = (None,) if field == "prompt" else (None, "")
    return next((name for name in FIELDS[field] if row.values.get(name) not in absent), None)


def _turns(row: SourceRow, wording: Wording) -> _Turns:
    """Returns the turns, the last answer if there is one, the system message if any, and recorded
    messages if any.

    The turns are the user's messages; of a recorded conversation, what each message of the
    assistant answers.
    """
    name = _find(row, "prompt", wording.fields)
    if name is None:
        raise InputError(
            f"{row.where}: none of {', '.join(FIELDS['prompt'])} contains a prompt; it has"
            f" {_shorten(row.values)}: name one of them with 'suite.fields={{prompt: NAME}}'."
        )
    value = _structured(row.values[name])
    if isinstance(value, str):
        material = [
            str(row.values[each]) for each in MATERIAL.get(name, ()) if row.values.get(each)
        ]
        return ("\n\n".join([row.text(name, "a prompt"), *material]),), None, None, ()
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{row.where}: {row.got(name)}, expected a prompt, or a list of messages, at least one."
        )
    messages = []
    for place, each in enumerate(value, start=1):
        one = (
            f"message {place} of {name}"
            if name != "turns" or isinstance(each, Mapping)
            else f"turn {place}"
        )
        messages.append(read_message(f"{row.where}: {one}", each))
    system = messages.pop(0)["content"] if messages[0]["role"] == SYSTEM else None
    first = 1 if system is None else 2
    if later := [
        place for place, message in enumerate(messages, start=first) if message["role"] == SYSTEM
    ]:
        raise InputError(
            f"{row.where}: message {later[0]} of {name} is a system message; expected one alone,"
            " before the others."
        )
    if has_tools(messages) or (wording.form == RECORDED and messages):
        with named(f"{row.where}: "):
            messages = pair_results(messages, name, first)
        answered = tuple(messages[cut - 1]["content"] for cut in find_cuts(messages))
        return answered, None, system, tuple(messages)
    turns = tuple(message["content"] for message in messages if message["role"] == USER)
    if not turns:
        raise InputError(f"{row.where}: {name} has no message of the user.")
    return turns, messages[-1]["content"] if messages[-1]["role"] == ASSISTANT else None, system, ()


def _tools(row: SourceRow) -> tuple[Message, ...]:
    """Returns the row's function schemas, from its column ``tools``, or SPEED-Bench's
    ``extras``.
    """
    if row.values.get("tools") is not None:
        return read_tools(f"{row.where}: tools", row.values["tools"])
    extras = row.values.get("extras")
    if isinstance(extras, str) and extras.lstrip().startswith("{"):
        extras = parse_json(
            extras.encode(errors="surrogatepass"), f"{row.where}: extras", "expected an object."
        )
    return (
        read_tools(f"{row.where}: extras.tools", extras.get("tools"))
        if isinstance(extras, Mapping)
        else ()
    )


def _shorten(values: Mapping[str, object]) -> str:
    names = list(values)
    return ", ".join([*names[:8], *(["..."] if len(names) > 8 else [])]) or "no field"


def _structured(value: object) -> object:
    """Parses a list that is written as text, as in a csv."""
    if isinstance(value, str) and value.lstrip().startswith(("[{", '["')):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _rows(raw: bytes, path: Path, example: str) -> list[SourceRow]:
    """Reads the rows of one file by the ending of its name."""
    if path.suffix in (".csv", ".tsv"):
        rows = _of_csv(raw, path)
    elif path.suffix in (".parquet", ".arrow"):
        rows = _of_arrow(raw, path)
    elif (text := raw.removeprefix(codecs.BOM_UTF8)).lstrip().startswith(b"["):
        rows = _of_list(text, path)
    else:
        return [
            replace(row, part=path.name.partition(".")[0])
            for row in parse_json_lines(raw, path, example)
        ]
    found = []
    for index, (place, values) in enumerate(rows):
        more, fault = values.get(_EXCESS), ""  # a text with commas that is not in quotes
        if isinstance(more, list) and any(more):
            fault = (
                f"{path}, {place}: has {len(more)} fields more than the header; put a text with"
                " commas in quotes."
            )
        found.append(SourceRow(values, str(path), place, index, path.stem, fault))
    return found


_Rows = Iterator[tuple[str, Mapping[str, object]]]  # place and values


def _of_csv(raw: bytes, path: Path) -> _Rows:
    text, mark = (
        io.StringIO(decode_text(raw, str(path)), newline=""),
        "\t" if path.suffix == ".tsv" else ",",
    )
    reader = csv.DictReader(text, delimiter=mark, restkey=_EXCESS, strict=True)
    usual = csv.field_size_limit(len(raw))  # a long prompt is one field
    try:
        names = [name for name in reader.fieldnames or () if name]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"{path}, line 1: has the column {twice[0]} twice; expected each name once."
            )
        for values in reader:
            yield f"line {reader.line_num}", values
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is not csv ({error}).") from None
    finally:
        csv.field_size_limit(usual)


def _of_list(raw: bytes, path: Path) -> _Rows:
    values = parse_json(raw, str(path), f"expected a list of objects such as {_EXAMPLE}.")
    for number, each in enumerate(values):
        yield f"row {number}", each if isinstance(each, dict) else {"prompt": each}


def _of_arrow(raw: bytes, path: Path) -> _Rows:
    import pyarrow as pa  # of the package datasets, and slow to import
    import pyarrow.parquet

    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(io.BytesIO(raw))
        else:
            table = pa.ipc.open_stream(raw).read_all()
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: is not a {path.suffix[1:]} file ({str(error).splitlines()[0]})."
        ) from None
    for number, values in enumerate(table.to_pylist()):
        yield f"row {number}", values


def _files(path: Path) -> list[Path]:
    """Returns the file itself, or the files of a folder, or those of the test split of a folder of
    splits.
    """
    if not path.is_dir():
        return [path]
    splits = sorted(each.name for each in path.iterdir() if each.is_dir() and any(_own_files(each)))
    found = list(_own_files(path))
    if not found and len(splits) > 1 and "test" not in splits:
        raise InputError(
            f"Suite folder {path} has the splits {', '.join(splits)}: name one with"
            f" suite.path={path}/SPLIT."
        )
    if not found and splits:
        found = list(_own_files(path / ("test" if "test" in splits else splits[0])))
    if not found:
        raise InputError(
            f"Suite folder {path} has no file of prompts; expected some of {', '.join(_SUFFIXES)}."
        )
    return found


def _own_files(folder: Path) -> Sequence[Path]:
    """Returns the files of rows, without the descriptions that `datasets` writes next to them."""
    described = ("dataset_info.json", "dataset_dict.json", "state.json")
    return sorted(
        each
        for each in folder.iterdir()
        if each.name.endswith(_SUFFIXES) and each.name not in described
    )


OWN = SuiteFormat(
    case=own_case,
    key="id",
    example=_EXAMPLE,
    holds=(
        "a file of prompts (.jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet) or a folder of a"
        " data set"
    ),
    parse=_rows,
    files=_files,
    forms=(AUTO, RECORDED),
    own=True,
    tables=_TABLES,
)
