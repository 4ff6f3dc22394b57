"""MTP modules with experts, latent or gated attention draft what the layer of transformers gives without a cache."""

from __future__ import annotations

import json

import pytest
import torch
from mtp_modules import Module, in_turn, refuse_or_draft
from safetensors.torch import load_file, save_file
from torch import nn

from builders.models import build, plain_greedy
from draft_models import draft_together
from head_models import CONTEXT, begun, bound, causal, damaged, run, watched
from methods.eagle import Mtp
from methods.eagle.mtp import LibraryLayer
from specbench.decode.sampling import Sampling
from specbench.models.facade import ModelCard, Target
from specbench.models.load import LibraryConfig, load_model
from specbench.types import InputError

QWEN_NAMES = {"input_proj": "fc", "hidden_layernorm": "pre_fc_norm_hidden", "token_layernorm": "pre_fc_norm_embedding",
              "final_layernorm": "norm"}  # fmt: skip
EVERY = ["deepseek_v3", "qwen3_next", "glm4_moe", pytest.param("glm4_moe_lite", marks=pytest.mark.exhaustive)]
IDS = [5, 6, 7, 8, 9]


class FamilyModule(Module):
    """A module with the last layer of a target's family, over a whole sequence and without a cache."""

    def __init__(self, model, place: int = 0, wrong: str | None = None) -> None:
        nn.Module.__init__(self)
        torch.manual_seed(4 + place)
        self.fast, self.nested, self.wrong, self.config = False, False, wrong, model.config
        self.gated = model.config.model_type == "qwen3_next"
        self.layout = "speculators" if self.gated else "deepseek"  # the same order; the first one norms what goes on
        self.prefix = "mtp." if self.gated else f"model.layers.{model.config.num_hidden_layers + place}."
        self.raw = {}
        self.block, self.rope = type(model.model.layers[-1])(model.config, 1), [model.model.rotary_emb]
        self.input_proj = nn.Linear(128, 64, bias=False)
        for name in ("hidden_layernorm", "token_layernorm", "final_layernorm"):
            setattr(self, name, type(model.model.norm)(64, eps=model.config.rms_norm_eps))
        for name, weight in self.state_dict().items():
            about = 0.0 if self.gated or "bias" in name else 1.0
            nn.init.normal_(weight, *((about, 0.3) if "norm" in name or "bias" in name else (0.0, 0.3)))
        self.double()

    def layer(self, model, hidden, ids):
        norms = self.token_layernorm, self.hidden_layernorm
        if self.wrong == "norms":
            norms = norms[::-1]
        if self.wrong == "tokens":
            ids = ids.roll(1)
        parts = [norms[0](model.get_input_embeddings()(ids)), norms[1](hidden)]
        mixed = self.input_proj(torch.cat(parts[::-1] if self.wrong == "order" else parts, dim=-1))[None]
        places = torch.arange(len(ids))
        if self.wrong == "positions":
            places[-1] += 1
        given = {"position_embeddings": self.rope[0](mixed, places[None]), "position_ids": places[None]}
        written = self.block(mixed, attention_mask=causal(len(ids), mixed.dtype), **given)[0]
        return written if self.layout == "deepseek" else self.final_layernorm(written)

    def configure(self, raw):
        return type(self.config).from_dict(raw)

    def tensors(self, drop=()):
        """The checkpoint's names, each expert apart."""
        found = {}
        for name, weight in self.state_dict().items():
            own = not name.startswith("block.")
            stem, _, last = name.removeprefix("block.").rpartition(".")
            if self.gated:
                stem = QWEN_NAMES[stem] if own else f"layers.0.{stem}"
            elif own:
                stem = {"input_proj": "eh_proj", "hidden_layernorm": "hnorm", "token_layernorm": "enorm",
                        "final_layernorm": "shared_head.norm"}[stem]  # fmt: skip
            if stem.endswith("mlp.experts"):
                for expert, both in enumerate(weight):
                    parts = {"down_proj": both}
                    if last == "gate_up_proj":
                        parts = dict(zip(("gate_proj", "up_proj"), both.chunk(2), strict=True))
                    found |= {f"{self.prefix}{stem}.{expert}.{part}.weight": parts[part].clone() for part in parts}
            elif stem not in drop:
                found[f"{self.prefix}{stem}.{last}"] = weight.contiguous()
        return found

    def save(self, folder, more=(), drop=(), **config):
        raw = {**self.config.to_dict(), "num_nextn_predict_layers": 1}
        if self.gated:
            del raw["num_nextn_predict_layers"]
        path = super().save(folder, more, drop)
        (folder / "config.json").write_text(json.dumps({**raw, "dtype": None, **config}))
        return path


