"""Random weights: drawn where they are to be, the same ones for a seed, and on a CPU as ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ranks import card_of
from transformers import AutoModelForCausalLM

from builders.models import build
from specbench.models import load
from specbench.models.load import draw_weights


def test_on_a_cpu_they_are_the_librarys_own_for_the_seed():
    card = card_of(build("llama"))
    torch.manual_seed(3)
    expected = AutoModelForCausalLM.from_config(card.config, dtype=torch.float32).state_dict()
    torch.manual_seed(99)
    following = torch.rand(1)
    torch.manual_seed(99)
    found = load.load_model(card, seed=3).state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert torch.equal(torch.rand(1), following), "the caller's random numbers go on"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_they_are_drawn_on_their_device(device, monkeypatch):
    card = replace(card_of(build("llama")), device=device)
    drawn = draw_weights(card, 0, device)
    assert {parameter.device.type for parameter in drawn.parameters()} == {device}
    asked = []
    monkeypatch.setattr(
        load, "draw_weights", lambda card, seed, device, **_: asked.append(device) or drawn
    )
    assert load.load_model(card) is drawn
    assert asked == [device]
