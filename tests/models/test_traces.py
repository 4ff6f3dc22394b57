"""Traces as they come: templates that rewrite answers, odd separators, failed answers, twins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.records import failed, record, turn, write_json_lines
from builders.runs import job_for
from specbench.models.load import locate, read_tokenizer
from specbench.records.store import read_run
from specbench.runs.execution import execute
from specbench.runs.sources import trace_warnings
from specbench.suite.prompt import PromptBuilder
from specbench.trace import conversation_ids, read_trace
from specbench.types import Case, InputError

REWRITES = (
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}\n{% else %}A:{{"
    " m.content.split('</think>')[-1] }}</s>\n{% endif %}{% endfor %}{% if add_generation_prompt"
    " %}A:{% endif %}"
)


def tiny():
    return read_tokenizer(locate("bundled:tiny", "t"), "t")


def spoken(answer: str, **more) -> dict:
    return {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}],
        **more,
    }


def chat(folder: Path, *lines: dict) -> Path:
    path = folder / "log.jsonl"
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8-sig")
    return path


def read(path: Path, cases=None):
    tokenizer = tiny()
    return read_trace(path, lambda: PromptBuilder(tokenizer, None), tokenizer.eos_token_id, cases)


def test_an_answer_that_the_template_rewrites_is_kept_whole():
    tokenizer = tiny()
    tokenizer.chat_template = REWRITES
    answer = "<think>two and two</think>four"
    prompt, ids = conversation_ids(PromptBuilder(tokenizer, None), ["What?"], [answer])
    assert tokenizer.decode(list(ids)) == answer
    assert tokenizer.decode(list(prompt)) == "U:What?\nA:"


def test_null_ids_are_numbers_and_overall_is_refused(tmp_path):
    found = read(
        chat(tmp_path, spoken("a", id=None), spoken("b", id=None, category=None))
    ).conversations
    assert [(each.case.id, each.case.category) for each in found] == [("1", "chat"), ("2", "chat")]
    with pytest.raises(InputError, match="line 1: category 'overall' is the row"):
        read(chat(tmp_path, spoken("a", category="overall")))
    with pytest.raises(InputError, match="line 2: id 2 occurs twice"):
        read(chat(tmp_path, spoken("a", id="2"), spoken("b")))


def answers(folder: Path, *texts: list[str]) -> Path:
    """An answer file without times, a question a list of turns."""
    return write_json_lines(folder / "answers.jsonl", [
        {"question_id": number, "category": "qa",
        "choices": [{"turns": turns, "new_tokens": [3] * len(turns)}]}
        for number, turns in enumerate(texts, start=1)
    ])  # fmt: skip


def test_questions_without_a_good_answer_are_left_out_and_counted(tmp_path):
    cases = [Case(str(number), "qa", ("Why?",)) for number in range(1, 5)]
    found = read(answers(tmp_path, ["ERROR"], ["well"], ["one", "two"], [" "]), cases)
    assert ([each.case.id for each in found.conversations], found.failed) == (["2"], 3)
    with pytest.raises(InputError, match="has a good answer to none"):
        read(answers(tmp_path, ["ERROR"]), cases)


def test_records_of_failed_cases_are_counted_and_twins_refused(tmp_path):
    good = record("vanilla", "a", [turn([1], ids=[7, 8], prompt_ids=[1, 2])]).to_json() + "\n"
    path = tmp_path / "records.jsonl"
    path.write_text(good + failed("vanilla", "b").to_json() + "\n")
    found = read(path)
    assert ([each.case.id for each in found.conversations], found.failed) == (["a"], 1)
    path.write_text(good + good)
    with pytest.raises(InputError, match="case a is recorded twice"):
        read(path)


def ids_of(folder: Path, *turns: dict) -> Path:
    lines = ({"case": str(number), "turns": [turn]} for number, turn in enumerate(turns))
    return write_json_lines(folder / "ids.jsonl", lines)


def test_only_the_traces_own_ends_end_its_answers(tmp_path):
    """Another tokenizer's EOS is an id like any other: added to the ends, it would cut the second
    answer.
    """
    end = tiny().eos_token_id
    path = ids_of(
        tmp_path,
        {"prompt_ids": [1, 5], "ids": [7, 8, 9], "finish": "eos"},
        {"prompt_ids": [1, 5], "ids": [7, end, 8, 4]},
    )
    job = job_for(
        "model=replay", f"model.trace={path}", "model.tokenizer=bundled:tiny", "method=[pld]"
    )
    assert job.source.trace.ends == job.source.card.eos == {9}
    assert [each.turns[0].ids.tolist() for each in job.source.trace.conversations] == [
        [7, 8, 9],
        [7, end, 8, 4],
    ]
    execute(job, tmp_path / "run", lambda *_: None)
    found = [
        record.turns[0] for record in read_run(tmp_path / "run").records if record.method == "pld"
    ]
    assert [(turn.ids, turn.finish) for turn in found] == [
        ([7, 8, 9], "eos"),
        ([7, end, 8, 4], "length"),
    ]


def test_answers_that_do_not_read_as_recorded_are_reported(tmp_path):
    options = ("model=replay", "model.tokenizer=bundled:tiny", "method=[pld]")
    ids = tiny()("Hello there", add_special_tokens=False)["input_ids"]
    for text, doubted in (("Hello there", False), ("Guten Tag", True)):
        path = ids_of(tmp_path, {"prompt_ids": [1, 5], "ids": ids, "text": text})
        warnings = job_for(*options, f"model.trace={path}").source.suite.warnings
        assert any("is model.tokenizer the tokenizer" in warning for warning in warnings) == doubted


def test_a_runs_own_ids_may_lie_beyond_its_tokenizer(tmp_path):
    """A random model has more ids than its tokenizer has texts."""
    path = ids_of(tmp_path, {"prompt_ids": [1, 5], "ids": [7, 3000]})
    (tmp_path / "manifest.json").write_text(
        json.dumps({"model": {"name": "m", "tokenizer": "bundled:tiny"}})
    )
    assert (
        job_for("model=replay", f"model.trace={path}", "method=[pld]").source.card.vocab_size
        == 3001
    )


def test_prompts_without_their_conversation_are_counted(tmp_path):
    def turn(*prompt):
        return {"prompt_ids": prompt, "ids": [7], "finish": "length"}

    path = tmp_path / "t.jsonl"
    for later, diverged in (((1, 5, 7, 6), 0), ((1, 6), 1), ((1,), 1)):
        path.write_text(json.dumps({"case": "1", "turns": [turn(1, 5), turn(*later)]}))
        warned = " ".join(trace_warnings(read(path), None, tiny()))
        assert ("1 later prompts of the trace do not begin" in warned) == diverged


def test_special_tokens_in_texts_are_counted(tmp_path):
    """They become the tokens; the bundled EOS ends the second answer in its middle."""
    trace = read(chat(tmp_path, spoken("end"), spoken("one <|end|> two")))
    assert "1 answers of the trace contain special tokens" in " ".join(
        trace_warnings(trace, None, tiny())
    )
    assert tiny().eos_token_id in trace.conversations[1].turns[0].ids[:-1]


def test_an_answer_file_says_what_is_answered_twice(tmp_path):
    path = answers(tmp_path, ["a b"])
    path.write_text(path.read_text() + path.read_text().replace("a b", "c d"))
    questions = write_json_lines(
        tmp_path / "q.jsonl", [{"question_id": 1, "category": "qa", "turns": ["Why?"]}]
    )
    options = (
        "model=replay",
        "model.tokenizer=bundled:tiny",
        "suite=spec_bench",
        f"suite.path={questions}",
    )
    job = job_for(*options, f"model.trace={path}", "method=[pld]")
    assert [turn.text for each in job.source.trace.conversations for turn in each.turns] == ["c d"]
    assert any("1 questions are answered again" in warning for warning in job.source.suite.warnings)