@pytest.fixture(scope="module", params=EVERY)
def model(request):
    return build(request.param, torch.float64)


@pytest.fixture(scope="module")
def latent():
    return build("deepseek_v3", torch.float64)


def test_a_chain_is_the_modules(model, tmp_path):
    """For every step of a request, and behind a prompt of one token."""
    module = FamilyModule(model)
    method = bound(Mtp(module.save(tmp_path), length=4), model)
    assert isinstance(method.bound.layers, LibraryLayer)
    drafts = watched(method)
    for prompt in ([5, 6, 7, 8], [5]):
        assert run(model, method, prompt, 12).ids == plain_greedy(model, prompt, 12)
    assert len(drafts) >= 6
    made = [(context, [int(token) for token in draft.tokens]) for context, draft in drafts]
    for context, tokens in made:
        assert tokens == module.chain(model, context)[: len(tokens)]
    for wrong in ("norms", "order", "tokens", "positions"):
        other = FamilyModule(model, wrong=wrong)
        assert any(tokens != other.chain(model, context)[: len(tokens)] for context, tokens in made), wrong
    other = FamilyModule(model)
    other.layout = {"deepseek": "speculators", "speculators": "deepseek"}[module.layout]
    assert any(tokens != other.chain(model, context)[: len(tokens)] for context, tokens in made)


def test_drawn_tokens_state_the_modules_own_distributions(model, tmp_path):
    module, sampling = FamilyModule(model), Sampling(0.8, top_k=20)
    method = bound(Mtp(module.save(tmp_path), length=4), model, sampling)
    draft = begun(method, model, IDS).propose(IDS, 64)
    tokens = [int(token) for token in draft.tokens]
    right = sampling(module.rows(model, IDS, tokens))
    torch.testing.assert_close(draft.probs, right, atol=1e-4, rtol=1e-3)
    wrong = sampling(FamilyModule(model, wrong="positions").rows(model, IDS, tokens))
    assert not torch.allclose(draft.probs, wrong, atol=1e-3)
    assert len(run(model, method, IDS, 20, sampling).ids) == 20


def test_a_tree_a_second_module_and_shared_forwards(latent, tmp_path):
    modules = [FamilyModule(latent, place) for place in range(2)]
    folder = modules[0].save(tmp_path, modules[1].tensors(), num_nextn_predict_layers=2)
    tree = bound(Mtp(folder, modules=1, choices=[[2], [2, 1], [1, 1, 1]]), latent)
    draft = begun(tree, latent, IDS).propose(IDS, 64)
    ids, parents = [int(token) for token in draft.tokens], list(draft.parents)
    for node, parent in enumerate(parents):
        path = [ids[node]]
        while parent != -1:
            path.insert(0, ids[parent])
            parent = parents[parent]
        best = modules[0].rows(latent, IDS, path, len(path))[-1].topk(2).indices.tolist()
        assert path[-1] in best
    assert run(latent, tree, IDS, 12).ids == plain_greedy(latent, IDS, 12)
    method = bound(Mtp(folder, length=3), latent)
    contexts = [[5, 6, 7, 11], [9, 8], [3, 4] * 6]
    drafts = draft_together([begun(method, latent, ids) for ids in contexts], contexts)
    for draft, ids in zip(drafts, contexts, strict=True):
        assert draft.tokens.tolist() == in_turn(modules, latent, ids, 3).argmax(-1).tolist()


def test_a_long_prompt_is_read_in_parts(latent, tmp_path, monkeypatch):
    """The wrong variant is a mask that shows the later tokens of a part, which the second module notices."""
    contexts = [[place * step % 90 + 5 for place in range(70)] for step in (7, 11, 13)]
    modules = [FamilyModule(latent, place) for place in range(2)]
    folder = modules[0].save(tmp_path, modules[1].tensors(), num_nextn_predict_layers=2)
    method = bound(Mtp(folder, length=3), latent)
    parts = lambda end, start: [slice(at, min(at + 16, end)) for at in range(start, end, 16)]  # noqa: E731
    monkeypatch.setattr("methods.eagle.mtp.list_masked_chunks", parts)

    def drafts():
        return [begun(method, latent, ids).propose(ids, 64).tokens.tolist() for ids in contexts]

    right = [in_turn(modules, latent, ids, 3).argmax(-1).tolist() for ids in contexts]
    assert drafts() == right
    mask = "methods.eagle.mtp.build_causal_mask"
    monkeypatch.setattr(mask, lambda end, window, dtype, start: torch.zeros(1, 1, end - start, end, dtype=dtype))
    assert drafts() != right


