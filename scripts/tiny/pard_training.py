"""Training of the bundled draft model to draft in parallel: PARD's loss, on chains of masks behind sampled tokens.

The input is the text and, for each sampled token of it, a chain of masks. A mask sees the text up to its token and the
masks before it, and predicts the text's token at its place (An et al. 2025, section 3.2; the sampling stands for the
paper's dropping of tokens, which keeps whole chains too).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny.card import percent, write_card
from tiny.model import save_half
from tiny.packing import PackedBatch, separate
from tiny.train import ASSETS, Trainee, TrainingSettings

_ABOUT = """`tiny_draft`, trained on to draft in parallel as PARD's draft models do: to run `pard` end to end on any
machine. It says nothing about PARD on real models. `pard_token` in `config.json` is the mask token, the tokenizer's
padding."""


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


def new_pard(settings: PardSettings) -> Trainee:
    """The bundled draft model, to be trained on."""
    folder = ASSETS / "tiny_draft"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def save(folder: Path, seconds: float, shares: list[float]) -> None:
        model.config.pard_token = settings.mask
        save_half(model, tokenizer, folder)
        figures = {
            "tokens of a chain; chains a sequence": f"{settings.chain}; {settings.anchors}",
            "its best token is the text's, on held-out answers, at places 1, 2 ...": percent(shares),
        }
        write_card(folder, "pard", settings, model, seconds, _ABOUT, figures)

    torch.manual_seed(settings.seed)
    return Trainee(settings, tokenizer, model, lambda batch: loss_of(model, batch, settings), save)
