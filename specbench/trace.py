"""Traces: recorded answers of a model, to be replayed without it: of a run's records, an answer
file, or a chat log.

Records are those of a run, or lines of another program with the few entries that a replay needs. Of
answers that are stored as text (a Spec-Bench answer file, a user's own chat log) the text becomes
tokens inside its conversation: the conversation is written out and tokenised whole, and the prompt
is cut off. Tokenised alone, an answer differs at its first token (a Llama tokenizer puts a space
before it); inside the conversation its tokens are those that were generated, except where stripping
and decoding lost some.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from specbench.input import (
    GZIP,
    InputError,
    numbered_lines,
    parse_as,
    parse_json,
    read_file,
    refuse_repeated_keys,
    unpack_gzip,
)
from specbench.names import ASSETS, BUNDLED
from specbench.records.answers import FAILED, read_answers
from specbench.records.manifest import Manifest, TargetModel
from specbench.records.record import OVERALL, VANILLA, Count, Tokens
from specbench.records.store import MANIFEST, RECORDS, read_manifest
from specbench.suite.prompt import PromptBuilder
from specbench.types import Case, named

CATEGORY = "trace"  # of a line that names none
_EXPECTED_RECORDS = (
    'expected the records.jsonl of a run of specbench, or lines such as {"case": "1", "turns":'
    ' [{"prompt_ids": [1, 5], "ids": [7, 2], "finish": "eos"}]}, with at least one id in each list'
)
_Ids = Annotated[Tokens, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request. prompt: (T,) int32 ids read. ids: (n,) int32 ids emitted, EOS included. text:
    the answer.
    """

    prompt: np.ndarray
    ids: np.ndarray
    text: str

    @classmethod
    def of(cls, prompt: Sequence[int], ids: Sequence[int], text: str) -> RecordedTurn:
        """Packs lists of ids, because a chat log has millions of tokens."""
        return cls(np.array(prompt, np.int32), np.array(ids, np.int32), text)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One conversation: the case, and its turns in order."""

    case: Case
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The contents of a recorded file.

    kind: records | answers | chat. origin: the file's path; sha256: of its bytes. ends: ids that
    end an answer. exact: of an answer file, the number of answers whose token count is the recorded
    one. model: the name of the model that answered, as the file has it; suite: the name of its
    suite, as its run has it. failed: conversations that were left out because one of their answers
    is missing or failed. repeated: lines that a later line of the same question replaces.
    """

    kind: str
    origin: str
    sha256: str
    conversations: tuple[Recorded, ...]
    ends: frozenset[int]
    exact: int | None = None
    model: str = ""
    suite: str = ""
    failed: int = 0
    repeated: int = 0

    @property
    def turns(self) -> int:
        """The number of answers."""
        return sum(len(each.turns) for each in self.conversations)

    def summary(self) -> str:
        """Describes the trace in one line for the log and the manifest."""
        tokens = sum(len(turn.ids) for each in self.conversations for turn in each.turns)
        line = (
            f"{self.kind}: {len(self.conversations)} conversations, {self.turns} answers, {tokens}"
            " tokens"
        )
        if self.exact is None:
            return line if self.kind == "records" else f"{line}, tokenised from text"
        return f"{line}; {self.exact} of {self.turns} answers have the recorded number of tokens"


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    return hashlib.sha256(read_file(path, "model.trace=", _EXPECTED_RECORDS)).hexdigest()


def _read(path: Path, fix: str) -> bytes:
    """Returns the text of a file, unpacked if it is one of gzip."""
    raw = read_file(path, "model.trace=", fix)
    packed = raw.startswith(GZIP)
    return unpack_gzip(raw, f"model.trace={path}", fix) if packed else raw


class _Turn(TypedDict):
    ids: _Ids
    prompt_ids: NotRequired[_Ids | None]
    finish: NotRequired[Literal["eos", "length", "context"]]
    text: NotRequired[str]


class _Line(TypedDict):
    case: str
    turns: list[_Turn]
    category: NotRequired[str]
    subcategory: NotRequired[str]
    method: NotRequired[str]
    round: NotRequired[Count]
    status: NotRequired[Literal["ok", "error"]]


