"""Tokens in loops: which they are, against the definition word by word, and what they do to a MAT."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.records import record, turn
from builders.reports import rows_of
from specbench.records.record import OVERALL, VANILLA
from specbench.records.store import Run
from specbench.report import gather
from specbench.report.frames.reported import find_remarks
from specbench.report.frames.trials import LEAST_LOOP, LEAST_TIMES, MOST_PERIOD, find_loops


def by_definition(ids):
    marked = [False] * len(ids)
    for period in range(1, MOST_PERIOD + 1):
        for start in range(len(ids) - period):
            end = start + period
            while end < len(ids) and ids[end] == ids[end - period]:
                end += 1
            if end - start >= max(LEAST_TIMES * period, LEAST_LOOP):
                marked[start + period : end] = [True] * (end - start - period)
    return marked


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.integers(1, 40)), min_size=1, max_size=3
    )
)
def test_marks_are_those_of_the_definition(parts):
    ids = [token for period, times in parts for token in (period * times)[:300]]
    assert find_loops(np.array(ids)).tolist() == by_definition(ids)


@pytest.mark.parametrize(
    ("period", "tokens", "marked"),
    [(1, 31, 0), (1, 32, 31), (8, 31, 0), (8, 32, 24), (64, 255, 0), (64, 256, 192), (65, 650, 0)],
)
def test_the_least_loop_and_the_longest_period(period, tokens, marked):
    ids = np.arange(tokens) % period
    assert int(find_loops(ids).sum()) == marked


LOOP = [*range(100, 119), *[7, 8] * 40]  # 19 tokens, then a loop whose repetition begins at the 22nd


def test_mat_with_and_without_a_loop_by_hand(make_manifest):
    """Five steps of four tokens begin before the repetition, then ten of eight within it."""
    ids = [*LOOP, 3, 4]
    looping = [4] * 5 + [8] * 10
    made = [turn([1] * (len(ids) - 1), ids=ids), turn(looping, [7] * 15, ids=ids)]
    records = [record(name, "a", [each]) for name, each in zip((VANILLA, "pld"), made, strict=True)]
    manifest = make_manifest({"pld": {}})
    row = rows_of(records, manifest)[OVERALL, "pld"]
    assert row["loop_share"] == pytest.approx(78 / 101)
    assert row["mat"] == pytest.approx(100 / 15)
    assert row["mat_outside_loops"] == pytest.approx(20 / 5)
    remarks = find_remarks(gather([Run(Path("r"), manifest, records)]).reported)
    assert any(
        "77.2 % of the tokens are in loops" in text and "pld 6.67 (4.00 outside loops)" in text for text in remarks
    )
    plain = [record(each.method, "a", [turn(each.turns[0].accept, each.turns[0].proposed)]) for each in records]
    assert not any("loops" in text for text in find_remarks(gather([Run(Path("r"), manifest, plain)]).reported))
