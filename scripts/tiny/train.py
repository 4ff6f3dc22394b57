"""Training on the bundled world: one pass over an endless corpus, whatever is trained, and the card of the result.

The rate warms up, stays, and decays linearly over the last part of the run. Matrices are trained with Muon, embeddings
and norms with AdamW.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scripts.tiny.corpus import documents
from scripts.tiny.packing import PackedBatch, Packer

ASSETS = Path(__file__).resolve().parents[2] / "specbench" / "assets"
HELD_OUT_BATCHES = 24
_CARD = """---
license: apache-2.0
tags:
- speculative-decoding
- testing
---

# {settings.name}

{about}

| figure | value |
|---|---|
| parameters | {parameters:,} |
| steps | {settings.steps:,} |
| tokens (packed, prompts and answers) | {tokens:,} |
| wall time on a CPU, shared with other work | {minutes:.0f} min |
| Muon, AdamW | {settings.matrix_rate}, {settings.rate} |
{rows}

Made with `python -m scripts.tiny train {kind}` from conversations of the bundled world (`scripts/tiny/`), none of them
from the held-out part that the suite `mini` is drawn from.
{more}
"""


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
    """What is trained, by its settings. module: has the parameters; is in evaluation mode when it is not trained.

    loss_of: a batch -> what is minimised, and the figures that are shown of it.
    save: (folder, seconds that the training took, figures of held-out documents) writes files and a card.
    """

    settings: TrainingSettings
    tokenizer: Any
    module: nn.Module
    loss_of: Callable[[PackedBatch], tuple[Tensor, list[float]]]
    save: Callable[[Path, float, list[float]], None]


def train(trainee: Trainee) -> Iterator[tuple[int, float, list[float]]]:
    """Train on the world's training documents; yields (step, seconds, figures of its batch)."""
    settings = trainee.settings
    named = [("embed" in name, weight) for name, weight in trainee.module.named_parameters()]
    matrices = [weight for embeds, weight in named if weight.ndim == 2 and not embeds]
    others = [weight for embeds, weight in named if weight.ndim != 2 or embeds]
    steppers: list[tuple[torch.optim.Optimizer, float]] = [
        (torch.optim.Muon(matrices, settings.matrix_rate, weight_decay=0.01, momentum=0.95), settings.matrix_rate),
        (torch.optim.AdamW(others, settings.rate, betas=(0.9, 0.97), weight_decay=0.0), settings.rate),
    ]
    decay_steps = max(1, int(settings.steps * settings.decay))
    packer = Packer(trainee.tokenizer, documents(settings.seed), settings.length, settings.rows, settings.prompt_weight)
    start = time.perf_counter()
    for step, batch in zip(range(settings.steps), packer, strict=False):
        factor = min(1.0, (step + 1) / settings.warmup, max(0.0, (settings.steps - step) / decay_steps))
        for stepper, rate in steppers:
            stepper.param_groups[0]["lr"] = rate * factor
        loss, figures = trainee.loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trainee.module.parameters(), 1.0)
        for stepper, _ in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        yield step + 1, time.perf_counter() - start, figures


@torch.no_grad()
def held_out_figures(trainee: Trainee) -> list[float]:
    """Return the means of the figures over answers of documents that are held out of every corpus."""
    settings = trainee.settings
    torch.manual_seed(settings.seed)
    trainee.module.eval()
    stream = documents(settings.seed + 1, held_out=True)
    packer = Packer(trainee.tokenizer, stream, settings.length, settings.rows, prompt_weight=0.0)
    return means([trainee.loss_of(batch)[1] for batch in islice(packer, HELD_OUT_BATCHES)])


def means(rows: list[list[float]]) -> list[float]:
    """Return the mean of each column."""
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def write_card(
    folder: Path, kind: str, settings: TrainingSettings, module: nn.Module, seconds: float, about: str,
    figures: Mapping[str, object], more: str = "",
) -> None:  # fmt: skip
    """Write ``README.md``. kind: of ``python -m scripts.tiny train``. figures: further rows of the table."""
    card = _CARD.format(
        settings=settings,
        about=about,
        parameters=sum(weight.numel() for weight in module.parameters()),
        tokens=settings.steps * settings.rows * settings.length,
        minutes=seconds / 60,
        rows="\n".join(f"| {name} | {value} |" for name, value in figures.items()),
        kind=kind,
        more=more,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def percent(shares: list[float]) -> str:
    """Return shares as they stand in the card's table."""
    return ", ".join(f"{share:.1%}" for share in shares)
