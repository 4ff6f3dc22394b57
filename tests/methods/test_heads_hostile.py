"""Head checkpoints that lie or are broken: each ends with a message that names what is wrong, or
drafts as before.
"""

from __future__ import annotations

import json

import pytest
import torch
from block_models import FILES, BlockFamily
from mtp_modules import Module
from safetensors.torch import load_file, save_file

from builders.models import VOCAB
from head_models import HOSTILE, DFlash, Eagle1, bound, damaged, draft_of, run
from head_models import Eagle3 as Eagle3Module
from head_models import PEagle as PEagleModule
from methods.dflash import DFlash as DFlashMethod
from methods.eagle import Mtp
from methods.eagle.eagle import Eagle, Eagle3, PEagle
from specbench.types import InputError

IDS = [5, 6, 7, 8, 9]
AUX = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
SUBSET = torch.arange(10, 100)
BLOCK = {"block_size": 4, "mask_token_id": 3, "target_layer_ids": [0, 1, 1]}
KINDS = {
    "eagle": (Eagle, lambda: Eagle1(), {"bias": True, "qkv_bias": False}),
    "eagle3": (
        Eagle3,
        lambda: Eagle3Module(drafted=90, ids=SUBSET),
        {**AUX, "eagle_config": None, "norm_output": None},
    ),
    "p_eagle": (PEagle, lambda: PEagleModule(), {**AUX, "pard_token": None}),
    "dflash": (
        DFlashMethod,
        lambda: DFlash(),
        {**BLOCK, "markov_rank": None, "dflash_config": None},
    ),
    "lilicorr": (
        DFlashMethod,
        lambda: BlockFamily("lilicorr"),
        {**BLOCK, **FILES["lilicorr"][0], "block_size": 6},
    ),
    "mtp": (Mtp, lambda: Module("speculators"), {}),
}
LAYER = {
    "rope_parameters": None,
    "rope_scaling": None,
    "head_dim": None,
    "hidden_act": "silu",
    "layer_types": None,
    "transformer_layer_config": None,
    "draft_vocab_size": None,
    "attention_bias": False,
}


def saved(kind, folder, **config):
    module = KINDS[kind][1]()
    return module.save(folder, **{**KINDS[kind][2], **config})


@torch.inference_mode()
def drafted(method, model, ids=IDS):
    return [int(token) for token in draft_of(method, model, ids).tokens]


def refused(kind, folder, model) -> str:
    with pytest.raises(InputError) as caught:
        bound(KINDS[kind][0](folder), model)
    return str(caught.value)


def rewritten(folder, **tensors):
    state = load_file(folder / "model.safetensors")
    save_file({**state, **tensors}, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_of_a_setting_ends_in_another_error(model, tmp_path, kind):
    """Every setting of a configuration, one at a time, with values of every JSON type."""
    folder = saved(kind, tmp_path)
    plain = {**LAYER, **json.loads((tmp_path / "config.json").read_text())}
    accepted = []
    for name in plain:
        for value in HOSTILE:
            (tmp_path / "config.json").write_text(json.dumps({**plain, name: value}))
            try:
                drafted(bound(KINDS[kind][0](folder), model), model)
                accepted.append(name)
            except InputError:
                pass
            except Exception as error:
                raise AssertionError(f"{name}={value!r} ends in {error!r}") from error
    assert "rope_scaling" in accepted
    assert "vocab_size" not in accepted


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "p_eagle", "dflash"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"query_pre_attn_scalar": 224, "attn_logit_softcapping": 50},
            "sets attn_logit_softcapping, query_pre_attn_",
        ),
        ({"norm_everything": "yes"}, "sets norm_everything, unknown here"),
        ({"mlp_bias": True}, "mlp_bias=True; expected False"),
        ({"model_type": "gemma"}, "model_type=gemma; expected a family whose layers"),
        ({"model_type": "mistral", "sliding_window": 9}, "a sliding window of 9; expected full"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "turn 0.5 of the dimensions; expected all",
        ),
    ],
)
def test_a_setting_that_changes_the_forward_is_refused_whatever_its_type(
    model, tmp_path, kind, config, message
):
    assert message in refused(kind, saved(kind, tmp_path / "top", **config), model)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("eagle3", {"norm_output": 1}, "norm_output=1; expected True or False"),
        ("eagle3", {"eagle_config": {"use_mtp_layernorm": True}}, "sets use_mtp_layernorm"),
        ("eagle3", {"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step=4; expected"),
        ("eagle3", {"draft_vocab_size": VOCAB + 1}, f"draft_vocab_size={VOCAB + 1}; expected"),
        ("eagle3", {"num_key_value_heads": 3}, "num_key_value_heads=3; expected a multiple"),
        ("eagle3", {"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm"),
        ("eagle3", {"embed_requires_grad": True}, "lacks embed_tokens.weight"),
        ("eagle3", {"speculators_model_type": "peagle"}, "speculators_model_type=peagle; expected"),
        ("p_eagle", {"mask_token_id": 199}, "mask_token_id=199; expected a token below 199"),
    ],
)
def test_settings_of_another_type_or_size_are_named(model, tmp_path, kind, config, message):
    assert message in refused(kind, saved(kind, tmp_path, **config), model)


