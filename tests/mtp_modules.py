"""MTP modules as their authors have them, over a whole sequence and without a cache, and
checkpoints of each layout.
"""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from builders.models import BASE
from head_models import SHAPE, causal, states

LAYERS = BASE["num_hidden_layers"]
PARTS = ("input_proj", "hidden_layernorm", "token_layernorm", "final_layernorm")
EIGENNAMES = dict(zip(PARTS, ("eh_proj", "hnorm", "enorm", "shared_head.norm"), strict=True))
QWEN = ("fc", "pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm")
NATIVE = {"num_nextn_predict_layers": 1}
LAYOUTS = {
    "mimo": (
        "qwen2",
        {"model_type": "mimo", "attention_bias": True, **NATIVE},
        "model.mtp_layers.0.",
    ),
    "deepseek": ("llama", {"model_type": "llama", **NATIVE}, f"model.layers.{LAYERS}."),
    "speculators": ("qwen3", {"model_type": "qwen3"}, "mtp_layers.0."),
}


class Module(nn.Module):
    """A layout's forward as its authors have it, over a whole sequence; wrong: otherwise."""

    fast = False  # FastMTP's checkpoint of MiMo
    wrong, inner = None, ""  # inner: the prefix of the layer's own tensors

    def __init__(self, layout: str, place: int = 0, **shape) -> None:
        super().__init__()
        torch.manual_seed(4 + place)
        # the layer's settings are a part of the configuration
        self.nested = layout == "speculators"
        self.layout, (family, raw, first) = layout, LAYOUTS[layout]
        self.raw, self.names = (
            {**SHAPE, "head_dim": 16, **raw},
            EIGENNAMES if layout == "deepseek" else {},
        )
        stem, number, _ = first.rsplit(".", 2)
        self.prefix = f"{stem}.{int(number) + place}."
        config = AutoConfig.for_model(family, **{**SHAPE, "head_dim": 16, **shape})
        config._attn_implementation = "eager"
        layers = {
            "qwen2": Qwen2DecoderLayer,
            "llama": LlamaDecoderLayer,
            "qwen3": Qwen3DecoderLayer,
        }
        self.block, self.rope = layers[family](config, 0), [LlamaRotaryEmbedding(config)]
        self.input_proj = nn.Linear(128, 64, bias=False)
        for name in ("hidden_layernorm", "token_layernorm", "final_layernorm"):
            setattr(self, name, nn.RMSNorm(64, eps=SHAPE["rms_norm_eps"]))
        for name, weight in self.named_parameters():
            if "norm" in name:
                nn.init.normal_(weight, 1.0, 0.1)
        self.double()

    def layer(self, model, hidden, ids):
        """(T, D) states that go on, of states and the tokens that follow them."""
        norms = [self.token_layernorm, self.hidden_layernorm]
        if self.wrong == "norms":
            norms = norms[::-1]
        if self.wrong == "tokens":
            ids = ids.roll(1)
        parts = [norms[0](model.get_input_embeddings()(ids)), norms[1](hidden)]
        turned = (self.layout == "mimo") != (self.wrong == "order")
        mixed = self.input_proj(torch.cat(parts[::-1] if turned else parts, dim=-1))[None]
        places = torch.arange(len(ids))
        if self.wrong == "positions":
            places[-1] += 1
        given = {
            "position_embeddings": self.rope[0](mixed, places[None]),
            "position_ids": places[None],
        }
        written = self.block(mixed, attention_mask=causal(len(ids), mixed.dtype), **given)[0]
        return written if self.layout == "deepseek" else self.final_layernorm(written)

    @torch.inference_mode()
    def rows(self, model, ids, drafted=None, length=4):
        """(length, V) logits behind ``ids`` and the tokens drafted so far, each the best one or
        that of ``drafted``.
        """
        bare = self.layout == "mimo" and not self.fast
        hidden = bare_states(model, ids[:-1]) if bare else states(model, ids[:-1])[-1]
        following, found = torch.tensor(ids[1:]), []
        for place in range(length):
            last = self.layer(model, hidden, following)[-1:]
            behind = self.final_layernorm(last) if self.layout == "deepseek" else last
            found.append(model.get_output_embeddings()(behind)[0])
            token = found[-1].argmax() if drafted is None else torch.tensor(drafted[place])
            hidden, following = torch.cat([hidden, last]), torch.cat([following, token[None]])
        return torch.stack(found)

    def chain(self, model, ids):
        return self.rows(model, ids).argmax(-1).tolist()

    def tensors(self, drop=()):
        """The checkpoint's names, each expert apart."""
        found = {}
        for name, weight in self.state_dict().items():
            own = not name.startswith("block.")
            stem, _, last = name.removeprefix("block.").rpartition(".")
            stem = self.names.get(stem, stem) if own else self.inner + stem
            if stem.endswith("mlp.experts"):
                for expert, both in enumerate(weight):
                    parts = {"down_proj": both}
                    if last == "gate_up_proj":
                        parts = dict(zip(("gate_proj", "up_proj"), both.chunk(2), strict=True))
                    found |= {
                        f"{self.prefix}{stem}.{expert}.{part}.weight": parts[part].clone()
                        for part in parts
                    }
            elif stem not in drop:
                found[f"{self.prefix}{stem}.{last}"] = weight.contiguous()
        return found

    def save(self, folder, more=(), drop=(), **config):
        """In two files with an index, as large checkpoints are, or in one."""
        folder.mkdir(parents=True, exist_ok=True)
        raw = {**self.raw, **config}
        if self.nested:
            raw = {"speculators_model_type": "mtp", "transformer_layer_config": raw, **config}
            save_file({**self.tensors(drop), **dict(more)}, folder / "model.safetensors")
        else:
            stored = {**self.tensors(drop), **dict(more), "model.norm.weight": torch.ones(64)}
            placed = {
                name: f"model-{place % 2}.safetensors" for place, name in enumerate(sorted(stored))
            }
            for part in set(placed.values()):
                save_file(
                    {name: stored[name] for name, at in placed.items() if at == part},
                    folder / part,
                    {"format": "pt"},
                )
            (folder / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": placed})
            )
        (folder / "config.json").write_text(json.dumps(raw))
        return str(folder)


