"""Prompt lookup against integer examples worked out from each reference, and against a plain
search.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods.pld import PromptLookup
from specbench.types import Prefill
from twins.chains import pld
from twins.loop import Request

RULES = ("original", "hf", "recent", "ngram_simple", "ngram_cache")


def draft(context, max_ngram, num_draft, rule, min_ngram=1):
    drafter = PromptLookup(max_ngram, num_draft, rule, min_ngram).begin([], Prefill(0), 0)
    return list(drafter.propose(context, 64).tokens)


@pytest.mark.parametrize(
    ("context", "rule", "max_ngram", "num_draft", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], "original", 3, 4, [4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], "hf", 2, 10, [4, 5, 6, 7, 8, 1, 2, 3]),
        ([5, 1, 9, 5, 1, 8, 5, 1], "recent", 2, 2, [8, 5]),
        ([7, 3, 5, 1, 2, 3], "original", 3, 5, []),  # too short a tail
    ],
)
def test_integer_examples(context, rule, max_ngram, num_draft, expected):
    assert draft(context, max_ngram, num_draft, rule) == expected


@pytest.mark.parametrize(
    ("context", "max_ngram", "min_ngram", "num_draft", "rule", "expected"),
    [
        ([1, 2, 3, 4, 2, 3], 3, 2, 4, "hf", [4, 2, 3]),  # the example in vLLM's code
        ([99, 1, 2, 7, 8, 3, 4, 1, 2], 2, 2, 2, "ngram_simple", [7, 8]),  # llama.cpp's own test
        # it stands at the context's start
        ([1, 2, 7, 8, 3, 4, 5, 1, 2], 2, 2, 2, "ngram_simple", []),
        # of the latest only one token follows
        ([9, 8, 1, 2, 7, 8, 1, 2, 1, 2], 2, 2, 3, "ngram_simple", []),
        # 1 2 1 has once been followed by 3
        ([1, 2, 1, 3, 1, 2, 1], 4, 1, 2, "ngram_cache", [3, 1]),
        ([1, 2, 9, 1, 2, 9, 1, 2, 8, 5, 2], 1, 1, 1, "ngram_cache", [9]),  # two of three
        ([7, 1, 2, 9, 5, 7, 1, 2], 3, 1, 3, "ngram_cache", [9, 5, 7]),  # and enough for three
    ],
)
def test_integer_examples_of_servers(context, max_ngram, min_ngram, num_draft, rule, expected):
    assert draft(context, max_ngram, num_draft, rule, min_ngram) == expected


def simple_by_search(x, n, k):
    """llama.cpp's backward search over the tokens before the last one, which it holds apart."""
    stored, pattern = x[:-1], x[-n:]
    if len(stored) <= n + k + 1:
        return []
    for place in range(len(stored) - n - 1, 0, -1):
        if stored[place : place + n] == pattern:
            copied = stored[place + n : place + n + k]
            return copied if len(copied) >= n else []
    return []


def cache_by_search(x, longest, k, least=1):
    """llama.cpp's n-gram cache: one token at a time, counts taken anew for each."""
    drafted = []
    while len(drafted) < k:
        text, found = x + drafted, None
        for n in range(longest, least - 1, -1):
            if n > len(text):
                continue
            after = Counter(x[i + n] for i in range(len(x) - n) if x[i : i + n] == text[-n:])
            samples, percent = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}[n]
            if after.total() >= samples and 100 * max(after.values()) >= percent * after.total():
                found = after.most_common(1)[0][0]
                break
        if found is None:
            break
        drafted.append(found)
    return drafted


def search(rule, x, n, k, least):
    """The rule's loop as its reference describes it, without an index."""
    if rule == "ngram_simple":
        return simple_by_search(x, n, k)
    if rule == "ngram_cache":
        return cache_by_search(x, n, k, least)
    return [path[-1] for path in pld(n, k, rule, least)(Request([], []))(x, 0)]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 6),
    st.data(),
)
def test_index_equals_search_at_every_length(tokens, max_ngram, k, data):
    for rule in RULES:
        least = max_ngram if rule == "ngram_simple" else data.draw(st.integers(1, max_ngram))
        drafter = PromptLookup(max_ngram, k, rule, least).begin([], Prefill(0), 0)
        length = data.draw(st.integers(1, len(tokens)))
        while length <= len(tokens):
            context = tokens[:length]
            assert list(drafter.propose(context, 64).tokens) == search(
                rule, context, max_ngram, k, least
            )
            length += data.draw(st.integers(1, 5))


def test_budget_is_kept():
    drafter = PromptLookup(2, 10, "hf").begin([], Prefill(0), 0)
    assert list(drafter.propose([1, 2, 3, 4, 1, 2], 1).tokens) == [3]
