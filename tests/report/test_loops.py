"""Tokens in loops: which they are, against the definition word by word, and what they do to a
MAT.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.records import record, turn
from builders.reports import check, found_in, of_overall
from specbench.records.record import VANILLA
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
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.integers(1, 40)),
        min_size=1,
        max_size=3,
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


# 19 tokens, then a loop whose repetition begins at the 22nd
LOOP = [*range(100, 119), *[7, 8] * 40]


def test_mat_with_and_without_a_loop_by_hand(make_manifest):
    """Five steps of four tokens begin before the repetition, then ten of eight within it."""
    ids = [*LOOP, 3, 4]
    vanilla, pld = turn([1] * (len(ids) - 1), ids=ids), turn([4] * 5 + [8] * 10, [7] * 15, ids=ids)

    def found(*turns):
        records = [
            record(name, "a", [each]) for name, each in zip((VANILLA, "pld"), turns, strict=True)
        ]
        findings = found_in(records, make_manifest({"pld": {}}))
        return of_overall(findings).loc["pld"], " ".join(find_remarks(findings.reported))

    row, remarks = found(vanilla, pld)
    check(row, loop_share=78 / 101, mat=100 / 15, mat_outside_loops=20 / 5)
    assert "77.2 % of the tokens are in loops" in remarks
    assert "pld 6.67 (4.00 outside loops)" in remarks
    assert "loops" not in found(*(turn(each.accept, each.proposed) for each in (vanilla, pld)))[1]