class FamilyModule(Module):
    """A module with the last layer of a target's family."""

    def __init__(self, model, place: int = 0) -> None:
        nn.Module.__init__(self)
        torch.manual_seed(4 + place)
        self.nested = False
        self.raw = {**model.config.to_dict(), **NATIVE, "dtype": None}
        gated = model.config.model_type == "qwen3_next"
        if gated:
            self.layout, self.names, self.inner = (
                "speculators",
                dict(zip(PARTS, QWEN, strict=True)),
                "layers.0.",
            )
            self.prefix = "mtp."
            del self.raw["num_nextn_predict_layers"]
        else:
            self.layout, self.names = "deepseek", EIGENNAMES
            self.prefix = f"model.layers.{LAYERS + place}."
        self.block, self.rope = (
            type(model.model.layers[-1])(model.config, 1),
            [model.model.rotary_emb],
        )
        self.input_proj = nn.Linear(128, 64, bias=False)
        for name in PARTS[1:]:
            setattr(self, name, type(model.model.norm)(64, eps=model.config.rms_norm_eps))
        for name, weight in self.state_dict().items():
            about = 0.0 if gated or "bias" in name else 1.0
            nn.init.normal_(
                weight, *((about, 0.3) if "norm" in name or "bias" in name else (0.0, 0.3))
            )
        self.double()


@torch.inference_mode()
def in_turn(modules, model, ids, length, drafted=()):
    """(length, V) logits by the report's equations, in float64: every module over all rows, as
    often as it is needed.

    drafted: tokens in place of the best ones.
    """
    known, rows, found = list(ids), len(ids) - 1, []
    bare = modules[0].layout == "mimo"
    first = bare_states(model, ids[:-1]) if bare else states(model, ids[:-1])[-1]
    for depth in range(1, length + 1):
        hidden, last = first, min(depth, len(modules))
        for k, module in enumerate(modules[:last], 1):
            read, hidden = hidden, module.layer(model, hidden, torch.tensor(known[k : k + rows]))
        # behind the last module: a row more, which reads its own state
        for more in range(1, depth - last + 1):
            read = torch.cat([read, hidden[-1:]])
            hidden = module.layer(model, read, torch.tensor(known[last : last + rows + more]))
        state = module.final_layernorm(hidden) if module.layout == "deepseek" else hidden
        found.append(model.get_output_embeddings()(state[-1]))
        known.append(drafted[depth - 1] if drafted else int(found[-1].argmax()))
    return torch.stack(found)


@torch.inference_mode()
def bare_states(model, ids):
    """(T, D) what the final norm reads."""
    seen = []
    hook = model.model.norm.register_forward_pre_hook(
        lambda module, given: seen.append(given[0][0])
    )
    model(torch.tensor([list(ids)]), use_cache=False)
    hook.remove()
    return seen[0]
