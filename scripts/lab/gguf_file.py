"""A folder of the Llama family as a file of llama.cpp, in single precision, for a byte-level BPE tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from specbench.types import InputError

LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(folder: Path, path: Path) -> None:
    """The tokenizer splits digits in another way than llama.cpp's: send it ids, not text. Raises InputError."""
    try:
        from gguf import GGUFWriter, TokenType  # an extra that nothing else needs
    except ImportError as error:
        raise InputError(
            "the package gguf, which writes the files of llama.cpp, is not there: pip install gguf"
        ) from error

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = GGUFWriter(path, "llama")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    special = {each["id"] for each in tokenizer["added_tokens"]}
    names = tokenizer["model"]["vocab"] | {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    tokens = sorted(names, key=names.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if names[each] in special else TokenType.NORMAL for each in tokens])
    writer.add_token_merges(
        [each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    for name, weight in load_file(folder / "model.safetensors").items():
        writer.add_tensor(*_renamed(name, weight.astype(np.float32), config))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


def _renamed(name: str, weight: np.ndarray, config: dict) -> tuple[str, np.ndarray]:
    """llama.cpp turns pairs of neighbours, where the library turns pairs half a head apart."""
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight", weight
    _, _, number, part = stem.split(".", 3)
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(part)
    if heads:
        shape = config[heads], 2, config["head_dim"] // 2
        weight = weight.reshape(*shape, -1).swapaxes(1, 2).reshape(weight.shape)
    return f"blk.{number}.{LAYER[part]}.weight", weight
