"""SuffixDecoding: its suffix tree against counting, and what is drafted from it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods.parts.suffix_automaton import EDGES, STATES, find
from methods.suffix_decoding import (
    GLOBAL,
    LOCAL,
    Limits,
    SuffixDecoding,
    SuffixTree,
    Text,
)
from methods.suffix_decoding import choose as compiled
from specbench.types import Prefill

# 5 came after 6: the more recent of equals is 5
TEXTS = [[1, 2, 3, 4, 6], [1, 2, 3, 4, 5], [1, 2, 3, 7]]
CONTEXT = [9, 1, 2, 3]


def tree_of(texts, depth=64, ties="recent") -> SuffixTree:
    tree = SuffixTree(depth, 1, ties)
    for text in texts:
        tree.extend(Text(), text)
    return tree


class Listed(NamedTuple):
    """A ``CountedTree`` in lists."""

    tokens: list[int]
    parents: list[int]
    counts: list[int]
    taken: int


def probs(found: Listed) -> list[Fraction]:
    """Of each node given the match."""
    return [Fraction(count, found.taken) for count in found.counts]


def likeliest(texts, context, factor=1.0, shape="path", ties="recent"):
    limits = Limits(16, factor, 0.0, 0.1, 64, shape == "tree")
    return choose(tree_of(texts, ties=ties), Text(), context, limits)


def choose(tree: SuffixTree, text: Text, context: list[int], limits: Limits) -> Listed:
    nodes = np.empty((3, limits.nodes), np.int64)
    size, _, of = compiled(
        *tree._arrays, text.place, np.array(context, np.int32), *limits, nodes, 0, 1
    )
    return Listed(*nodes[:, :size].tolist(), of)


@pytest.mark.parametrize(
    ("factor", "shape", "tokens", "parents", "score"),
    [
        (1.0, "path", [4, 5], [-1, 0], 1),
        (1.0, "tree", [4, 7, 5], [-1, -1, 0], Fraction(4, 3)),
        (4.0, "tree", [4, 7, 5, 6], [-1, -1, 0, 0], Fraction(5, 3)),
    ],
)
def test_examples_of_the_reference(factor, shape, tokens, parents, score):
    found = likeliest(TEXTS, CONTEXT, factor, shape)
    assert (found.tokens, found.parents) == (tokens, parents)
    assert sum(probs(found)) == score
    assert probs(found) == [Fraction(2, 3), *[Fraction(1, 3)] * (len(tokens) - 1)]


@pytest.mark.parametrize(
    ("text", "reference", "recent"),
    [
        ([1, 5, 1, 6, 1], 5, 6),  # once each: a new child is the list's last
        # 6 was alone in its group: it moves before the group ahead
        ([1, 5, 1, 6, 1, 5, 1, 6, 1], 6, 6),
        # 7 | 5 6; 5 leads and moves before 7; then 6 leads
        ([1, 5, 1, 6, 1, 7, 1, 7, 1, 5, 1, 6, 1], 6, 6),
        # 7 | 5 6: 6 is not the first of its group, so it goes behind 7
        ([1, 5, 1, 6, 1, 7, 1, 7, 1, 6, 1], 7, 6),
    ],
)
def test_equals_have_the_references_order_or_the_most_recent_comes_first(text, reference, recent):
    for ties, wanted in (("reference", reference), ("recent", recent)):
        assert likeliest([text], [0, 1], ties=ties).tokens == [wanted]


def test_a_tree_built_anew_knows_what_occurred_last():
    """The older text saw 1 after the newer one saw 3."""
    tree, older, newer = SuffixTree(8, 1), Text(), Text()
    others = [Text(), Text()]
    for other in others:
        tree.extend(other, [*range(20, 40)])
    for text, new in ((older, [2]), (newer, [2, 3]), (older, [1])):
        tree.extend(text, new)
    for other in others:
        tree.remove(other)
    assert (tree._gone, tree._arrays.meta[EDGES] < 20) == (0, True)
    found = choose(tree, Text(), [0, 2], Limits(16, 1.0, 0.0, 0.1, 8, True))
    assert (found.tokens, found.counts, found.taken) == ([1], [1], 2)


class _Trie:
    """Every string of up to ``depth`` tokens with its children in ArcticInference's order, which
    move by one count at a time.
    """

    def __init__(self, depth):
        self.depth, self.siblings, self.grown = depth, {}, []

    def add(self, number, text, new):
        text.extend(new)
        self.grown.append((number, new))
        self.count(text, len(text) - len(new), 1)

    def count(self, text, start, by):
        for end in range(start + 1, len(text) + 1):
            for length in range(1, min(self.depth, end) + 1):
                string = tuple(text[end - length : end])
                counts = self.siblings.setdefault(string[:-1], {})
                order = list(counts)
                place, old = (
                    (order.index(string), counts[string]) if string in counts else (len(order), 0)
                )
                head = next((at for at, each in enumerate(order) if counts[each] == old), place)
                ahead = next((at for at, each in enumerate(order) if counts[each] == old + 1), head)
                behind = [each for each in order[place + 1 :] if counts[each] < old]
                order = [each for each in order if each != string]
                if by > 0:
                    order.insert(ahead if place == head and old else head, string)
                elif old > 1:
                    order.insert(len(order) - len(behind), string)
                self.siblings[string[:-1]] = {
                    each: counts.get(each, 0) + by * (each == string) for each in order
                }

    def remove(self, number, anew):
        """anew: that the tree forgets, too, when what was removed stood there."""
        gone = [token for other, new in self.grown if other == number for token in new]
        self.count(gone, 0, -1)
        self.grown = [each for each in self.grown if each[0] != number]
        if anew:
            kept, self.grown, self.siblings, stored = self.grown, [], {}, {}
            for each, new in kept:
                self.add(each, stored.setdefault(each, []), new)


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)
events = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(tokens, tokens, tokens, st.none())),
    min_size=1,
    max_size=9,
)


@given(st.integers(2, 6), events)
def test_counts_and_their_order_equal_a_trie(depth, happened):
    """After texts 0 to 2 grew in turn or were removed (None); the order of equals that is our own
    is the twin's.
    """
    tree, trie, texts, stored = SuffixTree(depth, 1, "reference"), _Trie(depth), {}, {}
    for number, new in happened:
        if new is not None:
            tree.extend(texts.setdefault(number, Text()), new)
            trie.add(number, stored.setdefault(number, []), new)
        elif number in texts:
            tree.remove(texts.pop(number))
            trie.remove(number, tree._gone == 0)
            del stored[number]
    arrays = tree._arrays
    for string, children in trie.siblings.items():
        if not string or not children:  # nothing is drafted from the root
            continue
        state = 0
        for token in string:
            state = int(arrays.edges[find(arrays, state, token)]["target"])
        listed, edge = {}, int(arrays.states[state]["head"])
        while edge >= 0:
            if count := int(arrays.states[arrays.edges[edge]["target"]]["count"]):
                listed[*string, int(arrays.edges[edge]["token"])] = count
            edge = int(arrays.edges[edge]["next"])
        assert list(listed.items()) == list(children.items())


def test_memory_budget_and_length():
    tokens = np.random.default_rng(0).integers(0, 50, 3000).tolist()
    for depth in (2, 64):
        tree = tree_of([tokens], depth)
        assert tree._arrays.meta[STATES] <= 2 * len(tokens)
        assert tree._arrays.meta[EDGES] <= 3 * len(tokens)
    prompt = [*range(1, 40), *range(1, 30)]

    def count(budget=64, **options):
        return len(begin(bound(**options), prompt, 30).propose([*prompt, 30], budget))

    assert count() == 16
    assert count(num_draft=4) == 4
    assert count(budget=3) == 3
    assert count(factor=0.1) == 3  # of the 30 tokens matched
    assert count(depth=4, offset=1.0) == 2  # 2 tokens matched and 2 drafted are a string of 4


def begin(method, prompt, first):
    return method.begin(prompt, Prefill(first), 0)


def bound(**options) -> SuffixDecoding:
    method = SuffixDecoding(**options)
    method.bind(None)
    method.reset()
    return method


def test_a_draft_has_the_tree_that_it_is_from_and_its_nodes_chances():
    """The match that is the context's own end counts too, as in the reference: 3 has 1 of 2."""
    draft = begin(bound(), [1, 2, 3, 1], 2).propose([1, 2, 3, 1, 2], 64)
    assert (list(draft.tokens), draft.source, draft.score) == ([3, 1], [LOCAL, LOCAL], [0.5, 1.0])
    method = bound()
    begin(method, [5, 6, 7, 8], 1).finish([5, 6, 7, 8, 1, 2, 3, 4])
    after = begin(method, [9, 1], 2).propose([9, 1, 2], 64)
    assert (list(after.tokens), after.source) == ([3, 4], [GLOBAL, GLOBAL])
    assert method.state_bytes() > 0
    method.reset()
    assert not begin(method, [9, 1], 2).propose([9, 1, 2], 64)
    method = bound(global_tree=False)
    begin(method, [5], 1).finish([5, 1, 2, 3])
    assert method.state_bytes() == 0


def test_concurrent_requests_share_their_answers():
    method = bound()
    one, other = begin(method, [8], 1), begin(method, [9, 1], 2)
    one.propose([8, 1], 64)
    one.propose([8, 1, 2, 3], 64)
    assert list(other.propose([9, 1, 2], 64).tokens) == [3]


def test_an_evicted_answer_leaves_nothing_behind():
    method = bound(cached_requests=1)
    old = begin(method, [7], 1)
    old.propose([7, 1], 64)
    begin(method, [0], 1).finish([0, 1, 2, 3])
    assert list(old.propose([7, 1, 9, 1, 2], 64).tokens) == [3]
    old.finish([7, 1, 9, 1, 2, 3, 8])
    assert len(method.answers.texts) == 1
    method = bound(cached_requests=2)
    for number in range(50):
        begin(method, [0], 1).finish([0, *(number * 7 + place for place in range(20))])
    assert method.answers._arrays.meta[STATES] <= 2 * 6 * 20
    kept = begin(method, [9, 343], 344).propose([9, 343, 344], 64)
    assert list(kept.tokens) == [345, 346]
