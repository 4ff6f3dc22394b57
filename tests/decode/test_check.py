"""The self-check passes what is right and refuses what is silently wrong."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.engines import decode_script, eager_engine, scripts
from builders.models import BASE, FAMILIES, build, plain_greedy
from specbench.decode.check import check_engine
from specbench.models.eager import engine as eager
from specbench.types import InputError

PROMPT = list(range(20, 50))


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_served_family_passes(family, dtype):
    model = build(family, dtype)
    check_engine(eager_engine(model), model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_shows_siblings_is_refused(monkeypatch, dtype):
    model = build("llama", dtype)
    real = eager.build_tree_mask

    def causal(parents, depths, past, window, dtype):
        mask = real(parents, depths, past, window, dtype)
        rows = mask.shape[-2]
        return mask * (torch.arange(rows)[:, None] < torch.arange(mask.shape[-1])[None, :] - past)

    monkeypatch.setattr(eager, "build_tree_mask", causal)
    with pytest.raises(InputError, match="llama does not see a draft tree"):
        check_engine(eager_engine(model), model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_that_is_not_compacted_is_refused(dtype):
    model = build("llama", dtype)
    engine = eager_engine(model)
    engine.cache.keep = lambda start, slots: engine.cache.truncate(start + len(slots))
    with pytest.raises(InputError, match="does not see"):
        check_engine(engine, model)


def from_family(kind: str, **extra):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**BASE, **extra})).eval()


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("gemma2", {"head_dim": 16, "sliding_window": 12}),
        ("gpt_neox", {}),
        ("olmo2", {}),
        ("cohere2", {"sliding_window": 12}),
        ("mixtral", {}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    ],
)
def test_other_families_of_the_hub(kind, extra):
    model = from_family(kind, **extra)
    check_engine(eager_engine(model), model)
    truth = plain_greedy(model, PROMPT, 20)
    for script in (scripts(truth)["wide"], scripts(truth)["chain"]):
        out = decode_script(eager_engine(model), script, PROMPT, 16)
        assert out.ids == truth[:16]


@pytest.mark.parametrize(
    ("kind", "extra", "message"),
    [
        ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2}, "does not see a draft tree"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "cannot be driven"),
        ("mamba", {}, "other state than keys and values"),
    ],
)
def test_a_family_that_cannot_be_served_is_refused(kind, extra, message):
    model = from_family(kind, **extra)
    with pytest.raises(InputError, match=message):
        check_engine(eager_engine(model), model)
