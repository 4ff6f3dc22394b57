"""A rank's share: the right rows and columns of every weight, from any kind of file, and no more
memory than that.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import card_of
from transformers import AutoConfig, AutoModelForCausalLM

import specbench.models.tensor_parallel.share as parallel_load
from builders.models import BASE, FAMILIES, build
from specbench.models.tensor_parallel.share import load_share
from specbench.models.tensor_parallel.team import PACKET, Op, Team
from specbench.types import InputError

PLAIN = {"revision": None, "safetensors": True, "seed": 0}


def shares(card, ranks, **options):
    return [load_share(card, "cpu", rank, ranks, **{**PLAIN, **options}) for rank in range(ranks)]


def weights(model) -> dict:
    return {name: each.clone() for name, each in model.named_parameters()}


@pytest.mark.matrix
@pytest.mark.parametrize("files", ["one", "several", "torch"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_from_files_as_from_memory(files, tied, tmp_path, monkeypatch):
    """Only the part that is asked for is taken from a file."""
    kind, extra = FAMILIES["qwen2"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**BASE, **extra, "tie_word_embeddings": tied})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if files == "torch":
        model.config.save_pretrained(tmp_path)
        state = model.state_dict()
        if tied:
            del state["lm_head.weight"]
        torch.save(state, tmp_path / "pytorch_model.bin")
    else:
        model.save_pretrained(tmp_path, max_shard_size="5GB" if files == "one" else "100KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > (files == "several")
    memory = [weights(each) for each in shares(card_of(model), 2)]
    taken, part = [], parallel_load._part

    def counted(weight, cut):
        found = part(weight, cut)
        taken.append(found.nbytes)
        return found

    monkeypatch.setattr(parallel_load, "_part", counted)
    card = replace(card_of(model), path=str(tmp_path))
    if files == "torch":
        with pytest.raises(InputError, match="no weights found to share"):
            shares(card, 2)
    for found, expected in zip(shares(card, 2, safetensors=files != "torch"), memory, strict=True):
        found = weights(found)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
    assert max(taken) <= max(each.nbytes for each in memory[0].values())


def test_a_file_without_a_weight_is_named(tmp_path):
    model = build("llama")
    model.config.save_pretrained(tmp_path)
    state = model.state_dict()
    del state["model.norm.weight"]
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"hold no weight model\.norm\.weight"):
        shares(replace(card_of(model), path=str(tmp_path)), 2, safetensors=False)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_hidden_layers": 1}, r"unused, such as model\.layers\.1\."),
        ({"vocab_size": 9}, "of shape"),
    ],
)
def test_weights_of_another_model_are_named(change, word, tmp_path):
    """One of fewer layers, or of other sizes, would be cut out of the files without an error."""
    model = build("llama")
    model.save_pretrained(tmp_path)
    card = replace(card_of(model), path=str(tmp_path), config=copy.deepcopy(model.config))
    for key, value in change.items():
        setattr(card.config, key, value)
    with pytest.raises(InputError, match=word):
        shares(card, 2)


NUMBERS = st.integers(0, 2**40)


@given(st.lists(st.lists(NUMBERS, max_size=8), max_size=4), st.integers(0, 3 * PACKET))
def test_a_message_is_received_as_it_was_sent(lists, count):
    """Also a long one, which takes two broadcasts."""
    sent, (rank_0, other) = [], (Team.__new__(Team), Team.__new__(Team))
    rank_0._hosts = other._hosts = None
    lists = [*lists, list(range(count))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.distributed, "broadcast", lambda each, *_, **__: sent.append(each.clone())
        )
        rank_0.send(Op.STEP, *lists)
        assert len(sent) == 1 + (2 + len(lists) + sum(map(len, lists)) >= PACKET)
        patch.setattr(
            torch.distributed, "broadcast", lambda each, *_, **__: each.copy_(sent.pop(0))
        )
        assert other.receive() == (Op.STEP, lists)
