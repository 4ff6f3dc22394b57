"""SuffixDecoding on answers and prompts: its two trees, evictions, scores that are equal; errors."""

from __future__ import annotations

import pytest

from methods.parts.suffix_automaton import STATES
from methods.suffix_decoding import GLOBAL, LOCAL, SuffixDecoding
from specbench.types import Prefill


def begin(method, prompt, first):
    return method.begin(prompt, Prefill(first), 0)


def bound(**options) -> SuffixDecoding:
    method = SuffixDecoding(**options)
    method.bind(None)
    method.reset()
    return method


@pytest.mark.parametrize(
    ("prompt", "routes"),
    [
        ([2, 3, 2, 3, 2, 2, 3, 2, 3, 3, 2, 2, 3, 2, 1, 2], {(3,), (3, 2), (2,)}),
        ([2, 1, 2, 1, 2, 1, 2], {(1,), (1, 2), (1, 2, 1), (1, 2, 1, 2)}),  # worth 2, as what 1 token drafts
    ],
)
def test_equal_scores_are_equal(prompt, routes):
    draft = begin(bound(shape="tree", factor=3.0), prompt[:-1], prompt[-1]).propose(prompt, 64)
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert set(found) == routes


def test_of_equals_the_more_recent_is_drafted_after_an_eviction():
    """Of 2 1, 2 1, 2 3 the first goes: 1 and 3 follow 2 once each, and 3 did later."""
    method = bound(cached_requests=3)
    for token in (1, 1, 3):
        begin(method, [9], 2).finish([9, 2, token])
    assert list(begin(method, [9], 2).propose([9, 2], 64).tokens) == [3]


def test_local_tree_counts_the_context_itself():
    """The match that is the context's own end counts too, as in the reference: 3 has 1 of 2."""
    draft = begin(bound(), [1, 2, 3, 1], 2).propose([1, 2, 3, 1, 2], 64)
    assert list(draft.tokens) == [3, 1]
    assert draft.source == [LOCAL, LOCAL]
    assert draft.score == [0.5, 1.0]


def test_global_tree_holds_answers_and_no_prompt():
    method = bound()
    begin(method, [5, 6, 7, 8], 1).finish([5, 6, 7, 8, 1, 2, 3, 4])
    after = begin(method, [9, 1], 2).propose([9, 1, 2], 64)
    assert (list(after.tokens), after.source) == ([3, 4], [GLOBAL, GLOBAL])
    assert not begin(method, [9, 5], 6).propose([9, 5, 6], 64)  # was prompt
    assert method.state_bytes() > 0
    method.reset()
    assert not begin(method, [9, 1], 2).propose([9, 1, 2], 64)


def test_a_live_answer_helps_another_request():
    method = bound()
    one, other = begin(method, [8], 1), begin(method, [9, 1], 2)
    one.propose([8, 1], 64)
    one.propose([8, 1, 2, 3], 64)
    assert list(other.propose([9, 1, 2], 64).tokens) == [3]


def test_local_wins_ties():
    method = bound()
    begin(method, [0], 1).finish([0, 1, 5])
    begin(method, [0], 1).finish([0, 1, 6])
    local = begin(method, [1, 3, 8], 1).propose([1, 3, 8, 1], 64)
    assert (list(local.tokens), local.source) == (
        [3],
        [LOCAL],
    )  # 1 of 2 here; 1 of 3 in all answers, of which this is one
    method = bound()
    begin(method, [0], 1).finish([0, 1, 5])
    tied = begin(method, [1, 3, 8], 1).propose([1, 3, 8, 1], 64)
    assert (list(tied.tokens), tied.source) == ([3], [LOCAL])  # both 1 of 2
    assert list(tied.tokens) != [5]  # what a tie to the global tree would give


def test_without_a_global_tree():
    method = bound(global_tree=False)
    begin(method, [5], 1).finish([5, 1, 2, 3])
    assert not begin(method, [9, 1], 2).propose([9, 1, 2], 64)
    assert method.state_bytes() == 0


def test_the_oldest_answer_goes_first():
    method = bound(cached_requests=2)
    begin(method, [0], 1).finish([0, 1, 2, 3])
    begin(method, [0], 4).finish([0, 4, 5, 6])
    assert list(begin(method, [9, 4], 5).propose([9, 4, 5], 64).tokens) == [6]  # the newest is this request's
    assert not begin(method, [9, 1], 2).propose([9, 1, 2], 64)
    assert len(method.answers.texts) == 2


def test_an_evicted_request_goes_on():
    method = bound(cached_requests=1)
    old = begin(method, [7], 1)
    old.propose([7, 1], 64)
    begin(method, [0], 1).finish([0, 1, 2, 3])
    assert list(old.propose([7, 1, 9, 1, 2], 64).tokens) == [3]
    old.finish([7, 1, 9, 1, 2, 3, 8])
    assert len(method.answers.texts) == 1


def test_removed_texts_do_not_pile_up():
    method = bound(cached_requests=2)
    for number in range(50):
        begin(method, [0], 1).finish([0, *(number * 7 + place for place in range(20))])
    assert method.answers._arrays.meta[STATES] <= 2 * 6 * 20
    kept = begin(method, [9, 343], 344).propose([9, 343, 344], 64)
    assert list(kept.tokens) == [345, 346]


def test_budget_and_length():
    prompt = [*range(1, 40), *range(1, 30)]

    def count(budget=64, **options):
        return len(begin(bound(**options), prompt, 30).propose([*prompt, 30], budget))

    assert count() == 16
    assert count(num_draft=4) == 4
    assert count(budget=3) == 3
    assert count(factor=0.1) == 3  # of the 30 tokens matched
    assert count(depth=4, offset=1.0) == 2  # 2 tokens matched and 2 drafted are a string of 4
