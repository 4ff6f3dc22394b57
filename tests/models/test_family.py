"""Families whose layers a draft tree would break are refused by their configuration, before any
weights.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig

from builders.models import REFUSED
from specbench.models.family import check_family, find_steady_context, find_windows
from specbench.models.load import BUNDLED, load_model, override, read_card
from specbench.types import InputError


@pytest.mark.parametrize(
    ("message", "kind", "extra"),
    [(message, kind, extra) for message, kinds in REFUSED.items() for kind, extra in kinds.items()],
)
def test_refused(message, kind, extra):
    with pytest.raises(
        InputError, match=rf"the family {kind} {message}.*: draft trees would be verified wrongly"
    ):
        check_family(AutoConfig.for_model(kind, **extra), "model")


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "phi3", "qwen2", "qwen3", "gemma2", "gpt2", "olmo2", "falcon"]
)
def test_served(kind):
    config = AutoConfig.for_model(kind)
    check_family(config, "model")
    assert find_windows(config)


def test_rotary_scaling_that_switches_limits_the_context():
    factors = {"short_factor": [1.0] * 48, "long_factor": [4.0] * 48}
    rope = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        **factors,
    }
    config = AutoConfig.for_model("phi3", rope_parameters=rope, max_position_embeddings=131072,
                                  original_max_position_embeddings=4096)  # fmt: skip
    limit, warning = find_steady_context(config, 131072)
    assert limit == 4096
    assert "longrope" in warning
    assert find_steady_context(AutoConfig.for_model("llama"), 2048) == (2048, None)


def test_entries_of_a_configuration_are_set_and_what_it_lacks_or_refuses_is_not():
    config = AutoConfig.for_model(
        "llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    entries = {
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "linear", "factor": 8.0},
    }
    longer = override(config, entries, "model.overrides")
    assert longer.max_position_embeddings == 32768
    assert longer.rope_parameters == {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
    with pytest.raises(InputError, match=r"model.overrides=32768: expected entries"):
        override(config, 32768, "model.overrides")
    with pytest.raises(
        InputError,
        match=r"model.overrides.max_positions: .* no such entry; .* max_position_embeddings",
    ):
        override(config, {"max_positions": 1}, "model.overrides")
    with pytest.raises(
        InputError, match=r"model.overrides.hidden_size=wide: no llama has these entries"
    ):
        override(config, {"hidden_size": "wide"}, "model.overrides")


def test_a_configuration_without_named_outputs_is_computed():
    card = read_card(path=f"{BUNDLED}tiny_draft", device="cpu", overrides={"return_dict": False})
    assert load_model(card)(torch.tensor([[1, 2]])).logits.shape[1] == 2
