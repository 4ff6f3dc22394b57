"""One Llama decoder layer that drafts: committed tokens are kept, tree nodes are dropped.

A layer's keys and values depend on its inputs only, so of the committed tokens nothing but keys, values and the last
one's output is computed: no attention over the prompt. Tree nodes have the first slots of the memory to themselves,
committed tokens follow in order. A slot is not a position: keys and queries are rotated to their positions before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from methods.parts.heads.head_file import TensorShape
from specbench.types import InputError

STEADY = ("default", "linear", "llama3", "yarn")  # kinds whose angles do not depend on the length of the sequence


class RopeTable:
    """cos and signed sin of every position: ``turn`` is x cos + swap_halves(x) sin."""

    def __init__(self, config: Any, size: int, device: torch.device, dtype: torch.dtype) -> None:
        """config: a Llama-like configuration. size: of an attention head. Raises InputError."""
        kind = config.rope_parameters.get("rope_type", "default")
        if kind not in STEADY:
            raise InputError(f"head: rotary positions of type {kind}; expected one of {', '.join(STEADY)}")
        self._embedding = LlamaRotaryEmbedding(config).to(device)
        if 2 * len(self._embedding.inv_freq) != size:
            raise InputError(
                f"head: rotary positions turn {2 * len(self._embedding.inv_freq)} of {size} dimensions; expected all"
            )
        self._size, self._like = size, torch.empty(0, device=device, dtype=dtype)
        self.cos = self.sin = torch.empty(0, 1, size, device=device, dtype=dtype)

    def reserve(self, length: int) -> None:
        """Hold positions 0 to ``length - 1``: cos and sin are (length or more, 1, size)."""
        if length <= len(self.cos):
            return
        positions = torch.arange(max(length, 2 * len(self.cos)), device=self._like.device)
        cos, sin = self._embedding(self._like, positions[None])
        self.cos, self.sin = cos[0, :, None], sin[0, :, None].clone()
        self.sin[..., : self._size // 2].neg_()


def turn(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn (rows, heads, size) to their positions; cos, sin: (rows or 1, 1, size) of a ``RopeTable``."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)


GROWTH = 256  # slots are reserved in multiples of this


def layer_shapes(config: Any, prefix: str, inputs: int, biased: bool) -> dict[str, TensorShape]:
    """Names and shapes of a layer's matrices, norms apart. inputs: width of what attention reads."""
    size, hidden = head_size(config), config.hidden_size
    wide, shared = config.num_attention_heads * size, config.num_key_value_heads * size
    shapes: dict[str, TensorShape] = {}
    for name, width in (("q", wide), ("k", shared), ("v", shared)):
        shapes[f"{prefix}self_attn.{name}_proj.weight"] = (width, inputs)
        if biased:
            shapes[f"{prefix}self_attn.{name}_proj.bias"] = (width,)
    shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, wide)
    shapes[f"{prefix}mlp.gate_proj.weight"] = shapes[f"{prefix}mlp.up_proj.weight"] = (config.intermediate_size, hidden)
    shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, config.intermediate_size)
    shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def head_size(config: Any) -> int:
    """Width of an attention head: the configuration's, else hidden size over heads."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


class LayerMemory:
    """Keys and values of one request: ``nodes`` slots of a tree, then committed tokens.

    pair: (2, shared heads, slots, size). mask: (rows, slots), the additive mask of a tree's rows.
    """

    def __init__(self, layer: DraftLayer, nodes: int, width: int) -> None:
        """nodes: tree nodes fed in one draft. width: most of them in one forward."""
        self.nodes, self.length, self._layer = nodes, 0, layer
        self.pair = self.mask = layer.qkv.new_empty(0)
        self._capacity = 0
        self._width = width * layer.groups
        self.reserve(GROWTH)

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` committed tokens; what is held stays."""
        if tokens <= self._capacity:
            return
        self._capacity = -(-max(tokens, 2 * self._capacity) // GROWTH) * GROWTH
        layer, held = self._layer, (self.nodes + self.length if self.length else 0)
        slots = self.nodes + self._capacity
        made = layer.qkv.new_zeros(2, layer.shared, slots, layer.size)
        if held:
            made[:, :, :held] = self.pair[:, :, :held]
        self.pair = made
        self.mask = layer.qkv.new_zeros(self._width, slots)
        layer.rope.reserve(self._capacity + self.nodes + 1)

    def forget(self) -> None:
        """Start a request."""
        self.length = 0


class DraftLayer:
    """Weights of one layer, with q, k, v in one matrix and gate and up in another: fewer launches."""

    def __init__(self, state: Mapping[str, Tensor], prefix: str, config: Any, biased: bool) -> None:
        """state: on the layer's device, in its dtype, with the names of ``layer_shapes``."""
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        self.size, self.shared = head_size(config), int(config.num_key_value_heads)
        self.groups = int(config.num_attention_heads) // self.shared
        self.qkv = torch.cat([state[f"{attention}{name}_proj.weight"] for name in "qkv"])
        self._bias = torch.cat([state[f"{attention}{name}_proj.bias"] for name in "qkv"]) if biased else None
        self._out = state[f"{attention}o_proj.weight"]
        self._gate_up = torch.cat([state[f"{mlp}gate_proj.weight"], state[f"{mlp}up_proj.weight"]])
        self._down = state[f"{mlp}down_proj.weight"]
        self._norm = state[f"{prefix}post_attention_layernorm.weight"]
        self._act, self._eps = ACT2FN[config.hidden_act], float(config.rms_norm_eps)
        self.rope = RopeTable(config, self.size, self.qkv.device, self.qkv.dtype)

    def read(self, inputs: Tensor, residual: Tensor, memory: LayerMemory) -> Tensor:
        """Remember committed tokens.

        inputs: (T, width), what attention reads.
        residual: (1, D), the last token's own.
        Returns the output (1, D) of the last token.
        """
        start, end = memory.length, memory.length + len(inputs)
        memory.reserve(end)
        query, pair = self._project(inputs, slice(start, end))
        first = memory.nodes
        memory.pair[:, :, first + start : first + end] = pair
        memory.length = end
        keys, values = memory.pair[:, None, :, first : first + end]
        mixed = functional.scaled_dot_product_attention(self._grouped(query[-1:]), keys, values)
        return self._finish(mixed, residual)

    def grow(
        self, inputs: Tensor, residual: Tensor, memory: LayerMemory, first: int, depth: int, seen: Tensor
    ) -> Tensor:
        """Outputs (w, D) of w tree nodes of one depth, which are given the tree's slots from ``first`` on.

        inputs: (w, width), what attention reads.
        residual: (w, D), the nodes' own.
        depth: 1 = child of the root.
        seen: (w, nodes), 0 at the slots of a node's ancestors and its own, -inf elsewhere.
        """
        rows, place = len(inputs), memory.length + depth - 1
        query, pair = self._project(inputs, slice(place, place + 1))
        memory.pair[:, :, first : first + rows] = pair
        end = memory.nodes + memory.length
        mask = memory.mask[: self.groups * rows, :end]
        mask.view(self.groups, rows, -1)[:, :, : memory.nodes] = seen
        keys, values = memory.pair[:, None, :, :end]
        return self._finish(
            functional.scaled_dot_product_attention(self._grouped(query), keys, values, attn_mask=mask), residual
        )

    def _project(self, inputs: Tensor, at: slice) -> tuple[Tensor, Tensor]:
        """(rows, heads, size) queries, and (2, shared, rows, size) keys and values, turned to positions ``at``."""
        qkv = functional.linear(inputs, self.qkv, self._bias).view(len(inputs), -1, self.size)
        cut = self.groups * self.shared
        turned = turn(qkv[:, : cut + self.shared], self.rope.cos[at], self.rope.sin[at])
        return turned[:, :cut], torch.stack([turned[:, cut:], qkv[:, cut + self.shared :]]).transpose(1, 2)

    def _grouped(self, query: Tensor) -> Tensor:
        """(1, shared, groups * rows, size): queries that share keys, beside each other."""
        rows = len(query)
        return query.view(rows, self.shared, self.groups, self.size).permute(1, 2, 0, 3).reshape(
            1, self.shared, self.groups * rows, self.size
        )  # fmt: skip

    def _finish(self, mixed: Tensor, residual: Tensor) -> Tensor:
        """Output projection and MLP. mixed: as ``_grouped``."""
        rows = len(residual)
        mixed = mixed.view(self.shared, self.groups, rows, self.size).permute(2, 0, 1, 3).reshape(rows, -1)
        hidden = residual + functional.linear(mixed, self._out)
        normed = functional.rms_norm(hidden, hidden.shape[-1:], self._norm, self._eps)
        gate, up = functional.linear(normed, self._gate_up).chunk(2, dim=-1)
        return hidden + functional.linear(self._act(gate) * up, self._down)
