"""Training of an EAGLE head for the bundled model: one decoder layer that continues the target's own features.

Loss, at every depth that is unrolled: the target's distribution and, for a head in the shape of EAGLE-1, with a small
weight its next feature.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedTokenizerFast

from tiny.corpus import documents
from tiny.head_modules import Eagle3Module, EagleModule, MtpModule, PEagleModule
from tiny.packing import PackedBatch, Packer, separate
from tiny.train import TrainingSettings, optimizers, rate_at

LOG_EVERY = 25

_CARD = """---
license: apache-2.0
tags:
- speculative-decoding
- testing
---

# {settings.name}

A head for the bundled model `tiny`, in the format of the published {format} heads: to run {methods} end to
end on any machine. It says nothing about heads of real models.

| figure | value |
|---|---|
| parameters | {parameters:,} |
| steps | {settings.steps:,} |
| tokens (packed, prompts and answers; the loss counts answers) | {tokens:,} |
| wall time on one CPU core, shared with other work | {minutes:.0f} min |
| depths unrolled in training | {settings.passes} |
| Muon, AdamW | {settings.matrix_rate}, {settings.rate} |
| its best token is the target's, on held-out answers, at depths 1, 2 ... | {shares} |

Made with `scripts/train_head.py` from conversations of the bundled world (`scripts/tiny/`), none of them from the
held-out part that the suite `mini` is drawn from.
{stored}
"""
_FORMATS = {
    "eagle": {
        "format": "EAGLE-1/2",
        "methods": "`eagle` and `eagle2`",
        "stored": "Embedding and output head are the target's own and not stored.",
    },
    "mtp": {
        "format": "speculators MTP",
        "methods": "`mtp`",
        "stored": "Embedding and output head are the target's own and not stored.",
    },
    "eagle3": {
        "format": "EAGLE-3",
        "methods": "`eagle3`",
        "stored": "The embedding is the target's own and not stored. `d2t` holds offsets from its ids to the target's.",
    },
    "p_eagle": {
        "format": "P-EAGLE",
        "methods": "`p_eagle`",
        "stored": "The embedding is the target's own and not stored; the mask token is the one that pads. `d2t` holds"
        " offsets from its ids to the target's.",
    },
}


@dataclass(frozen=True)
class HeadSettings(TrainingSettings):
    """kind: eagle (the shape of EAGLE-1 and -2) | mtp | eagle3 | p_eagle, the last two with
    ``vocabulary`` tokens in their output head.

    passes: depths unrolled. regression: weight of the feature loss. noise: half width of what is added to features.

    intermediate: width of the layer's MLP. prompt_weight: the loss counts answers only.
    """

    name: str = "tiny_eagle"
    kind: str = "eagle"
    vocabulary: int = 1024
    steps: int = 2300
    warmup: int = 20
    decay: float = 0.6
    matrix_rate: float = 0.02
    rate: float = 0.003
    rows: int = 2
    length: int = 512
    prompt_weight: float = 0.0
    seed: int = 11
    passes: int = 3
    regression: float = 0.2
    noise: float = 0.1
    intermediate: int = 512


FUSED = (1, 3, 4)  # hidden states that an EAGLE-3 head of this five-layer target fuses


def head_config(target: Any, settings: HeadSettings) -> LlamaConfig:
    """One layer in the target's shape, with an MLP of its own width."""
    values = target.config.to_dict() | {"num_hidden_layers": 1, "intermediate_size": settings.intermediate}
    if settings.kind == "mtp":
        values |= {"speculators_model_type": "mtp"}
    elif settings.kind != "eagle":
        values |= {"draft_vocab_size": settings.vocabulary, "eagle_aux_hidden_state_layer_ids": list(FUSED)}
    if settings.kind == "p_eagle":
        mask = target.config.pad_token_id
        values |= {"speculators_model_type": "peagle", "mask_token_id": mask, "embed_requires_grad": False}
    return LlamaConfig.from_dict(values)


def frequent(tokenizer: PreTrainedTokenizerFast, settings: HeadSettings) -> Tensor:
    """(vocabulary,) the ids that answers use most, in their own order."""
    packer = Packer(tokenizer, documents(settings.seed + 2), settings.length, settings.rows, settings.prompt_weight)
    used = [batch.ids[batch.weights > 0] for batch in islice(packer, 100)]
    counts = torch.cat(used).bincount(minlength=len(tokenizer))
    return counts.sort(descending=True, stable=True).indices[: settings.vocabulary].sort().values


