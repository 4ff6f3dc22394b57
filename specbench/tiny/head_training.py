"""Training of an EAGLE head for the bundled model: one decoder layer that continues the target's own features.

The head is unrolled on what it wrote itself, as it will be when it drafts (the training-time test of EAGLE-3, Li et al.
2025, section 3.2, on the shapes of EAGLE-1): pass d stands for nodes of depth d, whose ancestors are earlier passes and
whose context is the target's. Loss: the target's law and, with a small weight, its next feature.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from specbench.tiny.corpus import documents
from specbench.tiny.packing import Batch, Packer, separate
from specbench.tiny.train import Settings, optimizers, rate_at

LOG_EVERY = 25


@dataclass(frozen=True)
class HeadSettings(Settings):
    """passes: depths unrolled. regression: weight of the feature loss. noise: half width of what is added to features.

    intermediate: width of the layer's MLP. prompt_weight: the loss counts answers only.
    """

    name: str = "tiny_eagle"
    steps: int = 1200
    warmup: int = 20
    decay: float = 0.5
    rows: int = 2
    length: int = 512
    prompt_weight: float = 0.0
    seed: int = 11
    passes: int = 3
    regression: float = 0.2
    noise: float = 0.1
    intermediate: int = 512


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.size = config.head_dim
        width, shared = config.num_attention_heads * self.size, config.num_key_value_heads * self.size
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, shared, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, shared, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def project(self, hidden: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (rows, heads, T, size), turned to their positions."""
        query, key, value = (
            linear(hidden).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *turn)
        return query, key, value


class _Layer(nn.Module):
    """A Llama layer without a norm before its attention, as EAGLE's is."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class EagleModule(nn.Module):
    """The head in the shape of EAGLE-1; its ``state_dict`` has the published checkpoints' names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([_Layer(config)])
        self._turn = [LlamaRotaryEmbedding(config)]  # in a list: no part of the state

    def unroll(self, features: Tensor, embedded: Tensor, positions: Tensor, passes: int) -> list[Tensor]:
        """``passes`` times (rows, T, D): what the head makes of (feature i, token i + 1) at depths 0, 1, 2 ...

        features, embedded: (rows, T, D); embedded[i] belongs to token i + 1. positions: (rows, T), 0 starts a
        conversation.
        """
        layer: Any = self.layers[0]
        turn = self._turn[0](features, positions)
        keys, values, outputs = [], [], []
        for depth in range(passes):
            hidden = self.fc(torch.cat([embedded, features], dim=-1))
            query, key, value = layer.self_attn.project(hidden, turn)
            keys.append(key)
            values.append(value)
            seen = visible(positions, depth)
            mixed = functional.scaled_dot_product_attention(
                query, torch.cat(keys, dim=2), torch.cat(values, dim=2), attn_mask=seen, enable_gqa=True
            )
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            outputs.append(hidden)
            features = functional.pad(hidden[:, :-1], (0, 0, 1, 0))  # g of token i stands for feature i + 1
        return outputs


def visible(positions: Tensor, depth: int) -> Tensor:
    """(rows, 1, T, (depth + 1) T) bool: what row i of pass ``depth`` sees of the passes 0 to ``depth``.

    Of pass 0 the tokens up to i - depth, of pass m > 0 the one at i - depth + m, all of its own conversation. T = 3,
    one conversation, depth 1: row 2 sees 0 and 1 of pass 0, and 2 of pass 1.
    """
    same, length = separate(positions), positions.shape[-1]
    back = torch.arange(length)[:, None] - torch.arange(length)[None]
    parts = [same & (back >= depth), *(same & (back == depth - later) for later in range(1, depth + 1))]
    return torch.cat(parts, dim=-1)


def head_config(target: Any, intermediate: int) -> LlamaConfig:
    """One layer in the target's shape, with an MLP of its own width."""
    config = LlamaConfig.from_dict(target.config.to_dict())
    config.num_hidden_layers, config.intermediate_size = 1, intermediate
    return config


def loss_of(head: EagleModule, target: Any, batch: Batch, settings: HeadSettings) -> tuple[Tensor, list[float]]:
    """The loss of a batch, and for each depth the share of answer tokens that the head's best token gets right."""
    with torch.no_grad():
        truth = target.model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=separate(batch.positions), use_cache=False
        ).last_hidden_state
        embedded = target.get_input_embeddings()(batch.ids)
    noisy = truth + (torch.rand_like(truth) * 2 - 1) * settings.noise
    following = functional.pad(embedded[:, 1:], (0, 0, 0, 1))
    total, right = truth.new_zeros(()), []
    for depth, hidden in enumerate(head.unroll(noisy, following, batch.positions, settings.passes)):
        counted = (batch.weights[:, 2:] > 0) & (batch.positions[:, 2:] > depth + 2)
        made, meant = hidden[:, :-2][counted], truth[:, 1:-1][counted]
        with torch.no_grad():
            law = target.lm_head(meant).softmax(-1)
        guess = target.lm_head(made)
        total = total + functional.cross_entropy(guess, law)
        total = total + settings.regression * functional.smooth_l1_loss(made, meant)
        right.append((guess.argmax(-1) == law.argmax(-1)).float().mean().item())
    return total / settings.passes, right


def train_head(
    target: Any, tokenizer: PreTrainedTokenizerFast, settings: HeadSettings
) -> Iterator[tuple[int, float, list[float], EagleModule]]:
    """Train on the world's training documents; yields (step, seconds, shares right at each depth, head)."""
    torch.manual_seed(settings.seed)
    head = EagleModule(head_config(target, settings.intermediate))
    with torch.no_grad():  # begin as the feature itself
        head.fc.weight[:, target.config.hidden_size :] += torch.eye(target.config.hidden_size)
    target.requires_grad_(False)
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


def save_head(head: EagleModule, target: Any, folder: Path, intermediate: int) -> None:
    """Write weights in half precision and ``config.json``, as published heads have them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.half().contiguous() for name, weight in head.state_dict().items()}, folder / "model.safetensors")
    head_config(target, intermediate).to_json_file(folder / "config.json")