def read_live(path: Path) -> Trace:
    """Reads vanilla's first decoding of every case. Raises InputError.

    Only ids that ended one of its answers end an answer: another tokenizer's EOS is a token like
    any other.
    """
    found: dict[str, _Line] = {}
    manifest = _manifest_of(path)
    # such a run has vanilla again, next to the methods that were added later
    grown = bool(manifest.grown)
    raw = _read(path, _EXPECTED_RECORDS)
    head, _, last = raw.rpartition(b"\n")
    try:
        parse_json(last or b"{}", "", "")
    except InputError:  # a kill cut the last line
        raw = head
    for number, text in numbered_lines(raw):
        where = f"model.trace={path}, line {number}"
        line = parse_as(_Line, text, where, _EXPECTED_RECORDS)
        if line.get("method", VANILLA) != VANILLA or line.get("round", 0) != 0:
            continue
        refuse_repeated_keys(text, where)
        if line["case"] in found:
            if grown:
                continue
            raise InputError(
                f"{where}: case {line['case']} is recorded twice; expected the records of one run"
            )
        if OVERALL in (line.get("category"), line.get("subcategory")):
            raise InputError(
                f"{where}: category {OVERALL!r} is the row of all categories; rename the category"
            )
        found[line["case"]] = line
    kept: list[Recorded] = []
    ends: set[int] = set()
    for name, line in found.items():
        turns = line["turns"]
        if (
            line.get("status", "ok") != "ok"
            or not turns
            or not all(turn.get("prompt_ids") for turn in turns)
        ):
            continue
        ends.update(turn["ids"][-1] for turn in turns if turn.get("finish") == "eos")
        case = Case(
            name, line.get("category", CATEGORY), ("",) * len(turns), line.get("subcategory", "")
        )
        packed = (
            RecordedTurn.of(turn.get("prompt_ids") or (), turn["ids"], turn.get("text", ""))
            for turn in turns
        )
        kept.append(Recorded(case, tuple(packed)))
    if not kept:
        raise InputError(
            f"model.trace={path}: contains no good record of {VANILLA} with its prompts;"
            f" {_EXPECTED_RECORDS}"
        )
    _check_ends(path, kept, ends)
    return Trace(
        kind="records",
        origin=str(path),
        sha256=digest_of(path),
        conversations=tuple(kept),
        ends=frozenset(ends),
        model=manifest.model.name or "",
        suite=manifest.suite.name or "",
        failed=len(found) - len(kept),
    )


def _check_ends(path: Path, kept: Sequence[Recorded], ends: set[int]) -> None:
    """Refuses an id that ends answers and is inside another, which it would cut. Raises
    InputError.
    """
    for each in kept:
        for number, turn in enumerate(each.turns):
            inside = np.flatnonzero(np.isin(turn.ids[:-1], list(ends)))
            if len(inside):
                raise InputError(
                    f"model.trace={path}, case {each.case.id}, turn {number}: id"
                    f" {turn.ids[inside[0]]} at place {inside[0]} of {len(turn.ids)} ends other"
                    " answers; expected it last alone, or finish=length in every turn, so that"
                    " answers are replayed unchanged"
                )


def model_of(path: Path) -> TargetModel:
    """Return the model section of the manifest next to ``path``; its entries are None if there is
    no manifest.
    """
    return _manifest_of(path).model


def _manifest_of(path: Path) -> Manifest:
    if not (path.parent / MANIFEST).exists():
        return Manifest()
    with named(f"model.trace={path}, the manifest next to it: "):
        return read_manifest(
            path.parent, "expected the manifest of the run that wrote the trace, or none"
        )


# a turn after the answer, so that the template writes the answer as a finished one
_NEXT = "Next question"
_EXPECTED_CHAT = (
    'expected one conversation a line: {"messages": [{"role": "user", "content": "..."}, {"role":'
    ' "assistant", "content": "..."}]}, user and assistant by turns, a system message first if'
    " there is one"
)


