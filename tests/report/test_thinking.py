"""Reasoning models: where the thinking ends, and the figures before and after it."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from report.handmade import record, tried, turn

import specbench
from specbench.records.record import VANILLA, CaseRecord
from specbench.records.store import Run
from specbench.report import gather
from specbench.report.frames.detail import DETAILS, split_answers
from specbench.report.table import ROW
from specbench.report.tables.detail import thinking_tables
from specbench.report.tokenizer import read_tokenizer
from specbench.runs.session import Session
from specbench.suite import prompt


@pytest.mark.parametrize(
    ("asked", "ids", "thought"),
    [
        ([5], [8, 1, 2, 9, 3], 4),
        ([5, 8], [1, 2, 9, 3], 3),  # the template opens it
        ([5, 8], [1, 2], 2),  # cut while it thinks
        ([5], [8, 1], 2),
        ([5, 8, 9], [1, 2], None),  # the template opens and closes it: no thinking
        ([5], [1, 2], None),
        ([5], [1, 9, 3], 2),  # begun without a mark
        ([5, 8], [1, 9, 3, 9, 4], 2),  # a second end is part of the answer
        ([5, 8, 9], [1, 9, 3], None),  # as is one that ends nothing
        ([5, 8, 9], [1, 9, 8, 2, 9, 3], 5),  # it thinks all the same
        ([5, 8, 9], [1, 9, 8, 2], 4),
    ],
)
def test_the_end_of_the_thinking(asked, ids, thought):
    assert prompt.count_thinking((8, 9), asked, ids) == thought
    assert prompt.count_thinking(None, asked, ids) is None


def rows(method, *steps, thinking):
    """Of one answer. steps: (tokens, seconds) each."""
    accept = [tokens for tokens, _ in steps]
    seconds = [each for _, each in steps]
    drafts = [tokens - 1 for tokens in accept]
    told = turn(accept, drafts, step_s=seconds, decode_s=sum(seconds), phases_s={"forward": 0.0}, thinking=thinking)
    again = CaseRecord.from_json(record(method, "a", [told]).to_json())
    assert again.turns[0].thinking == thinking
    return [("m", "s", method, "", *row) for row in split_answers(tried([again]), True)]


def test_figures_before_and_after_the_end():
    vanilla = rows("vanilla", *[(1, 0.01)] * 6, thinking=5)
    drafted = rows("pld", (3, 0.01), (2, 0.02), (1, 0.01), thinking=5)  # steps begin at tokens 0, 3 and 5
    frame = pd.DataFrame([*vanilla, *drafted], columns=[*ROW, *DETAILS["thinking"].columns])
    by = frame.set_index(["method", "part"])
    assert by.loc[("pld", "thinking"), ["steps", "emitted", "mat"]].tolist() == [2, 5, 2.5]
    assert by.loc[("pld", "answer"), ["steps", "emitted", "mat"]].tolist() == [1, 1, 1]
    (table,) = thinking_tables(frame)
    assert [cell.text for cell in table.rows[1]][-6:] == ["83.3 %", "2.50", "1.67", "16.7 %", "1.00", "1.00"]
    assert not rows("pld", (2, 0.01), thinking=None)
    assert thinking_tables(frame[:0]) == []


@pytest.mark.parametrize("thinking", [4, 5])
def test_turns_that_end_in_their_thinking_are_said(make_manifest, thinking):
    """Five ids each; the thinking of two turns ends with the fourth or the last of them."""
    told = [turn([1] * 4, thinking=count) for count in (thinking, thinking, 2, None)]
    records = [record(name, "a", told) for name in (VANILLA, "pld")]
    findings = gather([Run(Path("r"), make_manifest({"pld": {}}), records)])
    said = [text for text in findings.warnings if "thinking" in text]
    assert said == [text for text in said if text.startswith("4 of 6 turns that think end before their thinking does")]
    assert len(said) == (thinking == 5)


def test_an_answer_is_what_stands_behind_the_thinking():
    library = read_tokenizer(Path(specbench.__file__).parent / "assets/tiny")
    thought, answer = (library.encode(text, add_special_tokens=False).ids for text in ("It is 4.", " It is 5."))
    decoder = SimpleNamespace(_tokenizer=SimpleNamespace(decode=lambda ids, **_: library.decode(ids)))
    for thinking, said in ((len(thought), "It is 5."), (len(thought + answer), ""), (None, "as recorded")):
        told = turn([1], ids=thought + answer, text="as recorded", thinking=thinking)
        assert Session._answer(decoder, told) == said
