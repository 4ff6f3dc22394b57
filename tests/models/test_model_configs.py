"""Every model of conf/model composes, and a toy of each kind of real configuration decodes losslessly.

The shapes are those of the published config.json files; the toy keeps family, head grouping, rotary settings, window
and tied embeddings, and shrinks width, depth and vocabulary.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builders.engines import assert_greedy, eager_engine
from builders.runs import composed
from specbench.runs.config import conf_dir

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
# name -> (model_type, attention heads, key-value heads, head size, what else shapes the forward)
REAL = {
    "llama2_7b": ("llama", 32, 32, 128, {}),
    "llama2_70b": ("llama", 64, 8, 128, {}),
    "llama3_1_8b": ("llama", 32, 8, 128, {"rope_parameters": LLAMA3_ROPE}),
    "llama3_2_1b": ("llama", 32, 8, 64, {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "mistral_7b": ("mistral", 32, 8, 128, {"sliding_window": None, "rope_theta": 1e6}),
    "phi3_mini": ("phi3", 32, 32, 96, {"sliding_window": 2047}),
    "mimo_7b": ("qwen2", 32, 8, 128, {"rope_theta": 640000.0, "use_sliding_window": False}),
    "qwen2_5_7b": ("qwen2", 28, 4, 128, {"rope_theta": 1e6, "use_sliding_window": False}),
    "qwen3_8b": ("qwen3", 32, 8, 128, {"rope_theta": 1e6, "use_sliding_window": False, "head_dim": 16}),
}
NAMES = sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_composes(name):
    cfg = composed(f"model={name}")
    assert cfg.hydra.run.dir.startswith("results/")
    assert (conf_dir() / "model" / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("name", REAL)
def test_toy_of_the_real_configuration(name):
    """Of each kind of shape one model: the others differ in width and depth alone."""
    family, heads, groups, size, extra = REAL[name]
    ratio = heads // groups
    toy_groups = 2 if groups > 1 else 1
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=199, num_hidden_layers=2, num_attention_heads=ratio * toy_groups,
        num_key_value_heads=toy_groups, hidden_size=ratio * toy_groups * size // 8, intermediate_size=96,
        max_position_embeddings=4096, initializer_range=0.4, bos_token_id=1, eos_token_id=2, pad_token_id=0, **extra,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    for script in ("wide", "empty"):
        assert_greedy(eager_engine(model), model, [5, 17, 3], 20, script)
