"""Prompt lookup against integer examples worked out from each reference, and against a plain search."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.pld import PromptLookup
from specbench.types import InputError, Prefill


def draft(context, max_ngram, num_draft, rule):
    drafter = PromptLookup(max_ngram, num_draft, rule).begin([], Prefill(0), 0)
    return list(drafter.propose(context, 64).tokens)


@pytest.mark.parametrize(
    ("context", "rule", "max_ngram", "num_draft", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], "original", 3, 10, []),
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], "original", 3, 4, [4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], "hf", 2, 10, [4, 5, 6, 7, 8, 1, 2, 3]),
        ([7, 7, 7, 7], "original", 3, 3, [7, 7, 7]),
        ([7, 7, 7, 7], "original", 3, 10, []),
        ([7, 7, 7, 7], "hf", 2, 10, [7, 7]),
        ([5, 1, 9, 5, 1, 8, 5, 1], "original", 3, 1, [9]),
        ([5, 1, 9, 5, 1, 8, 5, 1], "hf", 2, 2, [9, 5]),
        ([5, 1, 9, 5, 1, 8, 5, 1], "recent", 2, 2, [8, 5]),
        ([5], "hf", 2, 2, []),
        ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], "original", 3, 4, [9, 1, 2, 3]),
        ([7, 3, 5, 1, 2, 3], "original", 3, 4, [5, 1, 2, 3]),
        ([7, 3, 5, 1, 2, 3], "original", 3, 5, []),  # too short a tail
        ([1, 2, 3], "original", 3, 10, []),
    ],
)
def test_integer_examples(context, rule, max_ngram, num_draft, expected):
    assert draft(context, max_ngram, num_draft, rule) == expected


def by_search(x, max_ngram, k, rule):
    """The references' loops, written as they describe them: every start, every n, no index."""
    for n in range(min(max_ngram, len(x) - 1), 0, -1):
        starts = [i + n for i in range(len(x) - n) if x[i : i + n] == x[-n:]]
        for start in reversed(starts) if rule == "recent" else starts:
            if rule == "original":
                if start + k <= len(x) and start < len(x) - n:
                    return x[start : start + k]
            else:
                return x[start : start + k]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 6), st.data())
@settings(max_examples=300, deadline=None)
def test_index_equals_search_at_every_length(tokens, max_ngram, k, data):
    for rule in ("original", "hf", "recent"):
        drafter = PromptLookup(max_ngram, k, rule).begin([], Prefill(0), 0)
        length = data.draw(st.integers(1, len(tokens)))
        while length <= len(tokens):
            context = tokens[:length]
            assert list(drafter.propose(context, 64).tokens) == by_search(context, max_ngram, k, rule)
            length += data.draw(st.integers(1, 5))


def test_budget_is_kept():
    drafter = PromptLookup(2, 10, "hf").begin([], Prefill(0), 0)
    assert list(drafter.propose([1, 2, 3, 4, 1, 2], 1).tokens) == [3]


def test_bad_parameter_names_itself():
    with pytest.raises(InputError, match="max_ngram=0"):
        PromptLookup(max_ngram=0)
