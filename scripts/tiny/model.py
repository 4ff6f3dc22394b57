"""The bundled models ``tiny`` and ``tiny_draft``, and ``tiny_pard``, the draft model trained to draft in parallel.

The first two are small Llamas with a shared tokenizer, trained from random weights. ``tiny_pard`` is ``tiny_draft``,
trained further with PARD's loss: the input is the text and, for each sampled token of it, a chain of masks. A mask sees
the text up to its token and the masks before it, and predicts the text's token at its place (An et al. 2025, section
3.2; the sampling replaces the paper's dropping of tokens, which also keeps complete chains).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from scripts.tiny.train import ASSETS, CONTEXT, PackedBatch, Trainee, TrainingSettings, save_tokenizer, separate

CHAIN, ANCHORS = 12, 64  # drafted tokens, one more than masks; sampled tokens of a sequence
MASK = 0  # the id of the mask token, which is the padding


def new_model(shape: Mapping[str, int], settings: TrainingSettings) -> Trainee:
    """Make an untrained model of a shape, compiled for its training, with the bundled tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    torch.manual_seed(settings.seed)
    ends: dict[str, Any] = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT, **shape}
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **ends, **sizes))  # tied to keep the model small
    model.generation_config.update(**ends)
    forward = torch.compile(model)

    def loss_of(batch: PackedBatch) -> tuple[Tensor, list[float]]:
        """Weighted cross entropy of the next token, as the loss and as its figure."""
        seen = separate(batch.positions)
        with torch.autocast("cpu", torch.bfloat16):
            logits = forward(
                input_ids=batch.ids, position_ids=batch.positions, attention_mask=seen, use_cache=False
            ).logits
        losses = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none"
        )
        weights = batch.weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        return loss, [loss.item()]

    return Trainee(settings, tokenizer, model, loss_of, partial(save_half, model, tokenizer))


def save_half(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model in half precision, with its tokenizer."""
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)


def with_masks(batch: PackedBatch) -> tuple[PackedBatch, Tensor, Tensor]:
    """Append chains of masks to a batch.

    Returns the longer batch, the attention mask (rows, 1, length, length), and labels (rows, length), -100 for tokens
    that do not count.
    """
    rows, text = batch.ids.shape
    depth = torch.arange(1, CHAIN)
    anchors = torch.stack([torch.randperm(text - CHAIN)[:ANCHORS] for _ in range(rows)])
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
    seen[:, :, text:, text:] = torch.block_diag(*[chain] * ANCHORS).bool()
    masks = torch.full_like(places, MASK)
    positions = torch.cat([batch.positions, batch.positions.gather(1, last) + places - last], 1)
    whole = PackedBatch(torch.cat([batch.ids, masks], 1), weight, positions)
    return whole, seen, meant.masked_fill(weight == 0, -100)


def pard_loss(model: Any, batch: PackedBatch) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and for each place of a chain the share of answer tokens that are ranked first."""
    whole, seen, labels = with_masks(batch)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(
            input_ids=whole.ids, position_ids=whole.positions, attention_mask=seen, use_cache=False
        ).logits.float()
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    text, right = batch.ids.shape[1], logits.argmax(-1) == labels
    parts = [(right[:, :text], labels[:, :text])]
    parts += [(right[:, text + at :: CHAIN - 1], labels[:, text + at :: CHAIN - 1])
              for at in range(CHAIN - 1)]  # fmt: skip
    return loss, [found[wanted >= 0].float().mean().item() for found, wanted in parts]


def new_pard(settings: TrainingSettings) -> Trainee:
    """Load the bundled draft model, to continue its training."""
    folder = ASSETS / "tiny_draft"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    model.config.pard_token = MASK
    torch.manual_seed(settings.seed)
    return Trainee(settings, tokenizer, model, partial(pard_loss, model), partial(save_half, model, tokenizer))