def test_a_routers_bias_keeps_its_precision(tmp_path):
    """In bfloat16 two experts whose biases differ by less than its rounding would be one."""
    model = build("deepseek_v3", torch.bfloat16)
    module = FamilyModule(model).float()
    bias = module.block.mlp.gate.e_score_correction_bias
    bias.copy_(torch.tensor([1.0, 1.0001, 1.0002, 1.0003]))
    method = bound(Mtp(module.save(tmp_path)), model)
    loaded = method.bound.layers._model.layers[0].mlp
    assert torch.equal(loaded.gate.e_score_correction_bias, bias)
    assert loaded.experts.down_proj.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "qwen3_5_moe"}, r"gated attention \(qwen3_5_moe\), model_type=qwen3_5_moe; .*glm4_moe"),
        ({"model_type": "mixtral"}, r"a mixture of experts \(n_routed_experts\).*or a layer of deepseek_v3, glm4_moe"),
        ({"num_centroids": 4}, "an output head of two levels"),
        ({"n_routed_experts": 5000}, "n_routed_experts=5000; expected a whole number from 1 to 4096"),
        ({"n_routed_experts": 3}, "holds unexpected mlp.experts.3.down_proj.weight"),
        ({"kv_lora_rank": 8}, r"differs in shape self_attn.kv_a_layernorm.weight \[16\] \(expected \[8\]\)"),
        ({"vocab_size": 100}, "made for a vocabulary of 100; expected the target's 199"),
        ({"hidden_size": 32}, "made for a hidden size of 32; expected the target's 64"),
        ({"quantization_config": {"quant_method": "fp8"}}, "sets quantization_config, unknown here"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4,
                              "original_max_position_embeddings": 64}}, "its rotary positions change with the length"),
    ],
)  # fmt: skip
def test_a_module_that_is_not_computed_is_refused_by_name(latent, tmp_path, config, reason):
    with pytest.raises(InputError, match=reason):
        bound(Mtp(FamilyModule(latent).save(tmp_path, **config)), latent)


FEW = ("kv_lora_rank", "n_group", "num_experts_per_tok", "moe_intermediate_size", "rope_interleave")


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("deepseek_v3", FEW),
        pytest.param("deepseek_v3", (), marks=pytest.mark.exhaustive),
        pytest.param("qwen3_next", (), marks=pytest.mark.exhaustive),
    ],
)
def test_no_value_of_a_setting_ends_in_another_error(family, names, tmp_path):
    """names: of the settings; none = all, which takes over a minute."""
    model = build(family, torch.float64)
    module = FamilyModule(model)
    folder = module.save(tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    refuse_or_draft(model, module, folder, plain, names or plain)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_a_module_with_other_tensors_is_refused(family, tmp_path):
    model = build(family, torch.float64)
    module = FamilyModule(model)
    folder, state = module.save(tmp_path), module.tensors()
    (tmp_path / "model.safetensors.index.json").unlink()
    for name in [*state][:: 1 + len(state) // 12]:
        for changed in damaged(state, name):
            save_file(changed, tmp_path / "model.safetensors")
            with pytest.raises(InputError):
                bound(Mtp(folder), model)


def test_target_and_module_of_one_checkpoint(model, tmp_path):
    """As ``save_pretrained`` writes the target, with its module in a file after it; no head is named."""
    module = FamilyModule(model)
    model.save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    folder = module.save(tmp_path, whole, architectures=[type(model).__name__])
    config = LibraryConfig.from_pretrained(folder)
    card = ModelCard("own", folder, config, None, CONTEXT, frozenset(), "float64", "cpu")
    target, method = load_model(card), Mtp(length=4)
    method.check(card)
    method.bind(Target(card, target, 256, None))
    assert [int(token) for token in begun(method, target, IDS).propose(IDS, 64).tokens] == module.chain(model, IDS)
    assert run(target, method, IDS, 8).ids == plain_greedy(model, IDS, 8)
