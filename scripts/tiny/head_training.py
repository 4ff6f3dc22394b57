"""Training of an EAGLE head for the bundled model: one decoder layer that continues the target's own features.

Loss, at every depth that is unrolled: the target's distribution and, for a head in the shape of EAGLE-1, with a small
weight its next feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from tiny.card import percent, write_card
from tiny.corpus import documents
from tiny.head_modules import Eagle3Module, EagleModule, MtpModule, PEagleModule
from tiny.packing import PackedBatch, Packer, separate
from tiny.train import ASSETS, Trainee, TrainingSettings

_ABOUT = """A head for the bundled model `tiny`, in the format of the published {format} heads: to run {methods} end to
end on any machine. It says nothing about heads of real models."""
_LENT = "Embedding and output head are the target's own and not stored."
_OFFSETS = " `d2t` holds offsets from its ids to the target's."
_FORMATS = {  # kind -> the format's name, the methods that read it, what is not stored
    "eagle": ("EAGLE-1/2", "`eagle` and `eagle2`", _LENT),
    "mtp": ("speculators MTP", "`mtp`", _LENT),
    "eagle3": ("EAGLE-3", "`eagle3`", f"The embedding is the target's own and not stored.{_OFFSETS}"),
    "p_eagle": (
        "P-EAGLE",
        "`p_eagle`",
        f"The embedding is the target's own and not stored; the mask token is the one that pads.{_OFFSETS}",
    ),
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


def untrained(target: Any, tokenizer: PreTrainedTokenizerFast, settings: HeadSettings) -> EagleModule:
    """A head of the settings' kind."""
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


def new_head(settings: HeadSettings) -> Trainee:
    """An untrained head of the bundled model."""
    target: Any = AutoModelForCausalLM.from_pretrained(ASSETS / "tiny", dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    target.requires_grad_(False)
    head = untrained(target, tokenizer, settings)
    return Trainee(
        settings, tokenizer, head, lambda batch: loss_of(head, target, batch, settings),
        lambda folder, seconds, shares: save_head(head, target, folder, settings, seconds, shares),
    )  # fmt: skip


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
    noise = settings.noise if head.training else 0.0
    noisy = [state.float() + (torch.rand(state.shape) * 2 - 1) * noise for state in states]
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
    format, methods, stored = _FORMATS[settings.kind]
    figures = {
        "depths unrolled in training": settings.passes,
        "its best token is the target's, on held-out answers, at depths 1, 2 ...": percent(shares),
    }
    about = _ABOUT.format(format=format, methods=methods)
    write_card(folder, f"head --kind {settings.kind}", settings, head, seconds, about, figures, stored)