def test_settings_of_published_configurations_that_do_not_concern_the_forward_are_accepted(
    model, tmp_path
):
    """Names that NVIDIA's exporter, SpecForge's and AngelSlim's configurations hold."""
    nvidia = {
        "eagle_aux_hidden_state_layer_ids": [0, 1],
        "use_input_layernorm_in_first_layer": True,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    forge = {
        "max_window_layers": 36,
        "sliding_window": 512,
        "use_sliding_window": False,
        "target_model_type": "llama",
        "pretraining_tp": 1,
        "additional_fc": False,
        "rope_scaling": None,
    }
    module = Eagle3Module(features=2 * 64)
    plain = module.save(
        tmp_path / "plain", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1]}
    )
    other = module.save(tmp_path / "other", eagle_config=nvidia, **forge)
    assert drafted(bound(Eagle3(other), model), model) == drafted(
        bound(Eagle3(plain), model), model
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc.weight", torch.ones(64, 192).to(torch.float8_e4m3fn), "holds float8_e4m3fn; expected"),
        ("d2t", torch.zeros(90), "d2t holds float32; expected whole numbers"),
        ("d2t", torch.full((90,), -1), "d2t leads to ids from -1 to 88"),
        ("d2t", torch.full((90,), 2**63 - 1), "d2t leads to ids from"),
    ],
)
def test_tensors_of_another_type_or_range_are_named(model, tmp_path, name, value, message):
    saved("eagle3", tmp_path)
    assert message in refused("eagle3", rewritten(tmp_path, **{name: value}), model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_other_tensors_is_refused(model, tmp_path, kind):
    folder = saved(kind, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for name in [*state][:: 1 + len(state) // 6]:
        for changed in () if name in ("d2t", "t2d", "mask_hidden") else damaged(state, name):
            save_file(changed, tmp_path / "model.safetensors")
            refused(kind, folder, model)


def test_offsets_of_a_whole_vocabulary_and_a_tree_wider_than_one(model, tmp_path):
    folder = Eagle3Module().save(tmp_path, **AUX)
    plain = drafted(bound(Eagle3(folder), model), model)
    rewritten(tmp_path, d2t=torch.zeros(VOCAB, dtype=torch.int64))
    assert drafted(bound(Eagle3(folder), model), model) == plain
    rewritten(tmp_path, d2t=torch.arange(VOCAB).flip(0) - torch.arange(VOCAB))
    assert "d2t moves ids of the whole" in refused("eagle3", folder, model)
    folder = Eagle3Module(drafted=4, ids=torch.tensor([9, 40, 70, 120])).save(tmp_path, **AUX)
    message = "drafts 4 different tokens, and a node of the tree has 10 children"
    assert message in refused("eagle3", folder, model)
    assert len(drafted(bound(Eagle3(folder, top_k=4, total_tokens=12), model), model)) == 11


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "p_eagle", "dflash"])
def test_weights_of_a_narrower_type_draft_as_their_values_do(model, tmp_path, kind):
    folder = saved(kind, tmp_path)
    state, drafts = load_file(tmp_path / "model.safetensors"), []
    floats = {name: weight for name, weight in state.items() if weight.is_floating_point()}
    for widen in (torch.Tensor.bfloat16, torch.Tensor.double):
        rewritten(tmp_path, **{name: widen(weight.bfloat16()) for name, weight in floats.items()})
        drafts.append(drafted(bound(KINDS[kind][0](folder), model), model))
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("kind", ["eagle3", "p_eagle", "frequent"])
def test_a_later_turn_is_drafted_as_by_a_fresh_head(model, tmp_path, kind):
    """Memories are used again, but not their content from another turn."""
    (tmp_path / "freq.json").write_text(json.dumps(SUBSET.tolist()))
    folder = saved("eagle" if kind == "frequent" else kind, tmp_path)
    options = {"vocabulary": str(tmp_path / "freq.json")} if kind == "frequent" else {}
    make = {"frequent": Eagle}.get(kind) or KINDS[kind][0]
    used, prompt = bound(make(folder, **options), model), list(IDS)
    for _ in range(3):
        prompt += [*run(model, used, prompt, 20).ids, 11, 12, 13]
    fresh = bound(make(folder, **options), model)
    assert drafted(used, model, prompt) == drafted(fresh, model, prompt)
