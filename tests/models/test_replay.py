"""Replay: recorded tokens decide as the model did, whatever file they come from."""

from __future__ import annotations

import pytest
from hypothesis import given

from builders.drafts import drafts_and_picks
from builders.engines import Scripted, decode_one, started, take_step
from builders.models import build
from builders.records import write_json_lines
from builders.runs import by_case, execute_job, job_for
from specbench.decode.walk import Walk
from specbench.models.replay import ReplayEngine, TimedFast
from specbench.records.answers import read_answers
from specbench.records.record import VANILLA
from specbench.trace import kind_of
from specbench.types import CaseError, Draft, InputError

MINI = (
    "suite=mini",
    "suite.limit=1",
    "decode.max_new_tokens=24",
    "measure=quick",
    "measure.warmup=0",
)
TINY = "model.tokenizer=bundled:tiny"
CHAT = [
    {
        "messages": [
            {"role": "user", "content": "Count to five."},
            {"role": "assistant", "content": "1 2 3 4 5"},
        ]
    },
    {
        "id": "b",
        "category": "poems",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say it twice: row, row."},
            {"role": "assistant", "content": "row, row, row, row"},
            {"role": "user", "content": [{"type": "text", "text": "Again."}]},
            {"role": "assistant", "content": "row, row, row, row"},
            {"role": "user", "content": "Thanks."},
        ],
    },
]


def replay(folder, *overrides):
    return by_case(execute_job(folder, "model=replay", *overrides))


@given(drafts_and_picks())
def test_the_path_is_the_walkers(drawn):
    """The walker with the recording's tokens as every row's pick, a token nobody drafts behind its
    end.
    """
    tokens, parents, passenger, upcoming = drawn
    rows = [0]
    for parent in parents:
        rows.append(rows[parent + 1] + 1)
    picks = [upcoming[row] if row < len(upcoming) else -7 for row in rows]
    engine = ReplayEngine(frozenset(), 16)
    engine.load([5], [1, *upcoming])
    step = take_step(started(engine, [5]), Draft(tokens, parents, passenger=passenger))
    path = Walk.follow(tokens, parents, passenger, picks)
    assert list(step.path) == path[: len(upcoming) - 1]  # the last token ends the answer


def ask(script, answer, prompt=(5, 6), limit=None, eos=frozenset(), kind="replay"):
    engine = ReplayEngine(eos, 16) if kind == "replay" else TimedFast(build("llama"), 512, eos, 16)
    engine.load(prompt, answer)
    return decode_one(engine, Scripted(script), prompt, limit or len(answer))


def test_integer_example():
    """Answer 7 8 9 7 8 9: two of three drafted tokens are right, then none, then the end cuts the
    draft.
    """
    answer = [7, 8, 9, 7, 8, 9]
    script = {1: [8, 9, 1], 4: [3], 5: [9, 9, 9]}
    done = ask(lambda context, emitted, _: Draft.chain(script[emitted]), answer)
    assert done.ids == answer
    assert done.accept == [3, 1, 1]
    assert done.fed == [4, 2, 4]
    assert done.finish == "length"


@pytest.mark.parametrize("kind", ["replay", "timed"])
def test_ends_at_eos_and_at_the_limit(kind):
    def follow(answer, draft, limit=None, eos=()):
        return ask(
            lambda *_: Draft.chain(draft), answer, limit=limit, eos=frozenset(eos), kind=kind
        )

    ended = follow([7, 8, 2], [8, 2, 9], eos=[2])
    assert (ended.accept, ended.finish) == ([2], "eos")
    cut = follow([7, 8, 9, 1, 4, 5], [8, 9, 1], 3)
    assert (cut.ids, cut.accept, cut.finish) == ([7, 8, 9], [2], "length")
    assert follow([7], []).accept == []
    with pytest.raises(CaseError, match=r"17 nodes.*at most 16"):
        follow([7, 8, 9], [1] * 17)


