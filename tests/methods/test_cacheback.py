"""Cacheback against the integer examples of the reference; FIFO in place of LRU is shown to fail them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.cacheback import Cacheback, FrozenTable, build_frozen_table
from methods.parts.ngrams import LruTable
from specbench.types import InputError, Prefill, Step
from twins.trees import Table

PROMPT = [5, 1, 2, 3, 4, 1, 2, 6, 7, 1, 2, 3, 4]


def frozen_from(entries: dict[tuple, list[tuple]]) -> FrozenTable:
    leaders = sorted(entries)
    followers = [gram for leader in leaders for gram in entries[leader]]
    offsets = np.cumsum([0, *(len(entries[leader]) for leader in leaders)])
    return FrozenTable(np.array(leaders), offsets, np.array(followers))


def started(prompt=PROMPT, frozen=None, **options):
    """A request whose prompt and first token are ``prompt``."""
    method = Cacheback(tables="dual" if frozen else "dynamic", **options)
    method.table = frozen
    return method, method.begin(prompt[:-1], Prefill(prompt[-1]), 0)


def contents(table: LruTable) -> dict:
    return {leader[0]: list(reversed(followers)) for leader, followers in table._table.items()}


def chains(draft) -> list[tuple]:
    """(parent of the chain's first node, tokens) of each follower, in order of attachment."""
    found = []
    for start in range(0, len(draft), 3):
        found.append((draft.parents[start], tuple(draft.tokens[start : start + 3])))
    return found


WANTED = {
    1: [(2, 3, 4), (2, 6, 7)],
    2: [(6, 7, 1), (3, 4, 1)],
    3: [(4, 1, 2)],
    4: [(1, 2, 6)],
    5: [(1, 2, 3)],
    6: [(7, 1, 2)],
    7: [(1, 2, 3)],
}


def test_prompt_and_steps_fill_the_table():
    method, _ = started()
    assert contents(method.dynamic) == WANTED
    method, drafter = started()
    drafter.observe(Step(4, (1, 2), (0,), False))
    assert contents(method.dynamic)[2][0] == (3, 4, 1)
    assert contents(method.dynamic)[3][0] == (4, 1, 2)

    # The wrong variant: a follower that is put again must become most recent.
    class Fifo(LruTable):
        def put(self, leader, follower):
            if follower not in self._table.get(leader, {}):
                super().put(leader, follower)

    method = Cacheback(tables="dynamic")
    method.dynamic = Fifo(100, 100)
    method.begin(PROMPT[:-1], Prefill(PROMPT[-1]), 0)
    assert contents(method.dynamic) != WANTED


FROZEN = {(4,): [(9, 9, 9), (3, 3, 3)]}


@pytest.mark.parametrize(
    ("total", "reserve", "wanted"),
    [
        (10, 3, [(-1, (1, 2, 6)), (-1, (9, 9, 9)), (2, (7, 1, 2))]),
        (9, 3, [(-1, (1, 2, 6)), (2, (7, 1, 2))]),
    ],
)
def test_tree_within_its_budget(total, reserve, wanted):
    options = {"total_draft_length": total, "chaining_reserve": reserve}
    _, drafter = started(frozen=frozen_from(FROZEN), **options)
    assert chains(drafter.propose(PROMPT, 256)) == wanted


def test_tree_of_the_papers_size():
    _, drafter = started(frozen=frozen_from(FROZEN))
    draft = drafter.propose(PROMPT, 256)
    assert len(draft) == 93
    found = chains(draft)
    assert found[:3] == [(-1, (1, 2, 6)), (-1, (9, 9, 9)), (-1, (3, 3, 3))]
    assert found[3:5] == [(2, (7, 1, 2)), (8, (4, 1, 2))]
    assert [tokens for parent, tokens in found if parent == 11] == [(6, 7, 1), (3, 4, 1)]
    assert set(draft.source) == {0, 1}


def saturated(uncached, **options):
    method, drafter = started([9, 9, 9, 9, 7], **options)
    for token in range(100, 140):
        method.dynamic.put((7,), (token, token, 7))
    drafter._uncached = uncached
    return drafter.propose([7], 256)


@pytest.mark.parametrize(("uncached", "first", "all_"), [(1, 26, 93), (2, 26, 93), (3, 25, 93), (4, 25, 90)])
def test_saturated_levels(uncached, first, all_):
    draft = saturated(uncached)
    assert (sum(parent == -1 for parent in draft.parents), len(draft)) == (first, all_)
    assert saturated(uncached, accounting="kept").tokens == saturated(1).tokens


def test_lru_of_followers_and_leaders():
    table = LruTable(2, 2)
    for follower in ("A", "B", "A", "C"):
        table.put((1,), (follower,))
    assert list(table.recent((1,))) == [("C",), ("A",)]
    table.put((2,), ("x",))
    list(table.recent((1,)))
    table.put((3,), ("y",))
    assert list(table.recent((2,))) == []
    assert list(table.recent((1,))) == [("C",), ("A",)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 4)), max_size=80))
