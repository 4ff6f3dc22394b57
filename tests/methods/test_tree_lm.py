"""The draft model over a tree: every node's logits are those of a fresh forward over the node's own path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.models import VOCAB, build
from draft_models import plain_logits
from methods.parts.draft_lm import DraftLM, DraftRequest, TreeRequest

MODELS = {}


def model_of(family):
    if family not in MODELS:
        MODELS[family] = build(family, torch.float64)
    return MODELS[family]


def request_of(family, vocab=VOCAB):
    lm = DraftLM(model_of(family), 512)
    return TreeRequest(lm, vocab)


class Twin:
    """A tree kept as plain paths of nodes: what each node's logits must be, computed from scratch."""

    def __init__(self, family):
        self.model, self.tree = model_of(family), request_of(family)
        self.context, self.tokens, self.lines = [], [], []  # lines: of each node, its ancestors and itself

    def feed(self, context, settled=0):
        self.context, self.tokens, self.lines = list(context), [], []
        self.same(self.tree.feed(context, settled), [])

    def same(self, row, line):
        text = [*self.context, *(self.tokens[node] for node in line)]
        assert torch.allclose(row, plain_logits(self.model, text), atol=1e-9)

    def expand(self, tokens, parents):
        start = len(self.lines)
        for token, parent in zip(tokens, parents, strict=True):
            self.lines.append([*(self.lines[parent] if parent >= 0 else []), len(self.lines)])
            self.tokens.append(token)
        rows = self.tree.expand(tokens, parents)
        assert len(rows) == len(tokens)
        for row, line in zip(rows, self.lines[start:], strict=True):
            self.same(row, line)

    def commit(self, path, kept=()):
        accepted = [self.tokens[node] for node in path]
        self.tree.commit(path, accepted, kept)
        self.context += accepted
        place = {node: number for number, node in enumerate(kept)}
        self.tokens = [self.tokens[node] for node in kept]
        self.lines = [[place[each] for each in self.lines[node] if each not in path] for node in kept]
        assert len(self.tree) == len(kept)
        assert self.tree.held == len(self.context)


FAMILIES = ["llama", "mistral", "mistral-window", "qwen2", "qwen2-mixed", "phi3-window"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_grows_is_committed_and_grows_on(family):
    twin = Twin(family)
    twin.feed([5, 17, 3, 42, 8, 9, 30, 2, 7, 11])
    twin.expand([1, 2, 1], [-1, -1, -1])
    twin.expand([4, 5, 6, 7], [1, 1, 2, 4])  # the last hangs from a node of the same call
    twin.expand([8, 9, 10], [3, 6, -1])
    #  0:1  1:2 -> 3:4 -> 7:8    1 -> 4:5 -> 6:7 -> 8:9    2:1 -> 5:6    9:10
    twin.commit([1, 4], [6, 8])
    twin.expand([50, 51, 52], [0, 1, -1])
    twin.tree.prune([0, 2])
    twin.tokens, twin.lines = [7, 50], [[0], [0, 1]]
    twin.expand([60, 61], [1, 0])
    twin.commit([0])
    twin.feed([*twin.context, 99, 98], settled=len(twin.context))
    twin.expand([1], [-1])
    twin.feed([5, 17, 3, 42, 1, 2])


def test_a_mask_without_ancestors_would_fail():
    tree = request_of("llama")
    tree.feed([5, 17, 3], 0)
    tree.expand([1, 2], [-1, -1])
    tree._lines[1:] = True  # every node sees every other
    right = plain_logits(model_of("llama"), [5, 17, 3, 2, 9])
    assert not torch.allclose(tree.expand([9], [1])[0], right, atol=1e-3)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_calls(data):
    twin = Twin(data.draw(st.sampled_from(["llama", "mistral-window", "qwen2-mixed"])))
    token = st.integers(0, VOCAB - 1)
    twin.feed(data.draw(st.lists(token, min_size=1, max_size=20)))
    for _ in range(data.draw(st.integers(1, 5))):
        tokens = data.draw(st.lists(token, min_size=1, max_size=6))
        start = len(twin.lines)
        twin.expand(tokens, [data.draw(st.integers(-1, start + place - 1)) for place in range(len(tokens))])
        match data.draw(st.sampled_from(["grow", "commit", "feed"])):
            case "commit":
                path = data.draw(st.sampled_from([[], *twin.lines]))
                below = [node for node, line in enumerate(twin.lines) if line[: len(path)] == path and line != path]
                cut = data.draw(st.sets(st.integers(0, len(twin.lines) - 1)))
                kept = [node for node in below if not cut & set(twin.lines[node][len(path) :])]
                twin.commit(path, kept)
            case "feed":
                settled = data.draw(st.integers(0, len(twin.context)))
                twin.feed([*twin.context, data.draw(token)], settled)


def test_capacity_grows_without_losing_what_is_held():
    twin = Twin("llama")
    twin.feed([5, 17, 3])
    for width in (100, 200):
        start = len(twin.lines)
        twin.tree.expand([7] * width, [-1] * width)
        twin.tokens += [7] * width
        twin.lines += [[start + place] for place in range(width)]
    assert twin.tree.cache.capacity >= 303
    twin.expand([9, 10], [0, 299])


def test_rows_are_cut_to_the_targets_width_and_ids_to_the_drafts():
    wide, narrow = request_of("llama"), request_of("llama", vocab=100)
    assert narrow.feed([1, 2], 0).shape == (100,)
    assert narrow.expand([3, 4], [-1, -1]).shape == (2, 100)
    assert torch.equal(wide.feed([1, VOCAB + 7], 0), wide.feed([1, VOCAB - 1], 0))


def test_nodes_that_do_not_hang_together_are_refused():
    tree = request_of("llama")
    tree.feed([5, 6], 0)
    with pytest.raises(ValueError, match="parent of node 0 is 3"):
        tree.expand([1], [3])
    tree = request_of("llama")
    tree.feed([5, 6], 0)
    tree.expand([1, 2, 3, 4], [-1, 0, -1, 2])
    for path, kept in (([1], []), ([0, 3], []), ([0], [3]), ([1, 0], []), ([], [3])):
        with pytest.raises(ValueError, match="no path"):
            tree.commit(path, [0] * len(path), kept)
    tree.commit([0], [1], [1])


def test_chain_and_tree_requests_share_what_they_feed():
    """A chain of steps gives the same rows either way; what a step held is compared with the next context."""
    lm = DraftLM(model_of("llama"), 512)
    chain, tree = DraftRequest(lm, VOCAB), request_of("llama")
    for request in (chain, tree):
        request.feed([5, 6, 7], 0)
    for token in (9, 10):
        assert torch.allclose(chain.step(token), tree.step(token), atol=1e-9)
    truth = plain_logits(model_of("llama"), [5, 6, 7, 9, 11])
    for request in (chain, tree):
        assert torch.allclose(request.feed([5, 6, 7, 9, 11], 3), truth, atol=1e-9)
