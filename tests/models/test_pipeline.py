"""Layers on two devices, and a draft model on its own: every tensor is where the operation that
takes it is.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from places import MixedPlaces, Places, place_of, put, spread_layers
from transformers import AutoConfig, AutoModelForCausalLM

from builders.engines import (
    Scripted,
    assert_same_rows,
    decode_one,
    eager_engine,
    scripts,
    take_step,
)
from builders.models import BASE, build, plain_greedy
from draft_models import MAKE, fitted, noisy
from methods.speculative_sampling import SpeculativeSampling
from specbench.decode.check import check_engine
from specbench.decode.sampling import Sampling
from specbench.decode.walk import Walk
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import Silent
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.engine import FastEngine
from specbench.models.load import choose_device, load_model
from specbench.types import ROOT, Draft, InputError, Needs

COUNT = 32
PROMPT = [5, 17, 3, 42, 8]
FIRST, SECOND = torch.device("cpu:0"), torch.device("cpu:1")
FAMILIES = ["llama", "mistral-window", "qwen2-mixed", "phi3"]


def run(engine, method, sampling=None):
    return decode_one(engine, method, PROMPT, COUNT, sampling, 3)


def test_the_fake_refuses_what_a_gpu_refuses():
    with Places():
        here, there = torch.ones(3, device="cpu:0"), torch.ones(3, device="cpu:1")
        assert (here.device, (here + 1).device) == (FIRST, FIRST)
        for mix in (
            lambda: here + there,
            lambda: torch.cat([here, there]),
            lambda: here @ torch.ones(3),
            lambda: here[torch.arange(2, device="cpu:1")],
            lambda: torch.nn.functional.scaled_dot_product_attention(
                here[None], here[None], there[None]
            ),
            lambda: here.index_copy_(0, torch.arange(3, device="cpu:1"), here),
        ):
            with pytest.raises(MixedPlaces):
                mix()
        assert (here + there.to("cpu:0")).device == FIRST
        assert here[torch.arange(2)].device == FIRST  # an index from the host
        assert here.mul(torch.tensor(2.0)).device == FIRST  # a number
        here[:2] = there[:2]  # a copy
        assert here.new_zeros(2).device == FIRST
        assert here.tolist() == [1, 1, 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_devices_decode_as_one(family, monkeypatch):
    """Ids, lengths and rows fed of every drafter, also sampled; teacher forcing; the check."""
    model = build(family, torch.float64)
    truth = plain_greedy(model, PROMPT, COUNT + 8)
    asked = [(name, None) for name in scripts([])]
    asked += [("wide", sampling) for sampling in (Sampling(0.8), Sampling(0.7, 20, 0.9))]

    def decode_all(engine):
        outs = [run(engine, Scripted(scripts(truth)[name]), sampling) for name, sampling in asked]
        return [(out.ids, out.accept, out.fed) for out in outs], engine.gaps(PROMPT, truth[:9])

    plain = decode_all(eager_engine(model))
    spread = spread_layers(model, 1, monkeypatch)
    with Places():
        engine = eager_engine(spread)
        assert [layer.device for layer in dict.fromkeys(engine.cache.shapes)] == [FIRST, SECOND]
        check_engine(engine, spread)
        assert decode_all(engine) == plain
        assert [place_of(stack) for stack in engine.cache._stacks[::2]] == [FIRST, SECOND]


@pytest.mark.parametrize("rows", [False, True], ids=["tree", "rows"])
def test_a_step_shows_the_same_hidden_states(rows, monkeypatch):
    model = build("llama", torch.float64)
    truth = plain_greedy(model, PROMPT, COUNT)
    needs = Needs(hidden=(0, 1, 2), prompt_hidden=True, node_topk=3, prompt_topk=3, rows=rows)
    drafts = [Draft([9, *truth[1:4]], [ROOT, ROOT, 1, 2]), Draft(truth[5:8], range(-1, 2))]

    def show(engine):
        prefill = engine.start(PROMPT, COUNT, Walk(None, 0), needs, Silent())
        return [prefill, *(take_step(engine, draft) for draft in drafts)]

    plain = show(eager_engine(model))
    spread = spread_layers(model, 1, monkeypatch)
    with Places():
        found = show(eager_engine(spread))
    for ours, theirs in zip(found, plain, strict=True):
        assert_same_rows(ours, theirs)


def test_a_device_is_brought_masks_and_positions_once_a_forward(monkeypatch):
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **{**BASE, "num_hidden_layers": 8})
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, attn_implementation="sdpa"
    ).eval()
    truth = plain_greedy(model, PROMPT, COUNT + 8)
    with Places() as places:
        engine = eager_engine(spread_layers(model, 2, monkeypatch))
        places.moved.clear()
        out = run(engine, Scripted(scripts(truth)["wide"]))
        forwards = len(out.accept) + 1
        assert out.ids == truth[:COUNT]
        # Once the hidden states, and once mask, position ids, cosine and sine, though six layers
        # lie there.
        assert places.moved["cpu:0", "cpu:1"] <= 5 * forwards
        assert places.moved["cpu:1", "cpu:0"] == forwards  # the logits


SAMPLINGS = {"greedy": None, "sampled": Sampling(0.8, 0, 1.0)}
KINDS = ("speculative_sampling", "sequoia", "opt_tree")  # a chain, a fixed tree, one that grows
DRAFTED = [pytest.param(name, sampling, marks=[] if name in KINDS else pytest.mark.exhaustive)
           for name in MAKE if name != "pard" for sampling in SAMPLINGS]  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [EagerEngine, FastEngine], ids=["eager", "fast"])
@pytest.mark.parametrize(("name", "sampling"), DRAFTED)
def test_a_draft_model_on_a_device_of_its_own(name, sampling, kind):
    """Only ids and distributions go between it and the target, and the tokens are the same."""
    target, draft = build("llama", torch.float64), noisy(build("llama", torch.float64), 0.01)
    plain = run(
        kind(target, 512, frozenset(), 64),
        fitted(MAKE[name](), draft, sampling=SAMPLINGS[sampling]),
        SAMPLINGS[sampling],
    )
    put(draft, "cpu:1")
    with Places() as places:
        engine, method = (
            kind(target, 512, frozenset(), 64),
            fitted(MAKE[name](), draft, sampling=SAMPLINGS[sampling]),
        )
        assert method.lm.device == SECOND
        out = run(engine, method, SAMPLINGS[sampling])
        assert places.moved["cpu", "cpu:1"] or places.moved["cpu:1", "cpu"]
    assert (out.ids, out.accept) == (plain.ids, plain.accept)
    assert max(out.accept) > 1


def test_the_device_of_a_draft_model_is_where_it_is_loaded(tmp_path):
    target = build("llama", torch.float64)
    target.save_pretrained(tmp_path)
    method = SpeculativeSampling(str(tmp_path), device="cpu:1")
    card = ModelCard("m", str(tmp_path), target.config, None, 512, frozenset(), "float64", "cpu")
    method._card = replace(card, device=choose_device("cpu:1", None))
    with Places():
        method.bind(Target(card, target, 64, None))
        assert method.lm.device == SECOND


def test_random_weights_too_lie_on_several_devices_from_the_runs_own_on(monkeypatch):
    """A shape that no device holds alone is timed without weights."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (10**9, 10**9))
    placed = []
    monkeypatch.setattr(
        "accelerate.dispatch_model", lambda model, where, **options: placed.append(where) or model
    )
    config = AutoConfig.for_model("llama", **{**BASE, "num_hidden_layers": 8})
    card = ModelCard(
        "m", "random", config, None, 512, frozenset(), "float32", choose_device("cuda:1", 2)
    )
    load_model(card, gpus=2)
    (where,) = placed
    layers = [where[f"model.layers.{number}"] for number in range(8)]
    assert layers == sorted(layers)
    assert 2 < layers.count(1) < 6
    assert set(where.values()) == {1, 2}
    assert where["model.embed_tokens"] == 1
    with pytest.raises(
        InputError, match=r"gpus=2 from model\.device=cuda:3 on: this machine has 4 GPUs"
    ):
        choose_device("cuda:3", 2)
