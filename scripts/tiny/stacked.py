"""Heads of Medusa's and Hydra's kinds for the bundled model: modules with the published names, and their training.

Head d reads a token's last state and drafts the token d + 2 places after that one; a Hydra head also reads the tokens
between. The loss compares with the target's distribution, and later heads count less (Medusa, arXiv 2401.10774, section
2.2.1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from scripts.tiny.heads import save_weights
from scripts.tiny.train import ASSETS, PackedBatch, Trainee, TrainingSettings, separate

FADING = 0.8  # weight of a head's loss, as a part of that of the head before it


@dataclass(frozen=True)
class StackedSettings(TrainingSettings):
    """The settings of a training whose loss counts answers only; the defaults are those of ``tiny_medusa``.

    kind: medusa | hydra. heads: how many. blocks: of each.
    """

    kind: str = "medusa"
    heads: int = 4
    blocks: int = 3
    steps: int = 400
    warmup: int = 20
    decay: float = 0.6
    rows: int = 2
    length: int = 384
    prompt_weight: float = 0.0
    matrix_rate: float = 0.0
    rate: float = 0.004
    seed: int = 23


class MedusaModule(nn.ModuleList):
    """Medusa's heads without output matrices of their own: the target's reads them all. At first each adds nothing."""

    def __init__(self, target: Any, settings: StackedSettings) -> None:
        hidden = target.config.hidden_size
        super().__init__(
            nn.ModuleList(nn.ModuleDict({"linear": nn.Linear(hidden, hidden)}) for _ in range(settings.blocks))
            for _ in range(settings.heads)
        )
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self._lent = [target.lm_head]

    def enter(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """Return what the heads read, (rows, T, D), from the target's last states."""
        return states

    def guess(self, head: int, state: Tensor, path: Sequence[Tensor]) -> Tensor:
        """Return the logits (n, V) of one head from (n, D) entered states and the (n, D) embeddings of a path."""
        blocks: Any = self[head]
        for block in blocks:
            state = state + functional.silu(block["linear"](state))
        return self._lent[0](state)


class HydraModule(nn.Module):
    """Hydra++: a decoder layer over the states, and heads that read its output and the embeddings of a path."""

    def __init__(self, target: Any, settings: StackedSettings) -> None:
        super().__init__()
        config, hidden = target.config, target.config.hidden_size
        norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        norm.weight.data.copy_(target.model.norm.weight)
        prefix = {"layers": nn.ModuleList([LlamaDecoderLayer(config, 0)]), "norm": norm}
        self.prefix_embeding_layer: Any = nn.ModuleDict(prefix)  # spelled as in the published files
        self.hydra_mlp: Any = nn.ModuleList()
        self.hydra_lm_head: Any = nn.ModuleList()
        for head in range(settings.heads):
            width = (head + 2) * hidden
            first = nn.ModuleDict({"linear": nn.Linear(width, hidden), "res_connection": nn.Linear(width, hidden)})
            rest = [nn.ModuleDict({"linear": nn.Linear(hidden, hidden)}) for _ in range(settings.blocks - 1)]
            self.hydra_mlp.append(nn.Sequential(*(each for block in (first, *rest) for each in (nn.Dropout(), block))))
            out = nn.Linear(hidden, config.vocab_size)
            out.weight.data.copy_(target.lm_head.weight)
            self.hydra_lm_head.append(nn.Sequential(nn.Dropout(), out))
        self._rotary = [LlamaRotaryEmbedding(config)]

    def enter(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """Return the prefix layer's outputs, (rows, T, D)."""
        layers, norm = self.prefix_embeding_layer["layers"], self.prefix_embeding_layer["norm"]
        turn = self._rotary[0](states, batch.positions)
        return norm(layers[0](states, attention_mask=separate(batch.positions), position_embeddings=turn))

    def guess(self, head: int, state: Tensor, path: Sequence[Tensor]) -> Tensor:
        """Return the logits (n, V) of one head; path: from the root to the token below which it drafts."""
        first, *rest = list(self.hydra_mlp[head])[1::2]
        read = torch.cat([state, *path], dim=-1)
        state = first["res_connection"](read) + functional.silu(first["linear"](read))
        for block in rest:
            state = state + functional.silu(block["linear"](state))
        return self.hydra_lm_head[head][1](state)


def new_stacked_heads(settings: StackedSettings) -> Trainee:
    """Make untrained heads of the bundled model."""
    target: Any = AutoModelForCausalLM.from_pretrained(ASSETS / "tiny", dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(ASSETS / "tiny")
    target.requires_grad_(False)
    torch.manual_seed(settings.seed)
    module: Any = {"medusa": MedusaModule, "hydra": HydraModule}[settings.kind](target, settings)
    loss = partial(loss_of, module, target, settings=settings)
    return Trainee(settings, tokenizer, module, loss, partial(save_stacked, module, settings))


def loss_of(
    module: MedusaModule | HydraModule, target: Any, batch: PackedBatch, settings: StackedSettings
) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and for each head the share of answer tokens that it ranks first."""
    with torch.no_grad():
        kept = {"position_ids": batch.positions, "attention_mask": separate(batch.positions)}
        states = target.model(batch.ids, **kept, use_cache=False).last_hidden_state
        embedded, probs = target.get_input_embeddings()(batch.ids), target.lm_head(states).softmax(-1)
    entered, total, right = module.enter(states, batch), states.new_zeros(()), []
    for head in range(settings.heads):
        ahead = head + 2
        same = batch.positions[:, ahead:] == batch.positions[:, :-ahead] + ahead
        rows, at = ((batch.weights[:, ahead:] > 0) & same).nonzero(as_tuple=True)
        wanted = probs[rows, at + ahead - 1]
        guess = module.guess(head, entered[rows, at], [embedded[rows, at + place] for place in range(1, ahead)])
        total = total + FADING**head * functional.cross_entropy(guess, wanted)
        right.append((guess.argmax(-1) == wanted.argmax(-1)).float().mean().item())
    return total, right


def save_stacked(module: MedusaModule | HydraModule, settings: StackedSettings, folder: Path) -> None:
    """Write weights in half precision under the published file name, and ``config.json``."""
    save_weights(module, folder / f"{settings.kind}_lm_head.safetensors")
    blocks = {"medusa_num_layers": settings.blocks}
    kind = blocks if settings.kind == "medusa" else {"hydra_head_arch": "prefix-mlp", "grounded_heads": True}
    config = {f"{settings.kind}_num_heads": settings.heads, **kind}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
