"""Random models of every family that the runtime must serve, small enough to enumerate, and their plain decoding."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 199
WINDOW = 12
BASE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "llama": ("llama", {}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": WINDOW}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {}),
    "qwen2-mixed": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}

# Full attention, a window in every layer, in some: in every run; the others in a run of everything.
EVERY_FAMILY = [
    pytest.param(name, marks=[] if name in ("llama", "mistral-window", "qwen2-mixed") else pytest.mark.exhaustive)
    for name in FAMILIES
]


def build(family: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa", seed: int = 0):
    """A seeded random model of ``family``."""
    kind, extra = FAMILIES[family]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**BASE, **extra})
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()


_GREEDY: dict[tuple, list[int]] = {}  # a model and a prompt -> the longest answer requested so far


@torch.inference_mode()
def plain_greedy(model, prompt: list[int], count: int) -> list[int]:
    """Reference: no cache of keys, no mask of ours, the whole context every time. Computed once for equal weights."""
    weights = tuple((tuple(each.shape), each.dtype, float(each.double().sum())) for each in model.parameters())
    known = _GREEDY.setdefault((model.config.to_json_string(), weights, tuple(prompt)), [])
    while len(known) < count:
        ids = torch.tensor([[*prompt, *known]])
        known.append(int(model(ids, use_cache=False).logits[0, -1].argmax()))
    return known[:count]
