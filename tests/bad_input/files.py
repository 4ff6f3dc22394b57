"""Files that a user can get wrong: questions, traces, chat logs, answer files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_input.case import DEEP, Bad, bad, bad_report

from specbench.runs.config import PACKAGE

GOOD = '{"question_id": 1, "category": "qa", "turns": ["a"]}\n'
TINY = PACKAGE / "assets" / "tiny"


def question(name: str, content: str | bytes, *words: str) -> Bad:
    """Of a file of questions; the message names it."""
    files = {"q.jsonl": content}
    return bad("suite=spec_bench suite.path=q.jsonl", "q.jsonl", *words, name=f"questions: {name}", files=files)


def write_sparse(folder: Path) -> None:
    with (folder / "q").open("wb") as file:
        file.truncate(1 << 42)


# What a line may have wrong: tests/suite/test_question_file.py.
QUESTIONS = (
    question("not json", f"{GOOD}hello\n", "line 2: not JSON"),
    question("category named as the whole", GOOD.replace("qa", "overall"), "rename it"),
    bad("suite=spec_bench", "suite.path", "SPECBENCH_DATA", name="questions: nowhere"),
    bad("suite.path=.", "has no file of prompts", name="questions: a directory"),
    bad("suite.path=q", "is a pipe", name="questions: a pipe", files=lambda folder: os.mkfifo(folder / "q")),
    bad("suite.path=/dev/zero", "is a device", name="questions: an endless device"),
    *(
        bad(f"{setting}={path}", f"{path}: is made by the kernel", name=f"{setting}: {path}")
        for path in ("/proc/kmsg", "/proc/self/mem", "/sys/kernel/uevent_seqnum")
        for setting in ("suite.path", "model=replay model.trace")
    ),
    bad("suite.path=q", "bytes; expected at most", name="questions: larger than the memory", files=write_sparse),
    bad("suite.path=q.json", "q.json: has 'prompt' twice", files={"q.json": '[{"prompt": "a", "prompt": "b"}]'}),
)


def trace(name: str, content: str | bytes, *words: str, options: str = "model.tokenizer=bundled:tiny") -> Bad:
    """Of a file as ``model.trace``; the message names it."""
    command = f"model=replay model.trace=t.jsonl {options}"
    return bad(command, "t.jsonl", *words, name=f"trace: {name}", files={"t.jsonl": content})


SAID = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
MANIFEST = '{"model": {"tokenizer": "/nowhere"}}'
LIVE = {"case": "1", "turns": [{"prompt_ids": [1, 5], "ids": [7, 2], "finish": "eos"}]}


def chat(name: str, change: Callable[[dict[str, Any]], object], *words: str) -> Bad:
    """A good conversation, then one that is changed."""
    line = json.loads(json.dumps(SAID))
    change(line)
    return trace(f"chat: {name}", f"{json.dumps(SAID)}\n{json.dumps(line)}\n", "line 2", *words)


def ids(name: str, change: Callable[[dict[str, Any]], object], *words: str) -> Bad:
    """A good conversation as ids, then one that is changed."""
    line = json.loads(json.dumps(LIVE | {"case": "2"}))
    change(line)
    return trace(f"ids: {name}", f"{json.dumps(LIVE)}\n{json.dumps(line)}\n", *words)


def message(place: int, **entries: object) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["messages"][place].update(entries)


def first_turn(**entries: object) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["turns"][0].update(entries)


TRACES = (
    trace("empty", "", "line 1: has no keys"),
    trace("blank", "\n \n", "has no keys"),
    trace("not json", "hello", "line 1: not JSON"),
    trace("another kind", '{"prompt": 1}', "line 1: has prompt"),
    trace("questions", GOOD, "line 1: has question_id"),
    trace("not UTF-8", b'{"messages": "\xff"}', "line 1: not UTF-8", "0xff"),
    trace("deeply nested", DEEP, "line 1: not JSON", "recursion"),
    bad("model=replay model.trace=nowhere.jsonl", "model.trace=nowhere.jsonl", "no such file"),
    bad("model=replay model.trace=.", "model.trace=.: is a directory"),
    bad("model=replay model.trace=t", "is a pipe", name="trace: pipe", files=lambda folder: os.mkfifo(folder / "t")),
    trace("chat: a key twice", '{"messages": [], "messages": []}', "has 'messages' twice"),
    trace(
        "ids: a key twice",
        '{"case": "1", "case": "2", "turns": [{"prompt_ids": [1, 5], "ids": [7, 2]}]}',
        "'case' twice",
    ),
    chat("not UTF-8", lambda line: line.update(id="\udcff"), "not JSON"),
    trace("chat: bytes", json.dumps(SAID).encode() + b'\n{"messages": "\xff"}', "line 2: not UTF-8", "0xff"),
    trace("chat: deeply nested", f'{json.dumps(SAID)}\n{{"messages": {DEEP}', "line 2: not JSON", "recursion"),
    chat("lone surrogate", message(0, content="\ud800"), "not JSON"),
    chat("no messages", lambda line: line.pop("messages"), "messages is missing"),
    chat("messages text", lambda line: line.update(messages="a"), "messages is 'a'"),
    chat("role of a tool", message(1, role="tool"), "messages.1 is of 'tool'"),
    chat("answer first", lambda line: line["messages"].reverse(), "messages.0 is of 'assistant'"),
    chat("no role", lambda line: line["messages"][0].pop("role"), "messages.0.role is missing"),
    chat("content null", message(1, content=None), "messages.1.content"),
    chat("content number", message(1, content=3), "messages.1.content"),
    chat("answer empty", message(1, content=""), "messages.1 is empty"),
    chat("answer blank", message(1, content=" \n"), "messages.1 is empty"),
    chat("question empty", message(0, content=""), "messages.0 is empty"),
    chat(
        "an image",
        message(0, content=[{"type": "image", "text": "a"}]),
        "messages.0.content is ",
    ),
    chat("id list", lambda line: line.update(id=[1]), "id"),
    chat("id fraction", lambda line: line.update(id=1.5), "line 2: id is 1.5"),
    chat("id true", lambda line: line.update(id=True), "line 2: id is True"),
    chat("id twice", lambda line: line.update(id="1"), "id 1 occurs twice"),
    chat("category number", lambda line: line.update(category=3), "category is 3"),
    chat("category of all", lambda line: line.update(category="overall"), "rename the category"),
    *(
        bad(
            "model=replay model.trace=t.jsonl",
            f"model.trace=t.jsonl, the manifest next to it: {word}",
            name=f"trace: manifest {content}",
            files={"t.jsonl": json.dumps(LIVE), "manifest.json": content},
        )
        for content, word in (("{", "manifest.json: not JSON"), (MANIFEST, "model.tokenizer=/nowhere"))
    ),
    trace("chat: no answer", '{"messages": [{"role": "user", "content": "a"}]}', "no answer of an assistant"),
    ids("case twice", lambda line: line.update(case="1"), "line 2: case 1 is recorded twice"),
    ids("ids empty", first_turn(ids=[]), "line 2: turns.0.ids is []"),
    ids("prompt empty", first_turn(prompt_ids=[]), "line 2: turns.0.prompt_ids is []", "at least one id"),
    ids("finish unknown", first_turn(finish="stop"), "line 2: turns.0.finish is 'stop'", "'eos'"),
    ids("category of all", lambda line: line.update(category="overall"), "line 2", "rename the category"),
    ids("id beyond the vocabulary", first_turn(ids=[9_999_999, 2]), "model.tokenizer=bundled:tiny", "id 9999999"),
    ids(
        "an end inside an answer", first_turn(ids=[7, 2, 7, 2]), "case 2, turn 0: id 2 at place 1 of 4", "finish=length"
    ),
    trace("ids: none with a prompt", '{"case": "1", "turns": [{"ids": [1]}]}', "no good record of vanilla"),
    trace("ids: none of vanilla", json.dumps(LIVE | {"method": "pld"}), "no good record of vanilla"),
    bad("model=replay model.trace=t.jsonl", "model.tokenizer: not set", files={"t.jsonl": json.dumps(LIVE)}),
)

ANSWER = {
    "question_id": 1,
    "category": "qa",
    "model_id": "m",
    "choices": [
        {"turns": ["word"], "new_tokens": [2], "wall_time": [1.0], "decoding_steps": [2], "accept_lengths": [1, 1]}
    ],
}


def answer(name: str, change: Callable[[dict[str, Any]], object], *words: str, code: int = 2) -> Bad:
    """Of ``--answers``: a valid baseline, and next to it a file with a valid and a changed line."""
    line = json.loads(json.dumps(ANSWER | {"question_id": 2}))
    change(line)
    content = f"{json.dumps(ANSWER)}\n{json.dumps(line)}\n"
    return answers(name, content, *words, code=code)


def answers(name: str, content: str | bytes, *words: str, code: int = 2) -> Bad:
    files = {"base.jsonl": json.dumps(ANSWER) + "\n", "m.jsonl": content}
    return bad_report(
        f"--answers base.jsonl m.jsonl --tokenizer {TINY}", *words, name=f"answers: {name}", files=files, code=code
    )


def choice(**entries: object) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["choices"][0].update(entries)


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda line: line["choices"][0].pop(key)


def misspell(line: dict[str, Any]) -> None:
    line["choices"][0]["accept_lengths:"] = line["choices"][0].pop("accept_lengths")


ANSWERS = (
    answers("empty", "", "m.jsonl: contains no answers"),
    answers("not UTF-8", json.dumps(ANSWER).encode() + b"\n\xff", "m.jsonl, line 2: not UTF-8", "0xff"),
    answers("deeply nested", f"{json.dumps(ANSWER)}\n{DEEP}", "m.jsonl, line 2: not JSON", "recursion"),
    answers("a list", "[]", "m.jsonl, line 1: it is []"),
    answer("no choices", lambda line: line.update(choices=[]), "m.jsonl, line 2: choices is []"),
    answer("no category", lambda line: line.pop("category"), "line 2: category is missing"),
    answer("category of all", lambda line: line.update(category="overall"), "line 2: category 'overall'"),
    answer("lone surrogate", choice(turns=["\ud800"]), "line 2: not JSON"),
    answer("no turns", choice(turns=[]), "line 2: choices.0.turns is []"),
    answer("two turns, one count", choice(turns=["a", "b"]), "line 2: turns, new_tokens", "[2, 1, 1, 1]"),
    answer("no counts", choice(new_tokens=[]), "line 2: turns, new_tokens", "[1, 0, 1, 1]"),
    answer("time zero", choice(wall_time=[0]), "line 2: question 2 took 0"),
    answer("no time", without("wall_time"), "line 2: question 2 took 0"),
    answer("no accept", without("accept_lengths"), "line 2: choices.0.accept_lengths is missing"),
    answer("misspelt as by REST", misspell, "'accept_lengths:'", "REST", code=0),
    answer("a question twice", lambda line: line.update(question_id=1), "1 lines answer a question again", code=0),
    bad_report("--answers a.jsonl b.jsonl --tokenizer .", "tokenizer.json", name="answers: no tokenizer"),
    bad_report(
        f"--answers a b --tokenizer {TINY}", "a: is a pipe", name="answers: pipe", files=lambda at: os.mkfifo(at / "a")
    ),
)

FILES = (*QUESTIONS, *TRACES, *ANSWERS)
