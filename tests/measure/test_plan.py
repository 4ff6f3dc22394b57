"""The plan: every case once a round, methods in random order, spans as the reset policy says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specbench.measure.plan import RESETS, make_plan, starts_span
from specbench.records.record import CaseRecord
from specbench.runs.ledger import Ledger
from specbench.types import Case


def records_of(*plans) -> list[CaseRecord]:
    """The records of blocks, without turns."""
    return [
        CaseRecord(case.id, case.category, "", name, block.round, block.index, place, "ok", [])
        for plan in plans
        for block in plan
        for place, name in enumerate(block.order)
        for case in block.cases
    ]


def resume_at(plan, done, resets) -> int:
    """The resumption of a run after some blocks: the rest is the plan from there on."""
    ledger = Ledger(plan, records_of(plan[:done]), resets)
    assert ledger.rest == plan[ledger.kept :]
    return ledger.kept


CASES = [Case(str(index), "ab"[index % 2], ("hi",)) for index in range(8)]


def test_all_methods_in_every_block_in_varying_order():
    methods = {"vanilla": "case", "a": "case", "b": "case"}
    plan = make_plan(CASES, methods, rounds=2, seed=0)
    assert [block.index for block in plan] == list(range(16))
    assert all(sorted(block.order) == ["a", "b", "vanilla"] for block in plan)
    assert len({block.order for block in plan}) > 3
    assert plan == make_plan(CASES, methods, rounds=2, seed=0)
    assert plan != make_plan(CASES, methods, rounds=2, seed=1)


def test_category_policy_keeps_categories_together():
    plan = make_plan(CASES, {"vanilla": "case", "a": "category"}, rounds=1, seed=0)
    assert [block.case.category for block in plan] == ["a"] * 4 + ["b"] * 4
    assert [index for index in range(8) if starts_span(plan, index, "category")] == [0, 4]


@given(st.integers(0, 16), st.lists(st.sampled_from(RESETS), min_size=1, max_size=3))
def test_resume_starts_where_every_span_starts(done, policies):
    names = {f"m{index}": policy for index, policy in enumerate(policies)}
    plan = make_plan(CASES, names, rounds=2, seed=0)
    at = resume_at(plan, done, names)
    assert at <= done
    if set(policies) <= {"turn", "case"}:
        assert at == done
    if at < len(plan):
        for policy in policies:
            assert starts_span(plan, at, policy)


def test_a_finished_plan_stays_finished_whatever_the_policy():
    plan = make_plan(CASES, {"vanilla": "case", "a": "never"}, rounds=2, seed=0)
    assert resume_at(plan, len(plan), {"vanilla": "case", "a": "never"}) == len(plan)


def test_a_second_round_is_a_second_pass_only_for_what_is_kept_the_whole_run():
    plan = make_plan(CASES, {"vanilla": "case", "a": "never", "b": "run"}, rounds=2, seed=0)
    second = len(plan) // 2
    assert starts_span(plan, second, "never")
    assert not starts_span(plan, second, "run")
    assert resume_at(plan, second + 1, {"a": "never"}) == second
    assert resume_at(plan, second + 1, {"b": "run"}) == 0
