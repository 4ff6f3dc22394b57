"""The peers decode with the run's settings, whatever the model's repository says."""

from __future__ import annotations

import torch

from builders.models import VOCAB, build, plain_greedy
from methods.hf_generate import HFGenerate
from specbench.models.facade import ModelCard, Target


def decode(model, limit: int = 30) -> list[int]:
    card = ModelCard("m", "random", model.config, None, 512, frozenset(), "float64", "cpu")
    method = HFGenerate()
    method.bind(Target(card, model, 64, None))
    found: list[int] = []
    method.decode([5, 6], limit, 0, lambda ids: bool(found.extend(ids)))
    return found


def test_the_repositorys_generation_config_does_not_leak():
    model = build("llama", torch.float64)
    truth = plain_greedy(model, [5, 6], 30)
    model.generation_config.repetition_penalty = 1.8
    model.generation_config.suppress_tokens = [truth[0], truth[1] % VOCAB]
    assert decode(model) == truth
