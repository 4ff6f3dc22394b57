"""SAM-Decoding against the integer examples of the reference; wrong variants are shown to fail
them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from builders.drafts import root_paths
from builders.runs import composed
from draft_models import draft_behind
from methods.parts.suffix_automaton import EDGES, STATES, SuffixAutomaton
from methods.sam import AUXILIARY, DYNAMIC, SAM, STATIC, StaticAutomaton, build_automaton
from specbench.runs import composition
from specbench.types import InputError, Prefill, Step, TopK
from twins.loop import ids_of, text_of
from twins.suffix import likeliest_tree, longest_match

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 2, 3]
COUNTS = [[2], [2, 1], [0, 0, 0]]


class _Target:
    max_nodes = 256
    vocab_size = 16
    device = torch.device("cpu")


def static_of(documents, eos=0, ids=0, ranked=8) -> StaticAutomaton:
    return build_automaton([np.array(ids, np.int32) for ids in documents], eos, ids, ranked)


def draft(context, static=None, budget=64, **options):
    """The draft for a request whose prompt and first token are ``context``."""
    method = SAM(**options)
    method.corpus = static
    if method.tree is not None:
        method.bind(_Target())
        method.reset()
    return draft_behind(method, context, budget)


def aided(context, n_predicts=6, threshold=1, **options):
    """With the auxiliary: chains of n_predicts, root included, where a match is long enough."""
    options = {"auxiliary": "token_recycling", "tree": COUNTS, "k": 3, "len_bias": 5, **options}
    return draft(context, n_predicts=n_predicts, len_threshold=threshold, **options)


@pytest.mark.parametrize(
    ("root", "match", "chain"), [(4, (3, 4), [5, 6, 7, 8, 2]), (1, (1, 1), [2, 3, 4, 5, 6])]
)  # fmt: skip
def test_chain_of_the_reference(root, match, chain):
    automaton = SuffixAutomaton()
    automaton.extend(TEXT)
    assert automaton.peek(root) == match
    assert automaton.peek(9) == (0, 0)
    found = aided([*TEXT, root])
    assert found.tokens == chain
    assert found.source == [DYNAMIC] * 5
    assert list(found.parents) == [-1, 0, 1, 2, 3]


def test_short_matches_are_the_auxiliarys():
    found = aided([*TEXT, 9])
    assert found.source == [AUXILIARY] * 5
    assert not draft([*TEXT, 9], n_predicts=6)
    for matched, threshold, source in ((5, 5, DYNAMIC), (5, 6, AUXILIARY), (4, 5, AUXILIARY)):
        text = list(range(1, 13))
        found = aided([*text, *text[:matched]], threshold=threshold)
        assert set(found.source) == {source}


CLIMBING = [2, 5, 6, 7, 8, 9, 4, 1, 2, 5, 3, 1]


def test_a_shorter_match_is_taken_for_a_longer_copy():
    automaton = SuffixAutomaton()
    automaton.extend(CLIMBING)
    assert automaton.peek(2) == (2, 9)
    assert automaton.peek(2, copies=6) == (2, 1)
    assert aided([*CLIMBING, 2]).tokens == [5, 6, 7, 8, 9]
    assert draft([*CLIMBING, 2], n_predicts=6).tokens == [5, 3, 1]  # alone it never climbs


def search(text: str, whole: str) -> tuple[int, int]:
    """(length, end of the first occurrence) of the longest suffix of ``whole`` that occurs in
    ``text``.
    """
    size = longest_match(whole, text)
    return (size, text.find(whole[len(whole) - size :]) + size)


@given(st.lists(st.integers(0, 3), max_size=40), st.data())
def test_matches_equal_a_search(tokens, data):
    automaton, stored = SuffixAutomaton(2), 0
    while True:
        for token in range(4):
            assert automaton.peek(token) == search(
                text_of(tokens[:stored]), text_of([*tokens[:stored], token])
            )
        if stored == len(tokens):
            break
        step = data.draw(st.integers(1, 5))
        automaton.extend(tokens[stored : stored + step])
        stored = min(stored + step, len(tokens))
    assert len(automaton) == len(tokens)
    assert automaton.arrays.meta[STATES] <= max(2, 2 * len(tokens))
    assert automaton.arrays.meta[EDGES] <= 3 * len(tokens)


def test_static_examples_of_the_reference():
    static = static_of([[1, 2, 3, 4], [1, 2, 5, 6]])
    found = aided([8, 1, 2], static=static, len_bias=1)
    assert found.tokens == [3, 4, 0, 1, 2]
    assert found.source == [STATIC] * 5
    # a match of 2, less 2
    assert set(aided([8, 1, 2], static=static, len_bias=2).source) == {AUXILIARY}
    static = static_of(STATIC_TREE)
    found = draft([7, 1, 2], static=static)  # 1 + 4 * 2 nodes with the root
    assert found.tokens == [3, 0, 1, 2, 4, 3, 4, 0]
    assert found.parents == [-1, 0, 1, 2, -1, 3, 3, 4]
    assert static_of([[1, 0], [2]], eos=0, ids=2).arrays.text.tolist() == [1, 0, 2, 0, 0, 1, 0]
    assert static_of([[1], [2]], eos=None).arrays.text.tolist() == [1, 2]


STATIC_TREE = [[1, 2, 3], [1, 2, 3], [1, 2, 4]]


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_static_equals_a_search(documents, query, ranked, nodes):
    static = static_of(documents, ids=6, ranked=ranked)
    text = text_of(static.arrays.text.tolist())
    state, length = 0, 0
    for place, token in enumerate(query):
        state, length = static.walk(state, length, [token])
        size, end = search(text, text_of(query[: place + 1]))
        assert length == size
        assert tuple(static.following(state, 5)) == ids_of(text[end : end + 5])
        for children in range(1, ranked + 1):
            found = root_paths(*static.tree(state, nodes, children))
            assert found == likeliest_tree(text, text[end - size : end], nodes, children)


def test_auxiliary_learns_from_prompt_and_every_forward():
    method = SAM(auxiliary="token_recycling", tree=COUNTS, k=3)
    method.bind(_Target())
    method.reset()
    assert (method.needs.prompt_topk, method.needs.node_topk) == (3, 3)
    assert (SAM().needs.prompt_topk, SAM().needs.node_topk) == (0, 0)
    prompt = torch.tensor([[6, 7, 8], [1, 2, 3]])
    drafter = method.begin([10, 11], Prefill(10, topk=TopK(prompt, prompt.float())), 0)
    assert list(drafter.propose([10, 11, 10], 64).tokens)[:2] == [6, 7]
    rows = torch.tensor([[5, 4, 3], [9, 8, 7]])
    drafter.observe(Step(10, (5,), (), False, torch.tensor([10, 12]), TopK(rows, rows.float())))
    assert list(drafter.propose([10, 11, 10, 12], 64).tokens)[:2] == [9, 8]


def test_auxiliary_tree_of_the_reference():
    flat = [int(digit) for digit in "7653221132211032110110101010210100000200100010000201010000000"]
    levels = composition.plain_values(composed("method=[sam_token_recycling]"))["method"][
        "sam_token_recycling"
    ]["tree"]
    given_counts = [count for level in levels for count in level]
    assert given_counts == flat[: len(given_counts)]
    assert not any(flat[len(given_counts) :])  # the deepest level
    assert len(flat) == 1 + sum(flat) == 61
    assert len(levels) == 5


def test_a_file_keeps_the_automaton(tmp_path):
    path, static = tmp_path / "static.safetensors", static_of(STATIC_TREE, ids=6)
    static.save(path, 6)
    loaded = StaticAutomaton.load(path, 6, "static")
    assert all(
        (one == other).all() for one, other in zip(static.arrays, loaded.arrays, strict=True)
    )
    assert loaded.ranked == 8
    static.save(path, 5)
    with pytest.raises(InputError, match="tokens beyond its vocabulary of 5"):
        StaticAutomaton.load(path, 5, "static")


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("targets", 0, 10**6),
        ("offsets", 1, 99),
        ("states", (0, 3), None),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, place, value):
    """No number in it may send a match out of the arrays or round in a circle."""
    path, static = tmp_path / "static.safetensors", static_of(STATIC_TREE)
    static.save(path, 5)
    arrays = load_file(path)
    if value is None:
        del arrays[name]
    else:
        arrays[name][place] = value
    save_file(arrays, path, {"format": "suffix_automaton", "vocab": "5", "ranked": "8"})
    with pytest.raises(InputError, match="not a suffix automaton"):
        StaticAutomaton.load(path, 5, "static")
