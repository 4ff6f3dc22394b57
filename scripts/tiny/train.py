"""Training on the bundled world: one pass over an endless corpus, whatever is trained.

The rate warms up, stays, and decays linearly over the last part of the run. Matrices are trained with Muon, embeddings
and norms with AdamW.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiny.corpus import documents
from tiny.packing import PackedBatch, Packer

ASSETS = Path(__file__).resolve().parent.parent.parent / "specbench" / "assets"
HELD_OUT_BATCHES = 24


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a run. rows, length: sequences of a batch, and tokens of each. decay: share of the steps."""

    name: str = "tiny"
    steps: int = 4000
    warmup: int = 100
    decay: float = 0.3
    rows: int = 4
    length: int = 768
    prompt_weight: float = 0.1
    matrix_rate: float = 0.008
    rate: float = 1.2e-3
    seed: int = 1


@dataclass(frozen=True)
class Trainee:
    """What is trained, by its settings. module: holds the parameters, and is told when it is not trained (``eval``).

    loss_of: a batch -> what is minimised, and what is shown of it, a figure a depth.
    save: (folder, seconds that the training took, figures of held-out documents) writes files and a card.
    """

    settings: TrainingSettings
    tokenizer: Any
    module: nn.Module
    loss_of: Callable[[PackedBatch], tuple[Tensor, list[float]]]
    save: Callable[[Path, float, list[float]], None]


def rate_at(step: int, settings: TrainingSettings) -> float:
    """Factor of the learning rate: warmup, plateau, linear decay."""
    decay_steps = max(1, int(settings.steps * settings.decay))
    return min(1.0, (step + 1) / settings.warmup, max(0.0, (settings.steps - step) / decay_steps))


def optimizers(module: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for embeddings and norms."""
    matrices = [weight for name, weight in module.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in module.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.97), weight_decay=0.0),
    ]


def train(trainee: Trainee) -> Iterator[tuple[int, float, list[float]]]:
    """Train on the world's training documents; yields (step, seconds, figures of its batch)."""
    settings = trainee.settings
    steppers = optimizers(trainee.module, settings)
    packer = Packer(trainee.tokenizer, documents(settings.seed), settings.length, settings.rows, settings.prompt_weight)
    start = time.perf_counter()
    for step, batch in zip(range(settings.steps), packer, strict=False):
        for stepper, rate in zip(steppers, (settings.matrix_rate, settings.rate), strict=True):
            stepper.param_groups[0]["lr"] = rate * rate_at(step, settings)
        loss, figures = trainee.loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trainee.module.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        yield step + 1, time.perf_counter() - start, figures


@torch.no_grad()
def held_out_figures(trainee: Trainee) -> list[float]:
    """Means of the figures over answers of documents that are held out of every corpus."""
    settings = trainee.settings
    torch.manual_seed(settings.seed)
    trainee.module.eval()
    stream = documents(settings.seed + 1, held_out=True)
    packer = Packer(trainee.tokenizer, stream, settings.length, settings.rows, prompt_weight=0.0)
    found = [trainee.loss_of(batch)[1] for batch in islice(packer, HELD_OUT_BATCHES)]
    return [sum(figures) / len(figures) for figures in zip(*found, strict=True)]
