"""The suffix array and its queries against searches written out in plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import root_paths
from methods.parts.array_draft import COUNT, TOKEN, CountedTree
from methods.parts.suffix_array import CROSSING, END, SuffixArray, cut_paths, longest, take

TEXT = st.lists(st.integers(0, 3), max_size=40)
SPLIT = st.lists(st.integers(END, 2), max_size=40)  # with ends of texts in between
ALL = 10**6


def array_of(tokens, kind=np.int32) -> SuffixArray:
    return SuffixArray.build(np.array(tokens, kind))


def places(tokens, pattern) -> list[int]:
    """The places of ``pattern``, in the order of the suffixes there."""
    found = [i for i in range(len(tokens)) if tokens[i : i + len(pattern)] == list(pattern)]
    return sorted(found, key=lambda i: tokens[i:])


def search(tokens, tail, shortest) -> list[int]:
    for length in range(len(tail), shortest - 1, -1):
        if places(tokens, tail[len(tail) - length :]):
            return list(tail[len(tail) - length :])
    return []


def followers(tokens, pattern, length, borders=()) -> list[tuple]:
    """The tokens after each occurrence, in sorted order, cut at an end, and at a border if there
    are any.
    """
    found = []
    for place in places(tokens, pattern):
        start = place + len(pattern)
        stop = min((b for b in borders if b > start - 1), default=len(tokens))
        row = tokens[start : min(stop, start + length)]
        found.append(tuple(row[: row.index(END)] if END in row else row))
    return found


@given(st.lists(st.one_of(st.integers(END, 3), st.integers(0, 2**20)), max_size=60))
def test_order_is_the_sorted_order_of_all_suffixes(tokens):
    array = array_of(tokens)
    assert array.order.tolist() == sorted(range(len(tokens)), key=lambda i: tokens[i:])
    assert (len(array), array.nbytes()) == (len(tokens), 8 * len(tokens))


def test_many_distinct_tokens_and_few_of_many_matches():
    tokens = np.random.default_rng(0).permutation(70_000)
    array = array_of(tokens, np.uint32)
    assert (tokens[array.order] == np.arange(70_000)).all()
    # The wrong variant: the first 100 matches in sorted order never see what follows in nine of ten
    # places.
    tokens = [7, 1, 0] * 100 + [7, 9, 0] * 900
    array = array_of(tokens)
    assert array.tree([7], 1, 1, 1, 100, 12345).nodes[TOKEN].tolist() == [9]
    assert array.tree([7], 1, 1, 1, 100, None).nodes[TOKEN].tolist() == [1]
    assert array.vote([7], 1, 2, 100, 12345).nodes[TOKEN].tolist() == [9, 0]


@given(TEXT, st.lists(st.integers(0, 4), max_size=6), st.integers(1, 3))
def test_the_longest_suffix_equals_a_search(tokens, tail, shortest):
    for kind in (np.int32, np.uint16):
        array, found = array_of(tokens, kind), search(tokens, tail, shortest)
        length, start, end = longest(array.tokens, array.order, np.array(tail, np.int64), shortest)
        assert length == len(found)
        assert array.order[start:end].tolist() == (places(tokens, found) if found else [])


def prefixes(tree: CountedTree) -> list[tuple]:
    """(path, count) of each node."""
    tokens, parents, counts = tree.nodes.tolist()
    return list(zip(root_paths(tokens, parents), counts, strict=True))


@given(
    SPLIT, st.lists(st.integers(0, 2), max_size=4), st.integers(1, 4), st.integers(0, 30), st.data()
)
def test_tree_equals_counting_all_prefixes(tokens, tail, depth, room, data):
    """Order: count, depth, first seen in sorted order, which is the order in which a Counter met
    them.
    """
    inner = (
        data.draw(st.sets(st.integers(1, max(1, len(tokens) - 1)), max_size=4))
        if len(tokens) > 1
        else set()
    )
    borders = data.draw(st.sampled_from([(), (0, *sorted(inner), len(tokens))])) if tokens else ()
    found = search(tokens, tail, 1)
    rows = followers(tokens, found, depth, borders) if found else []
    counts = Counter(row[:n] for row in rows for n in range(1, len(row) + 1))
    wanted = sorted(counts.items(), key=lambda item: (-item[1], len(item[0])))[:room]
    given_borders = np.array(borders, np.int64) if borders else CROSSING
    tree = array_of(tokens).tree(tail, 1, depth, room, ALL, 0, given_borders)
    # where texts may not be crossed, what stands behind a border still sorts the hits
    if not borders:
        assert prefixes(tree) == wanted
    assert sorted(count for _, count in prefixes(tree)) == sorted(count for _, count in wanted)
    assert all(counts[path] == count for path, count in prefixes(tree))
    assert (tree.matched, tree.found) == (len(found), len(rows))
    assert all(0 < score <= 1 for score in tree.to_draft(0).score or ())


# few distinct tokens, so many equal continuations
FEW = st.lists(st.integers(END, 1), min_size=10, max_size=60)


@given(FEW, st.lists(st.integers(0, 1), max_size=2), st.integers(1, 4))
def test_votes_equal_counting(tokens, tail, length):
    found = search(tokens, tail, 1)
    where = places(tokens, found) if found else []
    rows = dict(zip(where, followers(tokens, found, length), strict=True)) if found else {}
    counts = Counter(row for row in rows.values() if row)
    whole = max(rows, key=lambda place: (counts[rows[place]], place), default=None)
    array = array_of(tokens)
    got = array.vote(tail, 1, length, ALL)
    voted = tuple(got.nodes[TOKEN])
    assert voted == (rows[whole] if counts else ())
    agree = [sum(row[:n] == voted[:n] for row in rows.values()) for n in range(1, len(voted) + 1)]
    assert got.nodes[COUNT].tolist() == agree
    path: tuple = ()
    while True:
        here = {
            place: row[: len(path) + 1] for place, row in rows.items() if row[: len(path)] == path
        }
        steps = Counter(row for row in here.values() if len(row) > len(path))
        if not steps:
            break
        path = here[max(here, key=lambda place: (steps[here[place]], place))]
    assert tuple(array.vote(tail, 1, length, ALL, 0, False).nodes[TOKEN]) == path


@given(st.integers(1, 50), st.integers(1, 60))
def test_a_share_is_distinct_and_every_row_is_as_likely(count, most):
    order = np.arange(100, 100 + count)
    draws = np.linspace(0, 2**31 - 1, 400).astype(int).tolist()
    seen: Counter = Counter()
    for draw in draws:
        taken = take(order, 0, count, 5, most, False, draw).tolist()
        assert taken == sorted(set(taken))
        assert len(taken) == min(count, most)
        assert set(taken) <= set(range(105, 105 + count))
        seen.update(taken)
    share = len(draws) * min(1, most / count)
    assert all(abs(seen[place] - share) <= max(10, count) for place in range(105, 105 + count))
    assert take(order, 0, count, 5, most, True, 7).tolist() == list(
        range(105, 105 + min(count, most))
    )


def test_it_owns_its_tokens_and_reads_nothing_else():
    tokens = np.array([1, 2, 3, 1, 2, 4], np.int32)
    array = SuffixArray.build(tokens)
    tokens[:] = 0
    assert array.tree([1, 2], 1, 1, 2, ALL).nodes[TOKEN].tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        array.tokens[0] = 1
    array = SuffixArray(np.array([1, 2, 3], np.int32), np.array([-5, 10**6, 2], np.int32))
    assert array.tree([1, 2], 1, 3, 8, 10).nodes.size == 0
    assert array.vote([3], 1, 3, 10).nodes.size == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10)), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_cut_keeps_a_tree_within_the_budget_of_distinct_tokens(nodes, choices):
    tokens = [token for token, _ in nodes]
    parents = [above % (place + 1) - 1 for place, (_, above) in enumerate(nodes)]
    tree = CountedTree(np.array([tokens, parents, [1] * len(nodes)]), 1)
    paths = [path for path, _ in prefixes(tree)]
    costs = [len(set(path)) for path in paths]
    kept = list(range(len(nodes)))
    for node in sorted(kept, key=lambda node: (-costs[node], -node)):
        if sum(costs[other] for other in kept) > choices:
            kept.remove(node)
    found = cut_paths(tree, choices)
    assert found.tolist() == kept
    part = tree.part(found)
    assert [path for path, _ in prefixes(part)] == [paths[node] for node in kept]
