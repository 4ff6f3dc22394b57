"""N-Grammys against the integer example of the paper's rules, a written-out search, and a model
asked by token.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.drafts import root_paths
from builders.models import VOCAB, build
from head_models import branch_of
from methods.n_grammys import NGrammys, bigram_ids, unigram_ids
from methods.parts.gram_table import GramTable
from specbench.models.facade import ModelCard, Target
from specbench.types import InputError, Prefill, Step
from twins.chains import n_grammys
from twins.loop import Request as Turn

EXAMPLE = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 9, 1, 5, 6, 1]
BEST = {1: [2, 7, 5, 9], 7: [8], 2: [3], 5: [6], 9: [1]}  # a model's best successors


class _Spoken:
    """A target that says ``BEST`` after one token, and 0 where nothing is given."""

    max_nodes = 256
    vocab_size = 16
    model = True
    dtype = torch.float32
    device = torch.device("cpu")
    card = SimpleNamespace(config=SimpleNamespace(to_json_string=lambda: "{}"))

    def logits(self, ids):
        scores = torch.zeros(len(ids), 16)
        for row, token in enumerate(ids[:, -1].tolist()):
            for rank, successor in enumerate(BEST.get(token, [0])):
                scores[row, successor] = 10 - rank
        return scores

    def embed(self, ids):
        return ids[:, None].float()


def drafter(context=(), **options):
    method = NGrammys(**{"k": 5, "w": 2, **options})
    method.bind(_Spoken())
    return method.begin(list(context[:3]), Prefill(0), 0)


def rows_of(draft):
    starts = [node for node, parent in enumerate(draft.parents) if parent == -1]
    ends = [*starts[1:], len(draft)][: len(starts)]
    return [tuple(draft.tokens[a:b]) for a, b in zip(starts, ends, strict=True)]


def test_integer_example():
    draft = drafter(EXAMPLE).propose(EXAMPLE, 64)
    assert rows_of(draft) == [(2, 3), (5, 6), (2, 4), (2, 3), (7, 8)]
    assert draft.parents == [-1, 0, -1, 2, -1, 4, -1, 6, -1, 8]
    assert draft.source == [0] * 6 + [1] * 4
    draft = drafter(EXAMPLE, dedupe=True).propose(EXAMPLE, 64)
    assert rows_of(draft) == [(2, 3), (5, 6), (2, 4), (7, 8), (9, 1)]
    draft = drafter(EXAMPLE, verify="trie").propose(EXAMPLE, 64)
    assert (draft.tokens, draft.parents) == ([2, 3, 5, 6, 4, 7, 8], [-1, 0, -1, 2, 0, -1, 5])
    assert draft.source == [0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"strategy": "context", "k": 2}, [(2, 3), (5, 6)]),
        # nothing shorter than w is drafted
        ({"strategy": "context", "w": 4}, [(2, 3, 9, 1), (2, 4, 9, 1)]),
        ({"strategy": "extended_bigram", "k": 3}, [(2, 3), (7, 8), (5, 6)]),
        ({"strategy": "bigram", "k": 3, "w": 7}, [(2,), (7,), (5,)]),
    ],
)
def test_strategies(options, rows):
    assert rows_of(drafter(EXAMPLE, **options).propose(EXAMPLE, 64)) == rows


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=80),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.data(),
)
def test_index_equals_search_at_every_length(tokens, q, w, keep, data):
    for ties in ("recent", "lexicographic"):
        table, search = (
            GramTable(q, w, followers=keep),
            n_grammys(keep, w, q, ties=ties)(Turn([], [])),
        )
        text, length, counted = np.array(tokens, np.int32), 0, 0
        while length < len(tokens):
            length = min(len(tokens), length + data.draw(st.integers(1, 5)))
            counted = table.count(text[:length], counted, ties == "lexicographic")
            if length >= q:
                found = table.list_followers(tokens[length - q : length], keep)
                assert list(map(tuple, found.tolist())) == search(tokens[:length], 0)[w - 1 :: w]


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=8))
def test_trie_holds_each_prefix_once_and_names_its_first_row(rows):
    tokens, parents, owners = branch_of(np.array(rows, np.int32).reshape(-1, 3), True, 99)
    assert all(parent < node for node, parent in enumerate(parents))
    paths = root_paths(tokens, parents)
    prefixes = {tuple(row[:end]): 0 for row in rows for end in range(1, len(row) + 1)}
    assert paths == list(prefixes)
    for path, owner in zip(paths, owners, strict=True):
        assert owner == next(
            number for number, row in enumerate(rows) if tuple(row[: len(path)]) == path
        )


def target_of(model, bos=1) -> Target:
    tokenizer = SimpleNamespace(bos_token_id=bos)
    card = ModelCard(
        "random", "random", model.config, tokenizer, 512, frozenset(), "float32", "cpu"
    )
    return Target(card, model, 256, None)


@pytest.mark.parametrize("first", [None, 1])
@torch.inference_mode()
def test_bigram_is_what_the_model_says_after_one_token(model, first, monkeypatch):
    # a last batch that is not full
    monkeypatch.setattr("methods.n_grammys.BATCH_LOGITS", 7 * VOCAB)
    table = bigram_ids(target_of(model), 6, first)
    assert table.shape == (VOCAB, 6)
    for token in (0, 5, 6, 7, 198):
        ids = [token] if first is None else [first, token]
        assert (
            table[token].tolist()
            == model(torch.tensor([ids])).logits[0, -1].topk(6).indices.tolist()
        )
    assert (bigram_ids(target_of(model), 1, None if first else 1) != table[:, :1]).any()


@torch.inference_mode()
def test_unigram_is_the_papers_formula_and_the_code_is_not(model):
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    apart = outputs - outputs.mean(0)
    distance = [float(sum((row @ vector) ** 2 for vector in inputs)) ** 0.5 for row in apart]
    order = sorted(range(VOCAB), key=distance.__getitem__)
    assert unigram_ids(target_of(model), 9, "distance").tolist() == order[:9]
    product = outputs @ (inputs.T @ inputs) @ outputs.mean(0)
    assert (
        unigram_ids(target_of(model), 9, "inner_product").tolist() == product.argsort()[:9].tolist()
    )
    assert unigram_ids(target_of(model), 9, "inner_product").tolist() != order[:9]


def test_unigram_rows_are_the_same_after_every_token(model):
    method = NGrammys(k=4, strategy="unigram")
    method.bind(target_of(model))
    ranked = [(token,) for token in unigram_ids(target_of(model), 4, "distance").tolist()]
    for last in (3, 77):
        draft = method.begin([], Prefill(0), 0).propose([9, last], 64)
        assert rows_of(draft) == ranked
        assert draft.source == [2] * 4


def test_no_weights_are_touched_for_context_rows():
    method = NGrammys(strategy="context", cache="/nowhere")
    method.bind(SimpleNamespace(max_nodes=256))
    assert method.state_bytes() == 0
    assert len(method.begin([], Prefill(0), 0).propose([5], 64)) == 0
    with pytest.raises(InputError, match="strategy=mixed: needs the target's weights"):
        NGrammys().bind(SimpleNamespace(max_nodes=256, model=None))


def bound(model, folder, **options) -> tuple[NGrammys, int]:
    """A bound method, and how many sequences it had the model read."""
    reads = 0
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: count(kwargs), with_kwargs=True
    )

    def count(kwargs):
        nonlocal reads
        reads += len(kwargs["input_ids"])

    method = NGrammys(**{"k": 3, "w": 4, "cache": folder and str(folder), **options})
    method.check(target_of(model).card)
    method.bind(target_of(model))
    handle.remove()
    return method, reads


def test_tables_are_kept_on_disk_and_belong_to_one_model(tmp_path):
    model = build("llama")
    first, cold = bound(model, tmp_path)
    again, warm = bound(model, tmp_path, k=7)
    assert cold - warm == VOCAB  # the second one only asks what model it is
    assert (again._top[:, :3] == first._top).all()
    assert bound(model, tmp_path, bos=True)[1] == cold
    assert bound(model, None)[1] == VOCAB
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 0.5
    other, reads = bound(model, tmp_path)
    assert reads == cold
    assert (other._top != first._top).any()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("end", "words"),
    [(b"", "not a whole table"), (b"\xff\xff\xff\x7f", "expected 0 to 198")],
    ids=["cut", "ids beyond the vocabulary"],
)
def test_a_broken_file_is_built_again_and_logged(tmp_path, caplog, end, words):
    model = build("llama")
    first, cold = bound(model, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + end)
    again, reads = bound(model, tmp_path)
    assert reads == cold
    assert (again._top == first._top).all()
    assert words in caplog.text
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert bound(build("llama"), tmp_path / "file" / "cache")[0].state_bytes() > 0
    assert "cannot be written" in caplog.text


def test_figures_of_a_request():
    request = drafter(EXAMPLE)
    request.propose(EXAMPLE, 64)
    request.observe(Step(1, (2, 4, 9), (4, 5), False))  # the third row, from the context
    request.propose([*EXAMPLE, 2, 4, 9], 64)  # 9 was followed by 1, 2 twice and by 1, 5
    # the bigram's first row, behind two from the context
    request.observe(Step(9, (1, 5), (4,), False))
    request.propose([*EXAMPLE, 2, 4, 9, 1, 5], 64)
    request.observe(Step(5, (0,), (), True))
    assert request.stats() == {
        "steps": 3,
        "rows_context": 3 + 2 + 1,
        "rows_bigram": 2 + 3 + 4,
        "steps_with_context_rows_3": 1,
        "steps_with_context_rows_2": 1,
        "steps_with_context_rows_1": 1,
        "won_context": 1,
        "won_bigram": 1,
        "accepted_rank_2": 2,
        "context_accepted_2": 1,
        "bigram_accepted_1": 1,
    }


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("verify", ["batch", "trie"])
def test_budget_is_kept(verify, budget):
    draft = drafter(EXAMPLE, verify=verify).propose(EXAMPLE, budget)
    assert len(draft) <= budget
    assert bool(len(draft)) == (budget >= 1)


def test_a_missing_bos_is_named():
    NGrammys(k=25, w=14, strategy="bigram").bind(_Spoken())  # its draft is small enough
    with pytest.raises(InputError, match="bos=true"):
        NGrammys(bos=True).check(target_of(build("llama"), bos=None).card)
