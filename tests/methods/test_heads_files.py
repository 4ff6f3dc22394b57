"""Head checkpoints: formats that load, and the messages for those that do not."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from head_models import Eagle1, bound, draft_of, rename
from head_models import Eagle3 as Eagle3Module
from head_models import Medusa as MedusaModule
from methods.eagle.eagle import Eagle, Eagle3, ThirdHead
from methods.medusa import Medusa
from methods.parts.head_file import HeadFile
from specbench.types import InputError

IDS = [5, 6, 7, 8, 9]


def drafted(method, model):
    return draft_of(method, model, IDS).tokens


def refused(method, model) -> str:
    with pytest.raises(InputError) as caught:
        bound(method, model)
    return str(caught.value)


def test_names_and_shapes_are_checked(model, tmp_path):
    folder = Eagle1().save(tmp_path, drop=("fc.bias", "layers.0.mlp.up_proj.weight"))
    message = refused(Eagle(folder), model)
    assert message.startswith(f"head={folder}: no EAGLE head for this target: ")
    assert "lacks fc.bias, layers.0.mlp.up_proj.weight" in message
    folder = Eagle1().save(tmp_path, intermediate_size=100)
    assert "layers.0.mlp.gate_proj.weight [96, 64] (expected [100, 64])" in refused(
        Eagle(folder), model
    )
    other = Eagle1(vocab_size=32000).save(tmp_path / "y")
    assert "made for a vocabulary of 32000; expected the target's 199" in refused(
        Eagle(other), model
    )
    assert "midlayer.hidden_norm.weight" in refused(Eagle(Eagle3Module().save(tmp_path)), model)


def test_what_may_be_there_is_ignored_and_torch_files_are_read_only_when_asked_for(model, tmp_path):
    folder = Eagle1().save(tmp_path)
    plain = drafted(bound(Eagle(folder), model), model)
    state = load_file(tmp_path / "model.safetensors")
    state["embed_tokens.weight"] = torch.randn(199, 64)
    state["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(state, tmp_path / "model.safetensors")
    assert drafted(bound(Eagle(folder), model), model) == plain
    folder = Eagle1().save(tmp_path)
    plain = drafted(bound(Eagle(folder), model), model)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert "holds none of model.safetensors; torch files are read" in refused(Eagle(folder), model)
    assert drafted(bound(Eagle(folder, safetensors=False), model), model) == plain


def test_a_pickle_with_code_is_not_run_and_a_broken_file_is_named(model, tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "written"), "w")

    folder = Eagle1().save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"fc.weight": Bomb()}, tmp_path / "pytorch_model.bin")
    assert "cannot be read as a state dict" in refused(Eagle(folder, safetensors=False), model)
    assert not (tmp_path / "written").exists()
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    assert "model.safetensors cannot be read" in refused(Eagle(folder), model)
    for content, words in (("{", "is not JSON"), ("{}", "has no hidden_size")):
        (tmp_path / "config.json").write_text(content)
        assert f"config.json {words}" in refused(Eagle(folder), model)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, "head: not set, and model=random names none"),
        ("/no/such/folder", "head=/no/such/folder: no such file or folder"),
        ("bundled:nothing", "head=bundled:nothing: no such bundled model"),
        ("someone/no-such-head", "head=someone/no-such-head: config.json cannot be fetched"),
    ],
)
def test_a_head_that_is_not_there_is_named(model, head, message):
    assert message in refused(Eagle(head), model)


@pytest.mark.parametrize("names", ["midlayer", "layers.0"])
def test_names_of_the_speculators_library(model, tmp_path, names):
    module = Eagle3Module(features=3 * 64, norm_before_residual=True)
    folder = module.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    inner = {
        key: value
        for key, value in config.items()
        if key not in ("norm_before_residual", "draft_vocab_size")
    }
    outer = {key: config[key] for key in ("norm_before_residual", "draft_vocab_size")}
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    if names == "layers.0":
        rename(tmp_path, lambda key: key.replace("midlayer.", "layers.0."))
        (tmp_path / "config.json").write_text(
            json.dumps({**outer, **ids, "transformer_layer_config": inner})
        )
    else:
        (tmp_path / "config.json").write_text(json.dumps({**config, **ids}))
    method = bound(Eagle3(folder), model)
    assert method.needs.hidden == (0, 1, 2)
    plain = bound(Eagle3(module.save(tmp_path / "plain", **ids)), model)
    assert drafted(method, model) == drafted(plain, model)


def test_flags_of_other_programs_are_taken(model, tmp_path):
    """NVIDIA's flags say what every head does; NeMo puts ``model.`` in front of names; what is off
    is not asked for.
    """
    module, layers = (
        Eagle3Module(fc_norm=True, norm_output=True),
        {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    )
    plain = bound(Eagle3(module.save(tmp_path / "plain", **layers)), model)
    always = {"use_last_layernorm": True, "use_aux_hidden_state": True, "use_mtp_layernorm": False}
    other = module.save(
        tmp_path / "other", **layers, eagle_config=always, speculators_model_type="eagle3"
    )
    rename(tmp_path / "other", "model.{}".format)
    assert drafted(bound(Eagle3(other), model), model) == drafted(plain, model)
    ignored = module.save(tmp_path / "ignored", **layers, norm_output=False)
    assert drafted(bound(Eagle3(ignored), model), model) != drafted(plain, model)


def fused(layers, **config):
    return ThirdHead.layers_read(HeadFile("x", config, ThirdHead.format, True, None), layers)


def test_which_layers_are_fused():
    assert fused(32) == (2, 16, 29)
    # blocks' outputs
    assert fused(61, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}) == (2, 30, 58)
    assert fused(36, eagle_aux_hidden_state_layer_ids=[2, 18, 33]) == (2, 18, 33)  # hidden states
    for layers in (2, 5):  # the rule's layers coincide or do not exist
        with pytest.raises(
            InputError, match=rf"head=x: without .*; expected different ones of 0 to {layers}"
        ):
            fused(layers)
    with pytest.raises(InputError, match="its configuration names"):
        fused(4, eagle_aux_hidden_state_layer_ids=[1, 2, 9])


def test_random_heads_are_seeded_and_every_bundled_head_fits_its_target(model):
    first, second = (bound(Eagle("random"), model) for _ in range(2))
    assert drafted(first, model) == drafted(second, model)
    assert first.inputs == ()
    from builders.runs import job_for

    # checks each head against the card
    job = job_for("method=[eagle,eagle2,eagle3,p_eagle,medusa,hydra_heads]")
    assert any("tiny_p_eagle" in path for entry in job.entries for path in entry.method.inputs)


@pytest.mark.parametrize("kind", [Eagle, Eagle3, Medusa])
def test_an_eagle_4_head_is_refused_by_name(model, tmp_path, kind):
    """Its window alone would not be: other heads' configurations carry one that is not used."""
    config = {"architectures": ["LlamaForCausalLMEagle4"], "sliding_window": 512, "fc_norm": True}
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    name = "medusa_lm_head.safetensors" if kind is Medusa else "model.safetensors"
    save_file({"fc.weight": torch.zeros(2)}, tmp_path / name)
    assert (
        "config.json names LlamaForCausalLMEagle4, an EAGLE-4 head, which is not implemented"
        in refused(kind(str(tmp_path)), model)
    )


def test_torch_files_of_medusa_are_read_when_asked_for(model, tmp_path):
    torch.save(MedusaModule().state_dict(), tmp_path / "medusa_lm_head.pt")
    assert bound(Medusa(str(tmp_path), safetensors=False), model).inputs == (str(tmp_path),)