@settings(max_examples=100, deadline=None)
def test_lru_table_against_lists(operations):
    table, lists = LruTable(3, 2), Table(3, 2, {})
    for is_get, leader, follower in operations:
        if is_get:
            assert list(table.recent((leader,))) == lists.get((leader,))
        else:
            table.put((leader,), (follower,))
            lists.put((leader,), (follower,))
    assert table._followers == sum(map(len, lists.rows.values()))


def test_frozen_build_counts_by_hand(tmp_path):
    documents = [np.array([1, 2, 3, 1, 2, 3, 1, 2, 4]), np.array([1, 2])]
    table = build_frozen_table(documents, 1, 1, leader_capacity=2, follower_capacity=1)
    assert table.get((1,)) == [(2,)]
    assert table.get((2,)) == [(3,)]
    assert table.get((3,)) == []  # only the two most frequent leaders
    table.save(tmp_path / "t.safetensors", 10)
    loaded = FrozenTable.load(tmp_path / "t.safetensors", 10, "key")
    assert loaded.get((2,)) == [(3,)]
    assert loaded.nbytes() == table.nbytes() == 2 * 2 + 3 * 4 + 2 * 2


@given(st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=4), st.integers(1, 2), st.integers(1, 2))
@settings(max_examples=50, deadline=None)
def test_frozen_build_against_counting(documents, lead, follow):
    counts: dict = {}
    for ids in documents:
        for at in range(len(ids) - lead - follow + 1):
            window = tuple(ids[at : at + lead + follow])
            entry = counts.setdefault(window[:lead], {})
            entry[window[lead:]] = entry.get(window[lead:], 0) + 1
    table = build_frozen_table([np.array(ids, dtype=np.int64) for ids in documents], lead, follow)
    for leader, followers in counts.items():
        ranked = sorted(followers, key=lambda gram: (-followers[gram], gram))
        assert table.get(leader) == ranked


def test_a_missing_table_and_one_of_other_lengths_are_refused_and_a_pattern_finds_the_right_one(tmp_path):
    class Card:
        name = "m"

    with pytest.raises(InputError, match=r"specbench build frozen_table"):
        Cacheback().check(Card())

    class Card:
        name = "m"
        tokenizer = range(10)

    documents = [np.array([1, 2, 3, 4, 5, 6])]
    for lead, follow in ((1, 1), (1, 2), (2, 1)):
        build_frozen_table(documents, lead, follow).save(tmp_path / f"t_{lead}_{follow}.safetensors", 10)
    pattern = str(tmp_path / "t_%LL_%FL.safetensors")
    method = Cacheback(leader_length=1, follower_length=2, frozen=pattern)
    method.check(Card())
    assert method.table.get((1,)) == [(2, 3)]
    wrong = Cacheback(leader_length=1, follower_length=2, frozen=str(tmp_path / "t_2_1.safetensors"))
    with pytest.raises(InputError, match=r"lengths \(2, 1\); expected \(1, 2\)"):
        wrong.check(Card())


def test_the_last_steps_tokens_and_the_engines_budget_limit_a_draft():
    method, drafter = started([9, 9, 9, 9, 7])
    drafter.observe(Step(7, (1, 2, 3, 7), (0, 1, 2), False))
    for token in range(100, 140):
        method.dynamic.put((7,), (token, token, 7))
    assert len(drafter.propose([7], 256)) == 90  # as saturated with four
    _, drafter = started(chaining_reserve=0)
    assert len(drafter.propose(PROMPT, 7)) == 6
    method, drafter = started([9, 9, 9, 9, 7])  # a budget of 12 of 96 tokens keeps 2 of the reserve's 16
    for token in range(100, 140):
        method.dynamic.put((7,), (token, token, 7))
    assert [len(drafter.propose([7], budget)) for budget in (2, 3, 8, 12)] == [0, 3, 6, 12]