def test_own_records_need_no_tokenizer_to_be_named(tmp_path):
    live = by_case(execute_job(tmp_path / "live", "method=[pld]", *MINI, "suite.first=3"))
    trace = tmp_path / "live" / "records.jsonl"
    again = replay(tmp_path / "again", f"model.trace={trace}", "method=[pld]")
    assert show(again) == show(live)
    assert not any(record.lossless for record in again.values())
    # a run's folder
    twice = replay(tmp_path / "twice", f"model.trace={tmp_path / 'again'}", "method=[pld]")
    assert show(twice) == show(again)
    some = replay(
        tmp_path / "some", f"model.trace={trace}", "method=[pld]", *MINI[:2], "suite.first=2"
    )
    assert len(some) == 4


def show(records):
    return {
        key: [(t.ids, t.accept, t.fed, t.text) for t in record.turns]
        for key, record in records.items()
    }


def test_chat_log(tmp_path):
    path = tmp_path / "log.jsonl"
    write_json_lines(path, CHAT)
    assert kind_of(path) == "chat"
    settings = (f"model.trace={path}", TINY, "method=[pld]")
    found = replay(tmp_path / "run", *settings)
    first, second = found[VANILLA, "1"], found[VANILLA, "b"]
    assert (first.category, second.category) == ("chat", "poems")
    tokenizer = job_for("model=replay", *settings).source.card.tokenizer
    assert tokenizer.decode(first.turns[0].ids, skip_special_tokens=True).strip() == "1 2 3 4 5"
    assert first.turns[0].ids[-1] == tokenizer.eos_token_id
    assert len(second.turns) == 2
    asked = tokenizer.decode(second.turns[1].prompt_ids)
    assert "Be brief." in asked
    assert "row, row, row, row" in asked
    accept = found["pld", "b"].turns[1].accept
    assert sum(accept) > len(accept)  # it repeats the first answer


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.trace={chat}", "method=[pld]"], ["model.tokenizer", "not set"]),
        (["model.trace={chat}", TINY, "method=[token_recycling]"], ["logits"]),
        (["model.trace={chat}", TINY, "method=[hf_generate]"], ["hf_generate", "replay"]),
        (["model.trace={chat}", TINY, "method=[pld]", "decode.temperature=1"],
        ["decode.temperature=1"]), (["model.trace={chat}", TINY, "method=[pld]", "engine=eager"],
        ["engine=eager", "model.trace"]),
        (["model.trace={answers}", TINY, "method=[pld]"], ["answer file", "suite=spec_bench"]),
        (["method=[pld]", "suite=trace"], ["model.trace"]),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_says_why(tmp_path, overrides, words):
    files = {
        "chat": write_json_lines(tmp_path / "chat", CHAT),
        "answers": write_json_lines(tmp_path / "answers", [{"question_id": 1, "choices": []}]),
    }
    with pytest.raises(InputError) as raised:
        replay(tmp_path / "run", *(text.format(**files) for text in overrides))
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_answers_of_vicuna_come_back_token_by_token(data):
    """Of 560 recorded answers, at most four lost a token; EOS ends all but the cut ones."""
    path = data / "traces" / "vicuna-7b-v1.3" / "spec_bench_vanilla_run1.jsonl"
    job = job_for(
        "model=replay", f"model.trace={path}", f"model.tokenizer={data / 'tokenizers' / 'vicuna'}",
        "model.template=vicuna_v1.1", "suite=spec_bench", "method=[pld]",
    )  # fmt: skip
    trace = job.source.trace
    assert (trace.turns, len(trace.conversations)) == (560, 480)
    assert trace.exact >= 556
    counts = {
        str(answer.question_id): [turn.new_tokens for turn in answer.turns]
        for answer in read_answers(path)
    }
    for each in trace.conversations:
        for turn, count in zip(each.turns, counts[each.case.id], strict=True):
            assert abs(len(turn.ids) - count) <= 1
            assert (turn.ids[-1] == job.source.card.tokenizer.eos_token_id) == (count < 1024)