def new_head(target: Any, tokenizer: PreTrainedTokenizerFast, settings: HeadSettings) -> EagleModule:
    """An untrained head of the settings' kind."""
    torch.manual_seed(settings.seed)
    config = head_config(target, settings)
    if settings.kind == "eagle":
        return EagleModule(config, target)
    if settings.kind == "mtp":
        return MtpModule(config, target)
    ids = frequent(tokenizer, settings)
    if settings.kind == "eagle3":
        return Eagle3Module(config, target, FUSED, ids)
    return PEagleModule(config, target, FUSED, ids, config.mask_token_id)


def loss_of(head: EagleModule, target: Any, batch: PackedBatch, settings: HeadSettings) -> tuple[Tensor, list[float]]:
    """The loss of a batch, and for each depth the share of answer tokens that the head's best token gets right."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        states = target.model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask=separate(batch.positions),
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states
        embedded = functional.pad(target.get_input_embeddings()(batch.ids)[:, 1:], (0, 0, 0, 1))
    truth, ids = states[-1].float(), head.ids()
    noisy = [state.float() + (torch.rand(state.shape) * 2 - 1) * settings.noise for state in states]
    total, right = truth.new_zeros(()), []
    with torch.autocast("cpu", torch.bfloat16):
        outputs = head.unroll(head.enter(noisy), embedded, batch.positions, settings.passes)
    for depth, hidden in enumerate(outputs):
        counted = (batch.weights[:, 2:] > 0) & (batch.positions[:, 2:] > depth + 2)
        made, meant = hidden[:, :-2][counted], truth[:, 1:-1][counted]
        with torch.autocast("cpu", torch.bfloat16):
            probs, guess = target.lm_head(meant).float().softmax(-1), head.logits(made).float()
        best, wanted = guess.argmax(-1), probs.argmax(-1)
        right.append(((best if ids is None else ids[best]) == wanted).float().mean().item())
        total = total + functional.cross_entropy(guess, probs if ids is None else probs[:, ids])
        if ids is None:
            total = total + settings.regression * functional.smooth_l1_loss(made.float(), meant)
    return total / settings.passes, right


def train_head(
    target: Any, tokenizer: PreTrainedTokenizerFast, settings: HeadSettings
) -> Iterator[tuple[int, float, list[float], EagleModule]]:
    """Train on the world's training documents; yields (step, seconds, shares right at each depth, head)."""
    target.requires_grad_(False)
    head = new_head(target, tokenizer, settings)
    steppers = optimizers(head, settings)
    packer = Packer(tokenizer, documents(settings.seed), settings.length, settings.rows, settings.prompt_weight)
    start = time.perf_counter()
    for step, batch in zip(range(settings.steps), packer, strict=False):
        factor = rate_at(step, settings)
        for stepper, rate in zip(steppers, (settings.matrix_rate, settings.rate), strict=True):
            stepper.param_groups[0]["lr"] = rate * factor
        loss, right = loss_of(head, target, batch, settings)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        yield step + 1, time.perf_counter() - start, right, head


def held_out_shares(
    head: EagleModule, target: Any, tokenizer: PreTrainedTokenizerFast, settings: HeadSettings
) -> list[float]:
    """For each depth, the share of held-out answer tokens that the head's best token gets right."""
    stream = documents(settings.seed + 1, held_out=True)
    packer = Packer(tokenizer, stream, settings.length, settings.rows, settings.prompt_weight)
    with torch.no_grad():
        batches = [loss_of(head, target, batch, replace(settings, noise=0.0))[1] for batch in islice(packer, 24)]
    return [sum(shares) / len(shares) for shares in zip(*batches, strict=True)]


def save_head(
    head: EagleModule, target: Any, folder: Path, settings: HeadSettings, seconds: float, shares: list[float]
) -> None:
    """Write weights in half precision, ``config.json`` and a card that says how they were made."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {
        name: weight.detach().half().contiguous() if weight.is_floating_point() else weight
        for name, weight in head.state_dict().items()
    }
    save_file(half, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)
    head_config(target, settings).to_json_file(folder / "config.json")
    figures = {
        "parameters": sum(weight.numel() for weight in head.parameters()),
        "tokens": settings.steps * settings.rows * settings.length,
        "minutes": seconds / 60,
        "shares": ", ".join(f"{share:.1%}" for share in shares),
    }
    (folder / "README.md").write_text(
        _CARD.format(settings=settings, **figures, **_FORMATS[settings.kind]), encoding="utf-8"
    )
