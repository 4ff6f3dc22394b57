"""SuffixDecoding against the integer examples of the reference and against a trie written out; wrong variants fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.parts.automaton_kernels import EDGES, STATES, find
from methods.parts.suffix_tree import Limits, SuffixTree, Text
from methods.suffix_decoding import GLOBAL, LOCAL, SuffixDecoding
from specbench.types import InputError, Prefill

TEXTS = [[1, 2, 3, 4, 6], [1, 2, 3, 4, 5], [1, 2, 3, 7]]  # 5 came after 6: the more recent of equals is 5
CONTEXT = [9, 1, 2, 3]


def tree_of(texts, depth=64) -> SuffixTree:
    tree = SuffixTree(depth, 1)
    for text in texts:
        tree.extend(Text(), text)
    return tree


def likeliest(texts, context, factor=1.0, shape="path", nodes=16, offset=0.0, least=0.1, depth=64):
    limits = Limits(nodes, factor, offset, least, depth, shape == "tree")
    return tree_of(texts, depth).likeliest(Text(), context, limits)


@pytest.mark.parametrize(
    ("factor", "shape", "tokens", "parents", "score"),
    [
        (1.0, "path", [4, 5], [-1, 0], 1.0),
        (1.0, "tree", [4, 7, 5], [-1, -1, 0], 4 / 3),
        (4.0, "tree", [4, 7, 5, 6], [-1, -1, 0, 0], 5 / 3),
    ],
)
def test_examples_of_the_reference(factor, shape, tokens, parents, score):
    found = likeliest(TEXTS, CONTEXT, factor, shape)
    assert (found.tokens, found.parents) == (tokens, parents)
    assert found.score == pytest.approx(score)
    assert found.probs == pytest.approx([2 / 3, *[1 / 3] * (len(tokens) - 1)])
    assert found.given_parents() == pytest.approx(
        [
            2 / 3 if parent < 0 and token == 4 else 1 / 3 if parent < 0 else 1 / 2
            for token, parent in zip(tokens, parents, strict=True)
        ]
    )


def test_of_equals_the_more_recent_is_drafted():
    assert likeliest([TEXTS[1], TEXTS[0], TEXTS[2]], CONTEXT).tokens == [4, 6]
    assert likeliest([[1, 5, 1, 6, 1, 5, 1, 6]], [0, 1]).tokens == [6]
    assert likeliest([[1, 6, 1, 5, 1, 5, 1, 6]], [0, 1]).tokens == [6]
    assert likeliest([[1, 6, 1, 6, 1, 5]], [0, 1]).tokens == [6]  # more often goes before more recently


def test_the_least_probability_bounds_the_whole_path():
    texts = [[1, 2, 3], [1, 2, 4], [1, 5], [1, 6]]  # 2 has 1/2, and below it 4 has 1/2 of that
    assert likeliest(texts, [0, 1], factor=4.0, least=0.25).tokens == [2, 4]
    assert likeliest(texts, [0, 1], factor=4.0, least=0.26).tokens == [2]
    assert likeliest(texts, [0, 1], factor=4.0, least=0.6).tokens == []


class _Trie:
    """Every string of up to ``depth`` tokens, counted in a dictionary; children most frequent, then most recent."""

    def __init__(self, depth):
        self.depth, self.counts, self.seen, self.clock = depth, {}, {}, 0

    def add(self, tokens, new, by=1):
        for token in new:
            tokens.append(token)
            self.clock += 1
            for length in range(1, min(self.depth, len(tokens)) + 1):
                string = tuple(tokens[-length:])
                self.counts[string] = self.counts.get(string, 0) + by
                self.seen[string] = self.clock

    def children(self, string):
        found = [other for other, count in self.counts.items() if count and other[:-1] == string]
        return sorted(found, key=lambda other: (-self.counts[other], -self.seen[other]))

    def draft(self, string, room, limits):
        """Of the reference's two loops the tree's; a path follows first children only."""
        tokens, parents, probs = [], [], []
        waiting = [(-1.0, -1, 0, string)]
        nodes = {}
        while waiting and len(tokens) < room:
            waiting.sort(key=lambda item: item[:3])
            prob, parent, rank, string = waiting.pop(0)
            if rank or parent >= 0 or nodes:
                tokens.append(string[-1])
                parents.append(parent)
                probs.append(-prob)
            nodes[len(tokens) - 1] = string
            children = self.children(string)[: None if limits.tree else 1]
            for place, child in enumerate(children, 1):
                below = prob * self.counts[child] / self.counts[string]
                if -below >= limits.least:
                    waiting.append((below, len(tokens) - 1, place, child))
        return tokens, parents, probs

    def likeliest(self, context, limits):
        best, best_score = ([], [], []), 0.0
        for length in range(1, len(context)):
            string = tuple(context[len(context) - length :])
            if not self.counts.get(string):
                break
            room = min(limits.nodes, max(0, int(limits.factor * length + limits.offset + 1e-6)))
            found = self.draft(string, room, limits)
            if sum(found[2]) >= best_score - 1e-12:
                best, best_score = found, sum(found[2])
        return best


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)
events = st.lists(st.tuples(st.integers(0, 2), st.one_of(tokens, tokens, tokens, st.none())), min_size=1, max_size=9)


def play(depth, happened):
    """A tree and the trie after texts 0 to 2 grew in turn or were removed (None)."""
    tree, trie, texts, held = SuffixTree(depth, 1), _Trie(depth), {}, {}
    for number, new in happened:
        if new is not None:
            tree.extend(texts.setdefault(number, Text()), new)
            trie.add(held.setdefault(number, []), new)
        elif number in texts:
            trie.add([], held.pop(number), by=-1)
            tree.remove(texts.pop(number))
    return tree, trie, texts, held


@given(st.integers(2, 6), events)
@settings(max_examples=150, deadline=None)
def test_counts_and_their_order_equal_a_trie(depth, happened):
    tree, trie, _, _ = play(depth, happened)
    rebuilt = tree._gone == 0 and any(new is None for _, new in happened)
    arrays = tree._arrays
    for string, count in trie.counts.items():
        state = 0
        for token in string:
            edge = find(arrays, state, token)
            state = int(arrays.edges[edge]["target"]) if edge >= 0 and state >= 0 else -1
        assert (int(arrays.states[state]["count"]) if state >= 0 else 0) == count
        if len(string) == depth or not count or rebuilt:  # a rebuilt tree knows other times
            continue
        listed, edge, previous = [], int(arrays.states[state]["head"]), -1
        while edge >= 0:
            assert arrays.edges[edge]["previous"] == previous
            if arrays.states[arrays.edges[edge]["target"]]["count"]:
                listed.append(int(arrays.edges[edge]["token"]))
            previous, edge = edge, int(arrays.edges[edge]["next"])
        assert listed == [child[-1] for child in trie.children(string)]


@given(st.integers(2, 6), events, tokens, st.sampled_from(["path", "tree"]), st.sampled_from([0.5, 1.0, 3.0]))
@settings(max_examples=300, deadline=None)
def test_draft_equals_the_references_loops(depth, happened, before, shape, factor):
    """Both for a context that ends as a text of the tree does, and for one that has nothing to do with it."""
    happened = [(number, new) for number, new in happened if new is not None] or [(0, [1, 2])]
    tree, trie, texts, held = play(depth, happened)
    limits = Limits(7, factor, 0.5, 0.15, depth, shape == "tree")
    for text, context in [(Text(), before), *((texts[number], before + held[number]) for number in texts)]:
        recent = context[-depth:]
        found = tree.likeliest(text, recent, limits)
        wanted = trie.likeliest(recent, limits)
        assert (found.tokens, found.parents) == wanted[:2]
        assert found.probs == pytest.approx(wanted[2])


def test_memory_does_not_grow_with_the_depth():
    tokens = np.random.default_rng(0).integers(0, 50, 3000).tolist()
    for depth in (2, 64):
        tree = tree_of([tokens], depth)
        assert tree._arrays.meta[STATES] <= 2 * len(tokens)
        assert tree._arrays.meta[EDGES] <= 3 * len(tokens)


def begin(method, prompt, first):
    return method.begin(prompt, Prefill(first), 0)


def bound(**options) -> SuffixDecoding:
    method = SuffixDecoding(**options)
    method.bind(None)
    method.reset()
    return method


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_draft": 0}, "num_draft=0: expected a whole number of at least 1"),
        ({"depth": 1}, "depth=1: expected a whole number of at least 2"),
        ({"cached_requests": 0}, "cached_requests=0"),
        ({"factor": -1.0}, "factor=-1.0: expected 0 or more"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"min_prob": 1.5}, "min_prob=1.5: expected a probability"),
        ({"offset": -63.0}, "offset=-63.0: .*no match may draft a token"),
    ],
)
def test_bad_parameter_names_itself(options, message):
    with pytest.raises(InputError, match=message):
        SuffixDecoding(**options)