def conversation_ids(
    builder: PromptBuilder, turns: Sequence[str], answers: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns (prompt ids, answer ids) of the conversation's last answer, without an EOS.

    turns: the user's n messages; answers: the n answers.
    """
    prompt = builder.ids(turns, answers[:-1])
    before = builder.text(turns, answers[:-1])
    answer = answers[-1].strip()
    whole = builder.text([*turns, _NEXT], answers)
    at = whole.find(answer, len(before)) if whole.startswith(before) else -1
    # a template may rewrite finished answers (cut their reasoning)
    lead = whole[len(before) : at] if at >= 0 else ""
    ids = builder.encode(before + lead + answer)
    if ids[: len(prompt)] != prompt:  # the template's end and the answer's beginning are one token
        ids = [*prompt, *builder.encode_bare(answer)]
    return tuple(prompt), tuple(ids[len(prompt) :])


def read_answer_file(
    path: Path, cases: Sequence[Case], builder: PromptBuilder, end: int | None
) -> Trace:
    """Reads the answers to ``cases``, in their order; of a question that is answered twice the last
    answer counts.

    A Spec-Bench answer file counts each answer's tokens but has only its text. A text that has one
    token less than its count ended with EOS, which is appended; one with the counted tokens was cut
    at the length limit, the longest count of the file. An answer with another count lost something
    in decoding (a split character, a stripped newline). Questions without one valid answer a turn
    are left out. end: the EOS id. Raises InputError if the file is not an answer file, or answers
    no question of the suite.
    """
    with named("model.trace: "):
        lines = read_answers(path, timed=False)
    answers = {str(answer.question_id): answer for answer in lines}
    there = [case for case in cases if case.id in answers]
    if recorded := [case.id for case in there if case.messages]:
        raise InputError(
            f"model.trace={path}: question {recorded[0]} is a recorded conversation, whose answers"
            " need their ids; expected the records.jsonl of a run"
        )
    answered: list[Case] = []
    for case in there:
        texts = [turn.text for turn in answers[case.id].turns]
        if (
            len(texts) == len(case.turns)
            and FAILED not in texts
            and all(text.strip() for text in texts)
        ):
            answered.append(case)
    if not answered:
        raise InputError(
            f"model.trace={path}: has a good answer to none of the suite's {len(cases)} selected"
            f" questions (it has {', '.join(list(answers)[:5])} ...); expected the suite that it"
            " was made with, e.g. suite=spec_bench"
        )
    counts = [turn.new_tokens for answer in answers.values() for turn in answer.turns]
    # the length limit, if several answers reached it
    limit = max(counts) if counts.count(max(counts)) > 1 else None
    found: list[Recorded] = []
    exact = 0
    for case in answered:
        given = answers[case.id].turns
        texts = [turn.text for turn in given]
        turns: list[RecordedTurn] = []
        for count, turn in enumerate(given, start=1):
            prompt, ids = conversation_ids(builder.of(case), case.turns[:count], texts[:count])
            if end is not None and turn.new_tokens not in (len(ids), limit):
                ids = (*ids, end)
            exact += len(ids) == turn.new_tokens
            turns.append(RecordedTurn.of(prompt, ids, turn.text))
        found.append(Recorded(case, tuple(turns)))
    return Trace(
        kind="answers",
        origin=str(path),
        sha256=digest_of(path),
        conversations=tuple(found),
        ends=frozenset() if end is None else frozenset({end}),
        exact=exact,
        model=lines[0].model_id,
        failed=len(there) - len(answered),
        repeated=len(lines) - len(answers),
    )


class _Part(TypedDict):
    type: Literal["text"]
    text: str


class _Message(TypedDict):
    role: str
    content: str | list[_Part]


class _ChatLine(TypedDict):
    messages: list[_Message]
    id: NotRequired[str | int | None]
    category: NotRequired[str | None]


def read_chat(path: Path, builder: PromptBuilder, end: int | None) -> Trace:
    """Reads the conversations of a chat log that have at least one answer.

    A line is one conversation, as chat APIs have it: ``{"messages": [{"role": "user", "content":
    "..."}, {"role": "assistant", "content": "..."}, ...]}``, with an optional ``id`` and
    ``category``. Every answer of the assistant is one request. end: the EOS id. Raises InputError
    naming the line.
    """
    found: dict[str, Recorded] = {}
    for number, text in numbered_lines(_read(path, _EXPECTED_CHAT)):
        where = f"model.trace={path}, line {number}"
        line = parse_as(_ChatLine, text, where, _EXPECTED_CHAT)
        refuse_repeated_keys(text, where)
        if fault := _find_fault(line["messages"]):
            raise InputError(f"{where}: {fault}; {_EXPECTED_CHAT}")
        texts = [(message["role"], _text(message)) for message in line["messages"]]
        with named(f"{where}: "):
            own = builder.with_system(texts[0][1]) if texts and texts[0][0] == "system" else builder
        questions, answers = (
            [text for role, text in texts if role == name] for name in ("user", "assistant")
        )
        if not answers:
            continue
        turns: list[RecordedTurn] = []
        for count, answer in enumerate(answers, start=1):
            prompt, ids = conversation_ids(own, questions[:count], answers[:count])
            turns.append(RecordedTurn.of(prompt, ids if end is None else (*ids, end), answer))
        name = str(number if (given := line.get("id")) is None else given)
        category = line.get("category") or "chat"
        if name in found:
            raise InputError(
                f"{where}: id {name} occurs twice; a line without id has its number as id"
            )
        if category == OVERALL:
            raise InputError(
                f"{where}: category {OVERALL!r} is the row of all categories; rename the category"
            )
        found[name] = Recorded(Case(name, category, tuple(questions[: len(turns)])), tuple(turns))
    if not found:
        raise InputError(f"model.trace={path}: no answer of an assistant in it; {_EXPECTED_CHAT}")
    ends = frozenset() if end is None else frozenset({end})
    return Trace("chat", str(path), digest_of(path), tuple(found.values()), ends)


def _find_fault(messages: list[_Message]) -> str | None:
    """Describes what the schema cannot express, or returns None for a valid conversation."""
    system = bool(messages) and messages[0]["role"] == "system"
    for place, message in enumerate(messages[system:]):
        name = f"messages.{place + system}"
        if message["role"] != ("user", "assistant")[place % 2]:
            return f"{name} is of {message['role']!r}"
        if not _text(message).strip():
            return f"{name} is empty"
    return None


def _text(message: _Message) -> str:
    """Returns the text of a message, or of its parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


# a key of the first line -> the kind of file
KINDS = {"case": "records", "choices": "answers", "messages": "chat"}
_EXPECTED = (
    "expected a run's records.jsonl, a Spec-Bench answer file, or a chat log (JSON lines with"
    " messages); the format of each is in docs/replay.md"
)


def find_trace(named: str) -> Path:
    """Returns the file of a trace: of a run's folder, also a bundled one, its records."""
    own = named.removeprefix(BUNDLED)
    found = Path(named).expanduser() if own == named else ASSETS / own
    files = (found / name for name in (RECORDS, f"{RECORDS}.gz"))
    return next((file for file in files if file.is_file()), found)


def kind_of(path: Path) -> str:
    """Returns records, answers or chat, by the first line. Raises InputError for anything else."""
    lines = numbered_lines(_read(path, _EXPECTED))
    number, line = next(lines, (1, b"null"))
    first = parse_json(line, f"model.trace={path}, line {number}", _EXPECTED)
    keys = first if isinstance(first, dict) else {}
    for key, kind in KINDS.items():
        if key in keys:
            return kind
    raise InputError(
        f"model.trace={path}, line {number}: has {', '.join(keys) or 'no keys'}; {_EXPECTED}"
    )


def read_trace(
    path: Path, builder: Callable[[], PromptBuilder], end: int | None, cases: Sequence[Case] | None
) -> Trace:
    """Reads a trace of any kind.

    builder: makes the prompts of texts; not called for records, which have ids. end: the EOS id,
    which is put after texts. cases: the suite's cases, to keep those in this order; None keeps all
    that the file has. Raises InputError if the file is not a trace, or has none of the cases.
    """
    kind = kind_of(path)
    if kind == "answers":
        if cases is None:
            raise InputError(
                f"model.trace={path}: an answer file contains no questions; name the suite it was"
                " made with, e.g. suite=spec_bench"
            )
        return read_answer_file(path, cases, builder(), end)
    trace = read_chat(path, builder(), end) if kind == "chat" else read_live(path)
    if cases is None:
        return trace
    there = {each.case.id: each for each in trace.conversations}
    kept = tuple(there[case.id] for case in cases if case.id in there)
    if not kept:
        raise InputError(
            f"model.trace={path}: has none of the suite's {len(cases)} selected questions; expected"
            " suite=trace, or the suite that it was made with"
        )
    return replace(trace, conversations=kept)
