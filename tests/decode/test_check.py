"""The self-check passes what is right and refuses what is silently wrong."""

from __future__ import annotations

from random import Random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.engines import decode_script, eager_engine, fast_engine, scripts
from builders.models import BASE, EAGER_ONLY, FAMILIES, build, plain_greedy
from specbench.decode import check
from specbench.decode.check import check_engine
from specbench.decode.walk import Walk
from specbench.models.eager import engine as eager
from specbench.types import InputError, Needs

PROMPT = list(range(20, 50))


@pytest.mark.matrix
@pytest.mark.parametrize("make", [eager_engine, fast_engine], ids=["eager", "fast"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_served_family_passes(family, dtype, make):
    model = build(family, dtype)
    check_engine(make(model), model)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_shows_siblings_is_refused(monkeypatch, family, dtype):
    model = build(family, dtype)
    real = eager.build_tree_mask

    def causal(parents, depths, past, window, dtype):
        mask = real(parents, depths, past, window, dtype)
        rows = mask.shape[-2]
        return mask * (torch.arange(rows)[:, None] < torch.arange(mask.shape[-1])[None, :] - past)

    monkeypatch.setattr(eager, "build_tree_mask", causal)
    with pytest.raises(InputError, match=f"{family} does not see a draft tree"):
        check_engine(eager_engine(model), model)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_that_is_not_compacted_is_refused(family, dtype):
    model = build(family, dtype)
    engine = eager_engine(model)
    engine.cache.keep = lambda start, slots: engine.cache.truncate(start + len(slots))
    with pytest.raises(InputError, match="does not see"):
        check_engine(engine, model)


EVERY_RUN = ("gemma3_text", "qwen3_moe", "deepseek_v3", "qwen3_next")  # one of each group
OTHER = [
    pytest.param(kind, marks=[] if kind in EVERY_RUN else pytest.mark.exhaustive)
    for group in EAGER_ONLY.values()
    for kind in group
]


@pytest.mark.parametrize("kind", OTHER)
def test_other_families_of_the_hub(kind):
    """Trees, compaction, and two requests that share forwards, with contexts beyond the window."""
    model, prompts = build(kind), (PROMPT, [5, 6, 7])
    check_engine(eager_engine(model), model)
    truths = [plain_greedy(model, prompt, 20) for prompt in prompts]
    for name in ("wide", "chain"):
        assert (
            decode_script(eager_engine(model), scripts(truths[0])[name], PROMPT, 16).ids
            == truths[0][:16]
        )
    batch = eager_engine(model).batch(2, 64)
    handles = [batch.open(prompt, 16, Walk(None, 0), Needs()) for prompt in prompts]
    found = [[batch.prefill(handle).token] for handle in handles]
    random = Random(7)
    while running := [place for place in range(2) if len(found[place]) < 16]:
        drafts = [
            scripts(truths[place])["wide"]([], len(found[place]), random) for place in running
        ]
        batch.forward([handles[place] for place in running], drafts)
        batch.settle().enter([found[place] for place in running])
    assert found == [truth[:16] for truth in truths]


def test_experts_that_drop_rows_beyond_a_capacity_are_refused():
    model = build("qwen3_moe")
    check_engine(eager_engine(model), model)

    def drop(module, given, output):
        output[:, 2:] = 0
        return output

    model.model.layers[1].mlp.register_forward_hook(drop)
    with pytest.raises(InputError, match="qwen3_moe does not see a draft tree"):
        check_engine(eager_engine(model), model)


@pytest.mark.parametrize(
    ("family", "dtype", "gaps", "passes"),
    [
        ("qwen3_moe", torch.bfloat16, [1.0, 1.0, 0.1], True),
        ("qwen3_moe", torch.bfloat16, [1.0, 1.0, 1.0], False),
        ("qwen3_moe", torch.float32, [1.0], False),
        ("llama", torch.bfloat16, [1.0], False),
    ],
)
def test_a_routers_tie_in_half_precision_is_no_reason(monkeypatch, family, dtype, gaps, passes):
    """A tie shows for one prompt, a wrong mask for all; without a router there are no ties."""
    model = build(family, dtype)
    monkeypatch.setattr(check, "_find_gap", lambda engine, model, number: gaps[number])
    if passes:
        check_engine(eager_engine(model), model)
    else:
        with pytest.raises(InputError, match="logits off by 1 of their spread"):
            check_engine(eager_engine(model), model)


@pytest.mark.parametrize(
    ("kind", "extra", "message"),
    [
        ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2}, "does not see a draft tree"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "cannot be driven"),
        ("mamba", {}, "other state than keys and values"),
    ],
)
def test_a_family_that_cannot_be_served_is_refused(kind, extra, message):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**BASE, **extra})).eval()
    with pytest.raises(InputError, match=message):
        check_engine(eager_engine(model), model)
