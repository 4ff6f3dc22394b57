"""Seeded random weights: any shape, to test and to time."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specbench.models.facade import ModelCard


def draw_weights(card: ModelCard, seed: int, device: str, **options: Any) -> Any:
    """The causal LM of a card, its weights drawn on ``device`` itself: a CPU and a GPU draw other numbers.

    options: of the library's ``from_config``.
    """
    place = torch.device(device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []), place:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(card.config, dtype=getattr(torch, card.dtype), **options)
