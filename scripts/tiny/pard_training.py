"""Training of the bundled draft model to draft in parallel: PARD's loss, on chains of masks behind sampled tokens.

The input is the text and, for each sampled token of it, a chain of masks. A mask sees the text up to its token and the
masks before it, and predicts the text's token at its place (An et al. 2025, section 3.2; the sampling stands for the
paper's dropping of tokens, which keeps whole chains too).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tiny.corpus import documents
from tiny.packing import PackedBatch, Packer, separate
from tiny.tokenizer import save_tokenizer
from tiny.train import TrainingSettings, optimizers, rate_at

_CARD = """---
license: apache-2.0
library_name: transformers
tags:
- speculative-decoding
- testing
---

# {settings.name}

`tiny_draft`, trained on to draft in parallel as PARD's draft models do: to run `pard` end to end on any machine. It
says nothing about PARD on real models. `pard_token` in `config.json` is the mask token, the tokenizer's padding.

| figure | value |
|---|---|
| parameters | {parameters:,} |
| steps | {settings.steps:,} |
| tokens of text (the loss counts answers) | {tokens:,} |
| wall time on one CPU core, shared with other work | {minutes:.0f} min |
| tokens of a chain; chains a sequence | {settings.chain}; {settings.anchors} |
| Muon, AdamW | {settings.matrix_rate}, {settings.rate} |
| its best token is the text's, on held-out answers, at places 1, 2 ... | {shares} |

Made with `scripts/train_pard.py` from conversations of the bundled world (`scripts/tiny/`), none of them from the
held-out part that the suite `mini` is drawn from.
"""


@dataclass(frozen=True)
class PardSettings(TrainingSettings):
    """chain: tokens that are drafted, one more than masks. anchors: sampled tokens of a sequence. mask: its id."""

    name: str = "tiny_pard"
    steps: int = 1500
    warmup: int = 20
    decay: float = 0.7
    rows: int = 2
    length: int = 384
    prompt_weight: float = 0.0
    matrix_rate: float = 0.01
    rate: float = 0.002
    seed: int = 21
    chain: int = 12
    anchors: int = 64
    mask: int = 0


def with_masks(batch: PackedBatch, settings: PardSettings) -> tuple[PackedBatch, Tensor, Tensor]:
    """The batch with chains of masks behind it.

    Returns it, the attention mask (rows, 1, length, length), and labels (rows, length), -100 where none counts.
    """
    rows, text = batch.ids.shape
    depth = torch.arange(1, settings.chain)
    anchors = torch.stack([torch.randperm(text - settings.chain)[: settings.anchors] for _ in range(rows)])
    places = (anchors[..., None] + depth).flatten(1)
    last = anchors.repeat_interleave(len(depth), 1)
    labels = torch.cat([torch.arange(1, text).expand(rows, -1), torch.zeros(rows, 1, dtype=torch.long), places + 1], 1)
    meant, weight = batch.ids.gather(1, labels), batch.weights.gather(1, labels)
    inside = batch.positions.gather(1, labels[:, text:]) == batch.positions.gather(1, last) + (places - last) + 1
    weight[:, text - 1] = 0.0
    weight[:, text:] *= inside
    seen = torch.zeros(rows, 1, text + places.shape[1], text + places.shape[1], dtype=torch.bool)
    seen[:, :, :text, :text] = separate(batch.positions)
    seen[:, 0, text:, :text] = seen[:, 0, :text, :text].gather(1, last[..., None].expand(-1, -1, text))
    chain = torch.ones(len(depth), len(depth), dtype=torch.bool).tril()
    seen[:, :, text:, text:] = torch.block_diag(*[chain] * settings.anchors).bool()
    masks = torch.full_like(places, settings.mask)
    positions = torch.cat([batch.positions, batch.positions.gather(1, last) + places - last], 1)
    whole = PackedBatch(torch.cat([batch.ids, masks], 1), weight, positions)
    return whole, seen, meant.masked_fill(weight == 0, -100)


def loss_of(model: Any, batch: PackedBatch, settings: PardSettings) -> tuple[Tensor, list[float]]:
    """The loss of a batch, and at each place of a chain the share of answer tokens that are the model's best."""
    whole, seen, labels = with_masks(batch, settings)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(
            input_ids=whole.ids, position_ids=whole.positions, attention_mask=seen, use_cache=False
        ).logits.float()
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    text, right = batch.ids.shape[1], logits.argmax(-1) == labels
    parts = [(right[:, :text], labels[:, :text])]
    parts += [(right[:, text + at :: settings.chain - 1], labels[:, text + at :: settings.chain - 1])
              for at in range(settings.chain - 1)]  # fmt: skip
    return loss, [found[wanted >= 0].float().mean().item() for found, wanted in parts]


def train_pard(model: Any, tokenizer: Any, settings: PardSettings) -> Iterator[tuple[int, float, list[float]]]:
    """Train on the world's training documents; yields (step, seconds, shares right at each place)."""
    torch.manual_seed(settings.seed)
    steppers = optimizers(model, settings)
    packer = Packer(tokenizer, documents(settings.seed), settings.length, settings.rows, settings.prompt_weight)
    start = time.perf_counter()
    for step, batch in zip(range(settings.steps), packer, strict=False):
        for stepper, rate in zip(steppers, (settings.matrix_rate, settings.rate), strict=True):
            stepper.param_groups[0]["lr"] = rate * rate_at(step, settings)
        loss, right = loss_of(model, batch, settings)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        yield step + 1, time.perf_counter() - start, right


@torch.no_grad()
def held_out_shares(model: Any, tokenizer: Any, settings: PardSettings) -> list[float]:
    """At each place of a chain, the share of held-out answer tokens that the model's best token is."""
    torch.manual_seed(settings.seed)
    stream = documents(settings.seed + 1, held_out=True)
    packer = Packer(tokenizer, stream, settings.length, settings.rows, settings.prompt_weight)
    found = [loss_of(model, batch, settings)[1] for batch in islice(packer, 24)]
    return [sum(shares) / len(shares) for shares in zip(*found, strict=True)]


def save_pard(
    model: Any, tokenizer: Any, folder: Path, settings: PardSettings, seconds: float, shares: list[float]
) -> None:
    """Write the model in half precision, its tokenizer, and a card that says how it was made."""
    model.config.pard_token = settings.mask
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)
    figures = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": settings.steps * settings.rows * settings.length,
        "minutes": seconds / 60,
        "shares": ", ".join(f"{share:.1%}" for share in shares),
    }
    (folder / "README.md").write_text(_CARD.format(settings=settings, **figures), encoding="utf-8")
