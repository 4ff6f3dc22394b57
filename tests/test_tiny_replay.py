"""The replay that the model card uses drafts what the method ``pld`` drafts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from methods.pld import PromptLookup
from specbench.types import Prefill
from tiny.replay import accepted_lengths, lookup


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(1, 3), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_lookup_is_the_methods(context, longest, count):
    drafter = PromptLookup(longest, count, "original").begin([], Prefill(0), 0)
    assert lookup(context, longest, count) == list(drafter.propose(context, 64).tokens)


def test_accepted_lengths_by_hand():
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert accepted_lengths(prompt, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 99]) == [11, 1]
