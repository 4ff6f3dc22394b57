"""Random models of every family that the runtime must serve, small enough to enumerate, and their
plain decoding.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.models.load import choose_experts

VOCAB = 199
WINDOW = 12
BASE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "initializer_range": 0.4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "llama": ("llama", {}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": WINDOW}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {}),
    "qwen2-mixed": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
}

# Families that only the eager engine runs, by their attention and feed-forward: the entries of a
# small random model.
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 16, "v_head_dim": 16}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
          "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}  # fmt: skip
QWEN_MOE = {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 48}
LOCAL = {"num_experts_per_tok": 2, "num_local_experts": 4}
SHORT, HEAD = {"sliding_window": WINDOW}, {"head_dim": 16}
SMALL_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
EAGER_ONLY = {
    "dense": {
        "apertus": {}, "arcee": {}, "bitnet": {}, "cohere": {}, "cohere2": SHORT, "ernie4_5": HEAD,
        "exaone": {}, "exaone4": SHORT, "falcon": {}, "gemma": HEAD, "gemma2": {**HEAD, **SHORT},
        "gemma3_text": {**HEAD, **SHORT}, "glm": HEAD, "glm4": HEAD, "gpt2": SMALL_GPT,
        "gpt_bigcode": SMALL_GPT, "gpt_neox": {}, "gptj": {**SMALL_GPT, "rotary_dim": 8},
        "granite": {}, "helium": HEAD, "hunyuan_v1_dense": HEAD, "ministral": {**HEAD, **SHORT},
        "ministral3": HEAD, "nanochat": {}, "nemotron": {}, "olmo": {}, "olmo2": {}, "olmo3": SHORT,
        "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64}, "persimmon": {}, "phi": {},
        "seed_oss": HEAD, "smollm3": {}, "stablelm": {}, "starcoder2": SHORT,
        "vaultgemma": {**HEAD, **SHORT},
    },
    "experts": {
        "afmoe": {**EXPERTS, **HEAD, **SHORT, "num_experts": 4, "num_dense_layers": 1},
        "dots1": ROUTED,
        "ernie4_5_moe": {"moe_intermediate_size": 48, "moe_num_experts": 4, "moe_k": 2,
        "moe_num_shared_experts": 1}, "flex_olmo": {"num_experts": 4,
        "num_experts_per_tok": 2}, "glm4_moe": {**ROUTED, **HEAD}, "gpt_oss": {**LOCAL, **HEAD,
        **SHORT}, "granitemoe": LOCAL, "granitemoeshared": LOCAL,
        "hunyuan_v1_moe": {**HEAD, "num_experts": 4, "moe_topk": 2},
        "minimax_m2": {**LOCAL, **HEAD}, "mixtral": LOCAL,
        "olmoe": {"num_experts": 4, "num_experts_per_tok": 2}, "phimoe": LOCAL,
        "qwen2_moe": QWEN_MOE, "qwen3_moe": {**QWEN_MOE, **HEAD}, "solar_open": {**ROUTED, **HEAD},
    },
    "latent attention": {
        "deepseek_v2": {**ROUTED, **LATENT}, "deepseek_v3": {**ROUTED, **LATENT},
        "glm4_moe_lite": {**ROUTED, **LATENT}, "minicpm3": LATENT, "youtu": LATENT,
    },
    "gated attention": {"qwen3_next": {**QWEN_MOE, **HEAD, "layer_types": ["full_attention"] * 2}},
}  # fmt: skip
RECURRENT = (
    "bamba",
    "falcon_mamba",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "mamba",
    "mamba2",
    "minimax",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_next",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "recurrent_gemma",
)
REFUSED = {  # the beginning of a message -> families, with the entries that they are refused for
    "has layers of the kind linear_attention": {kind: {} for kind in RECURRENT},
    "has layers of the kind hybrid": {"falcon_h1": {}},
    "has layers of the kind conv": {"lfm2": {"layer_types": ["conv", "full_attention"] * 16},
                                    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16}},
    "has layers of the kind indexed_attention": {"deepseek_v32": {}, "glm_moe_dsa": {}},
    "has layers of the kind chunked_attention": {"llama4_text": {}},
    "takes positions from cache slots": {"bloom": {}, "mpt": {}, "falcon": {"alibi": True}},
    "has local attention by cache slots": {"gpt_neo": {}},
}  # fmt: skip
WITHOUT_SDPA = ("gemma2", "gpt_oss", "vaultgemma")
SHAPES = {
    **FAMILIES,
    "llama-80": ("llama", {"head_dim": 80}),
    **{kind: (kind, extra) for group in EAGER_ONLY.values() for kind, extra in group.items()},
}

# Full attention, a window in every layer, in some: in every run; the others in a run of everything.
EVERY_FAMILY = [
    pytest.param(
        name,
        marks=[] if name in ("llama", "mistral-window", "qwen2-mixed") else pytest.mark.exhaustive,
    )
    for name in FAMILIES
]


def build(
    family: str, dtype: torch.dtype = torch.float32, attention: str | None = None, seed: int = 0
):
    """A seeded random model of ``family``; its attention is SDPA if the family has it."""
    kind, extra = SHAPES[family]
    attention = attention or ("eager" if kind in WITHOUT_SDPA else "sdpa")
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**BASE, **extra})
    options = {"attn_implementation": attention, "experts_implementation": choose_experts(dtype)}
    return AutoModelForCausalLM.from_config(config, dtype=dtype, **options).eval()


_GREEDY: dict[tuple, list[int]] = {}  # a model and a prompt -> the longest answer requested so far


@torch.inference_mode()
def plain_greedy(model, prompt: list[int], count: int) -> list[int]:
    """Reference: no cache of keys, no mask of ours, the whole context every time. Computed once for
    equal weights.
    """
    weights = tuple(
        (tuple(each.shape), each.dtype, float(each.double().sum())) for each in model.parameters()
    )
    known = _GREEDY.setdefault((model.config.to_json_string(), weights, tuple(prompt)), [])
    while len(known) < count:
        ids = torch.tensor([[*prompt, *known]])
        known.append(int(model(ids, use_cache=False).logits[0, -1].argmax()))
    return known[:count]
