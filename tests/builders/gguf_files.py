"""GGUF files of the bundled model, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from specbench.names import ASSETS

TINY = ASSETS / "tiny"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """(rows, in) of a query or key: llama.cpp turns neighbours, transformers halves of a head."""
    return (
        weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)
    )


def write_gguf(
    path: Path,
    kind: str = "F32",
    pre: str = "smollm",
    more: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    family: str = "llama",
    renamed: Mapping[str, str] | None = None,
) -> Path:
    """Write the bundled model. kind: of its matrices. more: entries, extra: tensors in addition.
    renamed: tokens.
    """
    config = json.loads((TINY / "config.json").read_text())
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    weights = load_file(TINY / "model.safetensors")
    out = gguf.GGUFWriter(path, family)
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pre)
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {each["content"] for each in tokenizer["added_tokens"]}
    out.add_token_list([(renamed or {}).get(token, token) for token, _ in vocab])
    out.add_token_types([3 if token in special else 1 for token, _ in vocab])
    out.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_chat_template(json.loads((TINY / "tokenizer_config.json").read_text())["chat_template"])
    for key, value in (more or {}).items():
        add = out.add_uint32 if isinstance(value, int) else out.add_string
        add(key, value)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, stored in weights.items():
        own, weight = name_of(name), stored.astype(np.float32)
        part = own.split(".")[-2]
        add_tensor(out, own, permute(weight, heads[part]) if part in heads else weight, kind)
    for name, weight in (extra or {}).items():
        out.add_tensor(name, weight)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def add_tensor(out: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: str) -> None:
    """Add a tensor, a matrix in blocks of this kind."""
    if kind == "F32" or weight.ndim == 1:
        out.add_tensor(name, weight)
        return
    blocks = gguf.GGMLQuantizationType[kind]
    out.add_tensor(name, gguf.quants.quantize(weight, blocks), raw_dtype=blocks)


def name_of(name: str) -> str:
    """Return llama.cpp's name of a weight."""
    ends = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in ends:
        return ends[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"
