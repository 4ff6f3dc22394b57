"""EAGLE heads as modules to train, unrolled on what they write themselves; their state has the published names.

Pass d stands for nodes of depth d: its ancestors are earlier passes, its context are the target's true features
(the training-time test of EAGLE-3, Li et al. 2025, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from tiny.packing import separate


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.size = size = int(config.head_dim or 0)
        width, shared = config.num_attention_heads * size, int(config.num_key_value_heads or 0) * size
        self.q_proj = nn.Linear(inputs, width, bias=False)
        self.k_proj = nn.Linear(inputs, shared, bias=False)
        self.v_proj = nn.Linear(inputs, shared, bias=False)
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
    """A Llama layer without a norm before its attention, as EAGLE's is. inputs: width of what attention reads."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, inputs)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class EagleModule(nn.Module):
    """The head in the shape of EAGLE-1: continues the last feature, borrows the target's output head."""

    def __init__(self, config: LlamaConfig, target: Any) -> None:
        """config: of the layer. Begins as the feature itself."""
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([_Layer(config, config.hidden_size)])
        self._lent: list[Any] = [LlamaRotaryEmbedding(config), target.lm_head]  # in a list: no part of the state
        with torch.no_grad():
            self.fc.weight[:, config.hidden_size :] += torch.eye(config.hidden_size)

    def enter(self, states: Sequence[Tensor]) -> Tensor:
        """What of the target's L + 1 states, (rows, T, D) each, the head continues."""
        return states[-1]

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, and the residual."""
        mixed = self.fc(torch.cat([embedded, features], dim=-1))
        return mixed, mixed

    def layer(self) -> Any:
        """The decoder layer."""
        return self.layers[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, D) -> (n, Vd)."""
        return self._lent[1](hidden)

    def ids(self) -> Tensor | None:
        """(Vd,) target ids of its vocabulary, None = the target's own."""
        return None

    def unroll(self, features: Tensor, embedded: Tensor, positions: Tensor, passes: int) -> list[Tensor]:
        """``passes`` times (rows, T, D): what the head makes of (feature i, token i + 1) at depths 0, 1, 2 ...

        features, embedded: (rows, T, D); embedded[i] belongs to token i + 1. positions: (rows, T), 0 starts a
        conversation.
        """
        layer = self.layer()
        turn = self._lent[0](features, positions)
        past: list[tuple[Tensor, Tensor]] = []  # keys and values of each pass
        outputs = []
        for depth in range(passes):
            inputs, hidden = self.mix(embedded, features)
            query, key, value = layer.self_attn.project(inputs, turn)
            past.append((key, value))
            mixed = attend(query, past, visible(positions, depth))
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = self.carry(hidden + layer.mlp(layer.post_attention_layernorm(hidden)))
            outputs.append(hidden)
            embedded, features = self.deeper(embedded, hidden)
        return outputs

    def carry(self, hidden: Tensor) -> Tensor:
        """What the layer wrote, as the next pass and ``logits`` continue it."""
        return hidden

    def deeper(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(embedded, features) of the next pass: its own output of token i stands for feature i + 1."""
        return embedded, functional.pad(hidden[:, :-1], (0, 0, 1, 0))


class MtpModule(EagleModule):
    """A module for multi-token prediction in the shape of the speculators library's: norms around the projection."""

    def __init__(self, config: LlamaConfig, target: Any) -> None:
        """Begins as the feature itself."""
        nn.Module.__init__(self)
        hidden, block = config.hidden_size, _Layer(config, config.hidden_size)
        for name in ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm"):
            setattr(block, name, LlamaRMSNorm(hidden, eps=config.rms_norm_eps))
        block.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.mtp_layers = nn.ModuleList([block])
        self._lent = [LlamaRotaryEmbedding(config), target.lm_head]
        with torch.no_grad():
            block.input_proj.weight[:, hidden:] += torch.eye(hidden)

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Projected from both normed, and normed once more for attention."""
        layer = self.layer()
        both = [layer.token_layernorm(embedded), layer.hidden_layernorm(features)]
        mixed = layer.input_proj(torch.cat(both, dim=-1))
        return layer.input_layernorm(mixed), mixed

    def layer(self) -> Any:
        """The decoder layer."""
        return self.mtp_layers[0]

    def carry(self, hidden: Tensor) -> Tensor:
        """Behind the last norm."""
        normed: Tensor = self.layer().final_layernorm(hidden)
        return normed


class Eagle3Module(EagleModule):
    """The head in the shape of EAGLE-3: fused states enter once, its own output head knows part of the vocabulary."""

    def __init__(self, config: LlamaConfig, target: Any, fused: Sequence[int], ids: Tensor) -> None:
        """fused: hidden states that enter. ids: (Vd,) target ids of the head's vocabulary."""
        nn.Module.__init__(self)
        hidden = config.hidden_size
        self._fused, self._lent = tuple(fused), [LlamaRotaryEmbedding(config)]
        self.fc = nn.Linear(len(self._fused) * hidden, hidden, bias=False)
        self.midlayer = _Layer(config, 2 * hidden)
        for name in ("hidden_norm", "input_layernorm"):
            setattr(self.midlayer, name, LlamaRMSNorm(hidden, eps=config.rms_norm_eps))
        self.norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(ids), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight.data[ids])
        self.register_buffer("d2t", ids - torch.arange(len(ids)))
        known = torch.zeros(target.config.vocab_size, dtype=torch.bool)
        self.register_buffer("t2d", known.index_fill_(0, ids, True))
        self._ids = ids

    def enter(self, states: Sequence[Tensor]) -> Tensor:
        """Three states, fused."""
        return self.fc(torch.cat([states[layer] for layer in self._fused], dim=-1))

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Normed embedding beside normed state; the residual is the state."""
        layer: Any = self.midlayer
        return torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(features)], dim=-1), features

    def layer(self) -> Any:
        """The decoder layer."""
        return self.midlayer

    def logits(self, hidden: Tensor) -> Tensor:
        """Its own norm and output head."""
        return self.lm_head(self.norm(hidden))

    def ids(self) -> Tensor | None:
        """Of its vocabulary."""
        return self._ids


class PEagleModule(Eagle3Module):
    """The head in the shape of P-EAGLE: deeper passes read a mask token and a learned state, not what was drafted."""

    def __init__(self, config: LlamaConfig, target: Any, fused: Sequence[int], ids: Tensor, mask: int) -> None:
        """mask: the mask token, of the target's embedding."""
        super().__init__(config, target, fused, ids)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, len(fused) * config.hidden_size))
        self._lent.append(target.get_input_embeddings().weight[mask].detach())

    def deeper(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The same at every place and depth."""
        return self._lent[1].expand_as(embedded), self.fc(self.mask_hidden).expand_as(hidden)


def visible(positions: Tensor, depth: int) -> Tensor:
    """(rows, 1, T, T) bool: what row i of pass ``depth`` sees of pass 0: up to i - depth, in its own conversation."""
    length = positions.shape[-1]
    return separate(positions) & (torch.arange(length)[:, None] - torch.arange(length)[None] >= depth)


def attend(query: Tensor, past: list[tuple[Tensor, Tensor]], seen: Tensor) -> Tensor:
    """(rows, heads, T, size): attention of pass ``depth = len(past) - 1``.

    Row i sees pass 0 where ``seen`` says so, and of pass m > 0 the one token i - depth + m, its own ancestor. Rows with
    too few tokens before them see zeros there; no loss counts them.
    """
    depth, groups = len(past) - 1, query.shape[1] // past[0][0].shape[1]
    wide = [tuple(part.repeat_interleave(groups, dim=1) for part in pair) for pair in past]
    near = [tuple(functional.pad(part, (0, 0, depth - m, 0))[:, :, : part.shape[2]] for part in wide[m])
            for m in range(1, depth + 1)]  # fmt: skip
    scores = (query @ wide[0][0].transpose(-1, -2)).masked_fill(~seen, -torch.inf)
    lone = [(query * key).sum(-1, keepdim=True) for key, _ in near]
    weights = (torch.cat([scores, *lone], dim=-1) * query.shape[-1] ** -0.5).softmax(-1)
    length = query.shape[2]
    mixed = weights[..., :length] @ wide[0][1]
    for place, (_, value) in enumerate(near):
        mixed = mixed + weights[..., length + place, None] * value
    return mixed
