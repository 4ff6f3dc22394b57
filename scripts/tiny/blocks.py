"""A DFlash head for the bundled model: a module with the published names of weights, and its
training.

A block is a root and mask tokens after it. Its rows see the target's fused states of the tokens
before the root, and all rows of the block. Roots are drawn among the tokens of a batch's answers,
and all blocks of a batch are one forward (DFlash, arXiv 2602.06036). The loss compares each place
with the target's distribution; later places count less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from scripts.tiny.heads import FUSED, HeadLayer, save_head
from scripts.tiny.train import HeadTraining, PackedBatch, Trainee, load_target, read_states


@dataclass(frozen=True)
class BlockSettings(HeadTraining):
    """The settings of the training of ``tiny_dflash``.

    block: rows of a block. roots: blocks of a sequence. layers, intermediate: of the head. fading:
    places after which the weight of a place's loss has fallen to 1/e.
    """

    steps: int = 1800
    matrix_rate: float = 0.0
    rate: float = 0.002
    seed: int = 17
    block: int = 8
    roots: int = 48
    layers: int = 2
    intermediate: int = 160
    fading: float = 4.0


class _BlockLayer(HeadLayer):
    """A layer with norms of each head's query and key, whose block reads context and itself."""

    post_attention_layernorm: LlamaRMSNorm

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_norm", "k_norm"):
            setattr(
                self.self_attn, name, LlamaRMSNorm(self.self_attn.size, eps=config.rms_norm_eps)
            )

    def forward(
        self, hidden: Tensor, context: Tensor, turns: Sequence[tuple[Tensor, Tensor]], seen: Tensor
    ) -> Tensor:
        """Return (rows, M, D) of M block rows over T tokens of context; turns: of the context, and
        of the rows.
        """
        attention, read = self.self_attn, self.input_layernorm(hidden)

        def project(linear: nn.Linear, states: Tensor) -> Tensor:
            return linear(states).unflatten(-1, (-1, attention.size)).transpose(1, 2)

        def turned(heads: Tensor, norm: Any, turn: tuple[Tensor, Tensor]) -> Tensor:
            first, second = (heads := norm(heads)).chunk(2, dim=-1)
            return heads * turn[0][:, None] + torch.cat([-second, first], dim=-1) * turn[1][:, None]

        query = turned(project(attention.q_proj, read), attention.q_norm, turns[1])
        parts = ((context, turns[0]), (read, turns[1]))
        key = torch.cat(
            [
                turned(project(attention.k_proj, part), attention.k_norm, turn)
                for part, turn in parts
            ],
            dim=2,
        )
        value = torch.cat([project(attention.v_proj, part) for part, _ in parts], dim=2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, enable_gqa=True
        )
        hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class BlockModule(nn.Module):
    """DFlash's head; embedding and output head are the target's."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make an untrained head. config: of the layers."""
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(FUSED) * hidden, hidden, bias=False)
        self.layers = nn.ModuleList(_BlockLayer(config) for _ in range(config.num_hidden_layers))
        self.hidden_norm, self.norm = LlamaRMSNorm(hidden, eps=eps), LlamaRMSNorm(hidden, eps=eps)
        self._rotary = [LlamaRotaryEmbedding(config)]

    def forward(
        self, states: Sequence[Tensor], block: Tensor, positions: Sequence[Tensor], seen: Tensor
    ) -> Tensor:
        """Return the normed states (rows, M, D) of the rows of blocks.

        states: the target's, (rows, T, D) each. block: (rows, M, D) embedded tokens. positions: of
        the T tokens, and of the M rows. seen: (rows, 1, M, T + M).
        """
        context = self.hidden_norm(self.fc(torch.cat([states[layer] for layer in FUSED], dim=-1)))
        turns = [self._rotary[0](context, each) for each in positions]
        for layer in self.layers:
            block = layer(block, context, turns, seen)
        return self.norm(block)


