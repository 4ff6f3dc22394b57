"""REST against the integer examples of its code; its three traps are shown to differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draft_models import draft_behind
from head_models import paths_of
from methods.rest import Datastore, Rest
from specbench.types import InputError, Prefill

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [[1, 2, 3, 4], [1, 2, 3, 4], [2, 3, 5, 6]]


@dataclass
class Card:
    name: str = "m"
    tokenizer: range = field(default_factory=lambda: range(10))


def datastore(documents=DOCUMENTS, vocab=10) -> Datastore:
    return Datastore.build([np.array(ids, np.int32) for ids in documents], vocab)


def method_on(documents=DOCUMENTS, **options) -> Rest:
    method = Rest(**options)
    method.store = datastore(documents)
    return method


def draft(method, context, budget=256, seed=0):
    return draft_behind(method, context, budget, seed=seed)


EXAMPLE = [(4,), (5,), (4, 1), (4, 2), (5, 6), (4, 1, 2), (4, 2, 3)]


def test_continuations_counts_and_stats():
    method = method_on(depth=3)
    tree = method.retrieve([2, 3], 256, 0)
    assert tree.nodes[2].tolist() == [2, 1, 1, 1, 1, 1, 1]
    proposal = draft(method, [9, 2, 3])
    assert paths_of(proposal) == EXAMPLE
    assert proposal.source == [0] * 7
    assert proposal.score == pytest.approx([2 / 3, 1 / 3, 1 / 2, 1 / 2, 1, 1, 1])
    drafter = method_on(depth=3).begin([], Prefill(0), 0)
    assert drafter.stats() == {"matched_steps": 0.0}
    for context in ([2, 3], [1, 2, 3], [9, 9]):
        drafter.propose(context, 64)
    assert drafter.stats() == {
        "matched_steps": pytest.approx(2 / 3),
        "query_tokens": 2.5,
        "matches": 2.5,
    }


def test_cut_of_the_code_is_smaller_and_counts_a_repeated_token_once():
    """Paths cost their distinct tokens: (4), (5), (4 1) are 1 + 1 + 2 of 3, so (4 1) goes."""
    for cut, nodes, kept in (
        ("reference", 2, 2),
        ("reference", 3, 2),
        ("paper", 3, 3),
        ("reference", 7, 4),
    ):
        assert paths_of(draft(method_on(depth=3, nodes=nodes, cut=cut), [2, 3])) == EXAMPLE[:kept]
    chain = method_on([[1, 2, *[8] * 4]], depth=4, nodes=4, cut="reference")
    assert paths_of(draft(chain, [1, 2])) == [(8,) * n for n in (1, 2, 3, 4)]


def test_a_subset_is_fair_and_the_seeds():
    """The code's first 5000 in sorted order are those followed by small ids."""
    documents = [[1, 2, 3]] * 10 + [[1, 2, 9]] * 90
    assert paths_of(draft(method_on(documents, depth=1, nodes=1, max_matches=10), [1, 2])) == [(9,)]
    assert paths_of(
        draft(method_on(documents, depth=1, nodes=1, max_matches=10, subset="first"), [1, 2])
    ) == [(3,)]
    random = np.random.default_rng(0)
    documents = [[1, 2, *random.integers(3, 10, 3)] for _ in range(500)]
    method = method_on(documents, max_matches=20)
    first, second, other = (draft(method, [1, 2], seed=seed) for seed in (1, 1, 2))
    assert paths_of(first) == paths_of(second) != paths_of(other)


def test_a_file_is_mapped_as_it_was_built(tmp_path):
    path = tmp_path / "d.safetensors"
    for vocab, width in ((10, 2), (70_000, 4)):
        built = datastore([[1, 2, vocab - 1], [3, 1]], vocab)
        built.save(path, vocab)
        loaded = Datastore.load(path, vocab, "key")
        assert loaded.array.tokens.tolist() == [1, 2, vocab - 1, 3, 1]
        assert loaded.array.order.tolist() == built.array.order.tolist()
        assert loaded.borders.tolist() == [0, 3, 5]
        assert loaded.nbytes() == built.nbytes() == 5 * width + 5 * 4 + 3 * 8
        assert not loaded.array.tokens.flags.owndata  # no copy: pages of the file
        method = Rest(str(path), shortest=1)
        method.check(Card(tokenizer=range(vocab)))
        assert method.inputs == (str(path),)
        assert method.state_bytes() == built.nbytes()
        assert paths_of(draft(method, [1, 2])) == [(vocab - 1,), (vocab - 1, 3), (vocab - 1, 3, 1)]


def test_what_is_no_datastore_is_refused(tmp_path):
    path = tmp_path / "d.safetensors"
    datastore().save(path, 10)
    arrays, labels = load_file(path), {"format": "datastore", "vocab": "10"}
    for change, message in (
        ({"order": arrays["order"][:-1]}, "do not fit each other"),
        ({"borders": np.array([0, 4, 4, 12])}, "do not fit each other"),
        ({"tokens": arrays["tokens"].astype(np.int16)}, "tokens is I16; expected U16 or U32"),
    ):
        save_file({**arrays, **change}, path, labels)
        with pytest.raises(InputError, match=message):
            Datastore.load(path, 10, "key")


def test_the_bundled_datastore_fits_and_a_missing_one_says_how_to_build_it():
    with pytest.raises(
        InputError, match=r"^datastore: not set and model=m .*specbench build datastore"
    ):
        Rest().check(Card())
    method = Rest("bundled:tiny/datastore.safetensors")
    method.check(Card(tokenizer=range(2048)))
    tokens = method.store.array.tokens
    assert Path(method.inputs[0]).stat().st_size <= 2**20
    assert draft(method, tokens[1000:1016].tolist()).tokens[0] == tokens[1016]
