"""Tails, figures along the answer, before and after the thinking's end, and what a million tokens
cost.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import specbench
from builders.records import record, turn
from builders.reports import check, found_in, rows_of, tried
from specbench.records.record import VANILLA, CaseRecord
from specbench.report.frames.detail import DETAILS, count_lengths, count_tails, split_answers
from specbench.report.frames.trials import read_trials
from specbench.report.table import ROW
from specbench.report.tables.detail import thinking_tables, turns_tables
from specbench.report.tokenizer import read_tokenizer
from specbench.runs.session import Session
from specbench.suite import prompt


def tails(records):
    (row,) = count_tails(tried(records))
    return dict(zip(DETAILS["tails"].columns, row, strict=True))


def test_percentiles_of_waiting():
    steps = [0.001 * (1 + number) for number in range(200)]
    one = turn([2] * 200, step_s=steps, prefill_s=0.3, decode_s=sum(steps))
    two = turn([1], step_s=[0.5], prefill_s=0.1, decode_s=0.5)
    found = tails([record("pld", "a", [one]), record("pld", "b", [two])])
    p95, p99 = np.percentile([*steps, 0.5], (95, 99))
    check(
        found,
        requests=2,
        steps=201,
        first_token_p50_ms=200,
        per_token_p50_ms=(1e3 * sum(steps) / 400 + 500) / 2,
    )
    check(found, burst_p50_ms=101, burst_p95_ms=1e3 * p95, burst_p99_ms=1e3 * p99)
    check(found, "first_token_p99_ms")  # of two requests it would be the larger one
    assert not list(count_tails(tried([record("pld", "a", [turn([1, 2])])])))


def test_steps_fall_into_bins_of_position_and_context():
    found = tried(
        [
            record(
                "pld",
                "a",
                [turn([10, 10, 2], [9, 9, 1], prompt_tokens=50, step_s=[0.001, 0.003, 0.005])],
            )
        ]
    )
    by = lengths(found, None)
    assert by.loc[("position", 0), ["steps", "mat"]].tolist() == [2, 10]
    assert by.loc[("position", 16), ["steps", "mat"]].tolist() == [1, 2]
    assert by.loc[("position", 0), "step_ms"] == pytest.approx(2)
    assert by.loc[("context", 0), "steps"] == 2  # contexts 50, 60, 70
    assert by.loc[("context", 64), "emitted"] == 2
    assert lengths(found, None, timed=False)["step_ms"].isna().all()


def lengths(found, vanilla, timed=True):
    columns = list(DETAILS["by_length"].columns)
    return pd.DataFrame(count_lengths(found, timed, vanilla), columns=columns).set_index(
        ["axis", "from"]
    )


def test_speedup_of_a_bin_is_over_the_cases_in_which_both_have_steps():
    """Contexts 50 to 69 one by one against 50 and 60; the second case's, 300 on, the method does
    not have.
    """
    plain = turn([1] * 20, prompt_tokens=50, step_s=[0.002] * 14 + [0.001] * 6)
    far = turn([1] * 4, prompt_tokens=300, step_s=[0.004] * 4)
    one = turn([10, 10], [9, 9], prompt_tokens=50, step_s=[0.01, 0.005])
    found = read_trials(
        [record(VANILLA, "b", [far]), record(VANILLA, "a", [plain]), record("pld", "a", [one])]
    )
    by = lengths(found.of("pld"), found.of(VANILLA))
    assert by.loc[("context", 0), "speedup"] == pytest.approx(0.002 / (0.015 / 20))
    assert by.loc[("position", 0), "speedup"] == pytest.approx((0.03 / 16) / (0.015 / 20))
    assert by["speedup_low"].isna().all()
    own = lengths(found.of(VANILLA), found.of(VANILLA))
    assert own["speedup"].tolist() == [1.0] * len(own)
    assert lengths(found.of("pld"), None)["speedup"].isna().all()


def test_speedup_of_a_bin_has_an_interval_from_eight_cases_on():
    plain, one = turn([1] * 20, step_s=[0.002] * 20), turn([10, 10], [9, 9], step_s=[0.01, 0.005])
    slow = replace(one, step_s=[0.02, 0.01])
    for count in (7, 8):
        pairs = [(f"{case}", one if case % 2 else slow) for case in range(count)]
        records = [
            each
            for case, own in pairs
            for each in (record(VANILLA, case, [plain]), record("pld", case, [own]))
        ]
        found = read_trials(records)
        row = lengths(found.of("pld"), found.of(VANILLA)).loc[("context", 0)]
        bounds = row[["speedup_low", "speedup_high"]].tolist()
        assert np.isnan(bounds).all() if count == 7 else bounds[0] < row["speedup"] < bounds[1]


def test_a_million_tokens_at_the_price_of_an_hour(two_cases):
    records, manifest = two_cases
    assert np.isnan(rows_of(records, manifest)["overall", "pld"]["cost_per_million"])
    manifest["config"]["measure"] = {"price_per_hour": 3.6}
    rows = rows_of(records, manifest)
    assert rows["overall", VANILLA]["cost_per_million"] == pytest.approx(1e6 * 0.001 * 13 / 14)
    manifest["config"]["engine"] = {"kind": "replay"}
    assert np.isnan(rows_of(records, manifest)["overall", "pld"]["cost_per_million"])


def test_joules_a_token_over_all_rounds_where_every_turn_has_them(two_cases):
    records, manifest = two_cases

    def joules(made, category="overall", method="pld"):
        return rows_of(made, manifest)[category, method]["joules_per_token"]

    assert np.isnan(joules(records))
    again = [
        replace(each, round=1, turns=[replace(turn, energy_j=12.0) for turn in each.turns])
        for each in records
    ]
    for each in records:
        each.turns[0].energy_j = 6.0
    both = [*records, *again]
    assert joules(both, method=VANILLA) == pytest.approx(2 * 18 / (2 * 14))
    assert joules(both, "qa") == pytest.approx(18 / (2 * 5))
    again[1].turns[0].energy_j = None
    assert np.isnan(joules(both))
    assert joules(both, "rag") == pytest.approx(18 / (2 * 9))
    manifest["config"]["engine"] = {"kind": "timed"}  # the record's tokens are nobody's claim
    assert np.isnan(joules(both, method=VANILLA))


@pytest.mark.parametrize(
    ("asked", "ids", "thought"),
    [
        ([5], [8, 1, 2, 9, 3], 4),
        ([5, 8], [1, 2, 9, 3], 3),  # the template opens it
        ([5, 8, 9], [1, 2], None),  # the template opens and closes it: no thinking
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


def rows_of_answer(method, *steps, thinking):
    """Of one answer. steps: (tokens, seconds) each."""
    accept = [tokens for tokens, _ in steps]
    seconds = [each for _, each in steps]
    drafts = [tokens - 1 for tokens in accept]
    times = {"step_s": seconds, "decode_s": sum(seconds), "phases_s": {"forward": sum(seconds)}}
    made = turn(accept, drafts, **times, thinking=thinking)
    again = CaseRecord.from_json(record(method, "a", [made]).to_json())
    assert again.turns[0].thinking == thinking
    return [("m", "s", method, "", *row) for row in split_answers(tried([again]), True)]


def test_figures_before_and_after_the_end():
    vanilla = rows_of_answer("vanilla", *[(1, 0.01)] * 6, thinking=5)
    # steps begin at tokens 0, 3 and 5
    drafted = rows_of_answer("pld", (3, 0.01), (2, 0.02), (1, 0.01), thinking=5)
    frame = pd.DataFrame([*vanilla, *drafted], columns=[*ROW, *DETAILS["thinking"].columns])
    by = frame.set_index(["method", "part"])
    assert by.loc[("pld", "thinking"), ["steps", "emitted", "mat"]].tolist() == [2, 5, 2.5]
    assert by.loc[("pld", "answer"), ["steps", "emitted", "mat"]].tolist() == [1, 1, 1]
    (table,) = thinking_tables(frame)
    assert [cell.text for cell in table.rows[1]][-6:] == [
        "83.3 %",
        "2.50",
        "1.67",
        "16.7 %",
        "1.00",
        "1.00",
    ]
    assert not rows_of_answer("pld", (2, 0.01), thinking=None)
    assert thinking_tables(frame[:0]) == []


@pytest.mark.parametrize("thinking", [4, 5])
def test_turns_that_end_in_their_thinking_are_reported(make_manifest, thinking):
    """Five ids each; the thinking of two turns ends with the fourth or the last of them."""
    made = [turn([1] * 4, thinking=count) for count in (thinking, thinking, 2, None)]
    found = found_in(
        [record(name, "a", made) for name in (VANILLA, "pld")], make_manifest({"pld": {}})
    )
    warned = [text for text in found.warnings if "thinking" in text]
    assert [text.startswith("4 of 6 turns that think end before") for text in warned] == [True] * (
        thinking == 5
    )


def test_an_answer_is_what_stands_behind_the_thinking():
    library = read_tokenizer(Path(specbench.__file__).parent / "assets/tiny")
    thought, answer = (
        library.encode(text, add_special_tokens=False).ids for text in ("It is 4.", " It is 5.")
    )
    decoder = SimpleNamespace(
        _tokenizer=SimpleNamespace(decode=lambda ids, **_: library.decode(ids))
    )
    for thinking, message in (
        (len(thought), "It is 5."),
        (len(thought + answer), ""),
        (None, "as recorded"),
    ):
        made = turn([1], ids=thought + answer, text="as recorded", thinking=thinking)
        assert Session._answer(decoder, made) == message


def test_trajectories_have_a_table_by_turn():
    """Only recorded conversations find earlier turns in the cache; a chat without has no table."""
    rows = [
        {"model": "m", "suite": "s", "method": method, "variant": "", "turn": number, "requests": 2,
         "prompt_tokens": 9.0, "prefix_tokens": 5.0 * (number > 1), "mat": 2.0, "speedup": 1.5,
         "speedup_low": 1.1, "speedup_high": 1.9}
        for method in (VANILLA, "pld") for number in (1, 2)
    ]  # fmt: skip
    (table,) = turns_tables(pd.DataFrame(rows))
    assert table.header == ("Method", "Speedup 1", "MAT 1", "Speedup 2", "MAT 2")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["pld", "1.50", "2.00", "1.50", "2.00"]
    ]
    assert turns_tables(pd.DataFrame(rows).assign(prefix_tokens=0.0)) == []
