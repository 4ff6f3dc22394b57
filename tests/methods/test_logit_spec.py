"""LogitSpec against the integer example of its reference, its retrieval against the reference's
pool written out.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.logit_spec import LogitSpec, _find_behind
from specbench.types import InputError, Prefill, Step, TopK

TEXT, RANKED = [1, 2, 3, 4, 1, 2], [3, 2, 5, 1]


def top(*rows: list[int]) -> TopK:
    return TopK(torch.tensor(rows), torch.zeros(len(rows), len(rows[0])))


def started(ranked=RANKED, **options):
    options = {"max_ngram": 2, "num_draft": 3, "capacity": 12} | options
    return LogitSpec(**options).begin(TEXT, Prefill(ranked[0], topk=top(ranked)), 0)


def branches(draft) -> list[list[int]]:
    """The tokens of every path from the root to a leaf, in order."""
    inner = set(draft.parents)
    found = []
    for leaf in range(len(draft)):
        path, node = [], leaf
        while node != -1:
            path.append(draft.tokens[node])
            node = draft.parents[node]
        if leaf not in inner:
            found.append(path[::-1])
    return found


def test_branches_of_the_reference():
    draft = started().propose([*TEXT, 3], 64)
    assert branches(draft) == [[4, 1, 2], [2, 3, 4, 1], [5], [1, 2, 3]]
    assert len(draft) == 11
    assert list(draft.source) == [0, 0, 0, 1, 2, 2, 2, 1, 1, 2, 2]
    # The wrong variant: plain retrieval behind the next token.
    draft = started(ranked=[3]).propose([*TEXT, 3], 64)
    assert branches(draft) == [[4, 1, 2]]
    draft = started().propose([*TEXT, 5], 64)
    assert branches(draft) == [[3, 4, 1, 2], [2, 3, 4, 1], [1, 2, 3]]
    drafter = started(ranked=[3, 2, 1, 4], ranks=[1, 2], lengths=[4, 2, 1], capacity=64)
    assert branches(drafter.propose([*TEXT, 3], 64))[1:] == [[2, 3, 4, 1], [1, 2], [4]]
    assert branches(started().propose([*TEXT, 3], 5)) == [[4, 1, 2], [2, 3]]
    assert branches(started().propose([*TEXT, 3], 2)) == [[4, 1]]


def test_merged_branches_and_the_ranking_of_the_last_accepted_node():
    ranked, text = [9, 4, 2, 5, 1], [*TEXT, 9, 4, 1, 2, 7]
    options = {"max_ngram": 2, "num_draft": 3, "capacity": 12}
    merged, plain = (
        LogitSpec(merge=merge, **options)
        .begin(text, Prefill(9, topk=top(ranked)), 0)
        .propose([*text, 9], 64)
        for merge in (True, False)
    )
    assert branches(plain) == [[4, 1, 2], [4, 1, 2, 7], [2, 9, 4, 1]]
    assert branches(merged) == [[4, 1, 2, 7], [2, 9, 4, 1], [5], [1, 2]]
    assert list(merged.source) == [0, 0, 0, 2, 1, 2, 2, 2, 1, 1, 2]
    assert len(merged) == len(plain) == 11
    drafter = started()
    drafter.propose([*TEXT, 3], 64)
    rows = [[8, 8, 8, 8]] * 12
    rows[2] = [2, 5, 1, 4]  # row 2 is node 1: the second accepted
    drafter.observe(Step(3, (4, 1, 2), (0, 1), False, topk=top(*rows)))
    assert branches(drafter.propose([*TEXT, 3, 4, 1, 2], 64))[1][0] == 5
    drafter.observe(Step(2, (7,), (), False, topk=top([7, 6, 0, 0], *rows)))
    assert [6] in branches(drafter.propose([*TEXT, 3, 4, 1, 2, 7], 64))


def pool_of(text, max_ngram, num_draft):
    """The reference's pool: a later continuation replaces an earlier one that is no longer than
    it.
    """
    pool: dict = {}
    for start in range(len(text)):
        for end in range(start + 1, min(start + max_ngram, len(text) - 1) + 1):
            gram, follows = tuple(text[start:end]), text[end : end + num_draft]
            if len(follows) >= len(pool.get(gram, ())):
                pool[gram] = follows
    return pool


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=40),
    st.integers(1, 3),
    st.integers(1, 6),
    st.data(),
)
def test_index_equals_the_pool_at_every_length(text, max_ngram, num_draft, data):
    drafter = started([0], max_ngram=max_ngram, num_draft=num_draft)
    length = data.draw(st.integers(1, len(text) - 1))
    while length < len(text):
        drafter.propose(text[: length + 1], 64)  # the root is not retrieved from
        table, ids = drafter._table.rows, np.array(text[: length + 1], np.int32)
        pool = pool_of(text[:length], max_ngram, num_draft)
        for n in range(1, max_ngram + 1):
            for gram in itertools.product(range(4), repeat=n):
                first, end = _find_behind(table, ids, np.array(gram, np.int32), num_draft)
                known = next((gram[-m:] for m in range(n, 0, -1) if gram[-m:] in pool), None)
                assert ids[first:end].tolist() == (pool[known] if known else [])
        length += data.draw(st.integers(1, 5))


def test_no_more_tokens_are_ranked_than_there_are():
    class Target:
        vocab_size, max_nodes = 40, 256

    method = LogitSpec()
    assert method.needs.node_topk == 64
    method.bind(Target())
    assert method.needs.node_topk == 40
    Target.max_nodes = 16
    with pytest.raises(
        InputError,
        match=r"capacity=64: a draft has up to 63 nodes; expected at most engine\.max_nodes=16",
    ):
        method.bind(Target())
