"""Cacheback against the integer examples of the reference; FIFO in place of LRU is shown to fail
them.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_models import begin
from methods.cacheback import Cacheback, FrozenTable, build_frozen_table
from methods.parts import gram_table
from methods.parts.gram_table import GramTable, find, move, new_row, recent
from specbench.types import InputError
from twins.trees import Table

PROMPT = [5, 1, 2, 3, 4, 1, 2, 6, 7, 1, 2, 3, 4]


def frozen_from(entries: dict[tuple, list[tuple]]) -> FrozenTable:
    leaders = sorted(entries)
    followers = [gram for leader in leaders for gram in entries[leader]]
    offsets = np.cumsum([0, *(len(entries[leader]) for leader in leaders)])
    return FrozenTable(np.array(leaders, np.uint16), offsets, np.array(followers, np.uint16))


def started(prompt=PROMPT, frozen=None, **options):
    """A request whose prompt and first token are ``prompt``."""
    method = Cacheback(tables="dual" if frozen else "dynamic", **options)
    method.use_table(frozen)
    return method, begin(method, prompt)


def followers(table: GramTable, leader: int) -> list[tuple]:
    return list(map(tuple, table.list_followers([leader], 99).tolist()))


def contents(table: GramTable) -> dict:
    return {leader: found for leader in range(10) if (found := followers(table, leader))}


def put(table: GramTable, *gram: int) -> None:
    table.put(np.array(gram, np.int32))


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


def test_prompt_and_steps_fill_the_table(monkeypatch):
    method, _ = started()
    assert contents(method.dynamic) == WANTED
    method, drafter = started()
    drafter.finish([*PROMPT, 1, 2])
    assert contents(method.dynamic)[2][0] == (3, 4, 1)
    assert contents(method.dynamic)[3][0] == (4, 1, 2)

    # The wrong variant: a follower that is put again must become most recent.
    def put_first_in_first_out(table, text, start, lead, width, stride, leaders, most):
        for window in range(start, len(text) - width + 1):
            owner = gram_table.touch(table, 0, text, window, lead, leaders, width - lead)
            if find(table, owner, text, window + lead, width - lead) < 0:
                row = new_row(table, owner, text, window + lead, width - lead)
                move(table, row, int(table[owner, gram_table.HEAD]), False, True)
        return len(text) - width + 1

    monkeypatch.setattr(gram_table, "put", put_first_in_first_out)
    method, _ = started()
    assert contents(method.dynamic) != WANTED


FROZEN = {(4,): [(9, 9, 9), (3, 3, 3)]}


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
        put(method.dynamic, 7, token, token, 7)
    drafter._fed = 1 - uncached
    return drafter.propose([7], 256)


@pytest.mark.parametrize(
    ("uncached", "first", "all_"), [(1, 26, 93), (2, 26, 93), (3, 25, 93), (4, 25, 90)]
)
def test_saturated_levels(uncached, first, all_):
    draft = saturated(uncached)
    assert (sum(parent == -1 for parent in draft.parents), len(draft)) == (first, all_)
    assert saturated(uncached, accounting="kept").tokens == saturated(1).tokens


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 4)), max_size=80))
def test_lru_table_against_lists(operations):
    table, lists = GramTable(1, 1, 3, 2), Table(3, 2, {})
    for is_get, leader, follower in operations:
        if is_get:
            recent(table.rows, np.array([leader], np.int32))
            assert followers(table, leader) == lists.get((leader,))
        else:
            put(table, leader, follower)
            lists.put((leader,), (follower,))
    # rows of what was dropped are used again
    assert table.nbytes() <= (3 + 3 * 2) * table.rows[0].nbytes


def test_a_frozen_table_keeps_the_most_frequent_and_a_file_keeps_the_table(tmp_path):
    documents = [np.array([1, 2, 3, 1, 2, 3, 1, 2, 4]), np.array([1, 2])]
    table = build_frozen_table(documents, 1, 1, leader_capacity=2, follower_capacity=1)
    table.save(tmp_path / "t.safetensors", 10)
    loaded = FrozenTable.load(tmp_path / "t.safetensors", 10, "key")
    for each in (table, loaded):
        assert [each.get((leader,)) for leader in (1, 2, 3)] == [[(2,)], [(3,)], []]
        assert each.nbytes() == 2 * 2 + 3 * 4 + 2 * 2


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=4),
    st.integers(1, 2),
    st.integers(1, 2),
)
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


def test_a_missing_table_and_one_of_other_lengths_are_refused_and_a_pattern_finds_the_right_one(
    tmp_path,
):
    card = SimpleNamespace(name="m", tokenizer=range(10))
    with pytest.raises(InputError, match="specbench build frozen_table"):
        Cacheback().check(card)
    documents = [np.array([1, 2, 3, 4, 5, 6])]
    for lead, follow in ((1, 1), (1, 2), (2, 1)):
        build_frozen_table(documents, lead, follow).save(
            tmp_path / f"t_{lead}_{follow}.safetensors", 10
        )
    pattern = str(tmp_path / "t_%LL_%FL.safetensors")
    method = Cacheback(leader_length=1, follower_length=2, frozen=pattern)
    method.check(card)
    assert method.table.get((1,)) == [(2, 3)]
    wrong = Cacheback(
        leader_length=1, follower_length=2, frozen=str(tmp_path / "t_2_1.safetensors")
    )
    with pytest.raises(InputError, match=r"lengths \(2, 1\); expected \(1, 2\)"):
        wrong.check(card)


def test_the_engines_budget_limits_a_draft():
    _, drafter = started(chaining_reserve=0)
    assert len(drafter.propose(PROMPT, 7)) == 6
    # a budget of 12 of 96 tokens keeps 2 of the reserve's 16
    method, drafter = started([9, 9, 9, 9, 7])
    for token in range(100, 140):
        put(method.dynamic, 7, token, token, 7)
    assert [len(drafter.propose([7], budget)) for budget in (2, 3, 8, 12)] == [0, 3, 6, 12]