def block_config(target: Any, settings: BlockSettings) -> LlamaConfig:
    """Return the configuration of a head in the target's shape, as z-lab's files have it; the mask
    is the padding.
    """
    own = {
        "mask_token_id": target.config.pad_token_id,
        "target_layer_ids": [layer - 1 for layer in FUSED],
    }
    return LlamaConfig.from_dict(
        target.config.to_dict()
        | {"num_hidden_layers": settings.layers, "intermediate_size": settings.intermediate}
        | {
            "architectures": ["DFlashDraftModel"],
            "block_size": settings.block,
            "dflash_config": own,
        }
    )


def new_block_head(settings: BlockSettings) -> Trainee:
    """Make an untrained head of the bundled model."""
    target, tokenizer = load_target(settings.seed)
    config = block_config(target, settings)
    head = BlockModule(config)
    head.norm.weight.data.copy_(target.model.norm.weight)
    loss = partial(loss_of, head, target, settings=settings)
    return Trainee(settings, tokenizer, head, loss, partial(save_head, head, config))


def fill(
    head: BlockModule,
    target: Any,
    states: Sequence[Tensor],
    batch: PackedBatch,
    roots: Tensor,
    size: int,
) -> Tensor:
    """Return the normed states (rows, N, size, D) of N blocks a sequence. roots: (rows, N), the
    places of their roots.

    states: of the target over the batch, (rows, T, D) each.
    """
    rows, length = batch.ids.shape
    count, offsets = roots.shape[1], torch.arange(size)
    tokens = batch.ids.gather(1, roots)[..., None].expand(-1, -1, size)
    tokens = torch.where(offsets == 0, tokens, target.config.pad_token_id).reshape(rows, -1)
    conversation = (batch.positions == 0).cumsum(-1)
    root = roots.repeat_interleave(size, dim=1)  # of each of the M rows
    context = (torch.arange(length) < root[..., None]) & (
        conversation[:, None] == conversation.gather(1, root)[..., None]
    )
    block = torch.arange(count).repeat_interleave(size)
    own = (block[:, None] == block).expand(rows, -1, -1)
    places = (batch.positions.gather(1, roots)[..., None] + offsets).reshape(rows, -1)
    embedded = target.get_input_embeddings()(tokens)
    seen = torch.cat([context, own], dim=-1)[:, None]
    return head(states, embedded, (batch.positions, places), seen).view(rows, count, size, -1)


def loss_of(
    head: BlockModule, target: Any, batch: PackedBatch, settings: BlockSettings
) -> tuple[Tensor, list[float]]:
    """Return the loss of a batch, and for each place the share of blocks whose token the head ranks
    first.
    """
    size, (rows, length) = settings.block, batch.ids.shape
    answers = ((batch.weights > 0) & (batch.positions > 1))[:, : length - size].float()
    # (rows, N), answers' as long as there are
    roots = torch.multinomial(answers + 1e-9, settings.roots).sort().values
    at = (roots[..., None] + torch.arange(size)).view(rows, -1)
    states = read_states(target, batch)
    made = fill(head, target, states, batch, roots, size)[:, :, 1:]
    truth = states[-1][torch.arange(rows)[:, None], at].view(rows, -1, size, made.shape[-1])[
        :, :, :-1
    ]
    probs, guess = target.lm_head(truth).softmax(-1), target.lm_head(made)
    conversation = (batch.positions == 0).cumsum(-1)
    same = (
        conversation.gather(1, at).view(rows, -1, size) == conversation.gather(1, roots)[..., None]
    )
    counted = ((batch.weights.gather(1, at).view(rows, -1, size) > 0) & same)[..., 1:]
    losses = functional.cross_entropy(
        guess.flatten(0, 2), probs.flatten(0, 2), reduction="none"
    ).view(counted.shape)
    weights = counted.cumprod(-1) * torch.exp(-torch.arange(size - 1) / settings.fading)
    right = (guess.argmax(-1) == probs.argmax(-1)) & counted
    shares = right.sum((0, 1)) / counted.sum((0, 1)).clamp(min=1)
    return (losses * weights).sum() / weights.sum().clamp(min=1e-6), shares.tolist()
