"""Decoder layers of trained heads: the keys and values of committed tokens are stored, those of
tree nodes are dropped.

A layer's keys and values depend on its inputs only, so for the committed tokens the last layer
computes nothing but keys, values and the last token's output: with one layer, no attention over the
prompt. Committed tokens have the first slots of the memory in order, and tree nodes those after
them. A slot is not a position: keys and queries are rotated to their positions before. Requests can
share a forward: a drafter yields it, and is sent the outcome (``specbench.method.SharedDrafter``).
On a CPU the forward of one request is one call of compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from methods.parts.block_convolution import BlockConvolution, Convolved
from methods.parts.head_file import TensorShape
from specbench.models.fast.host.forward import (
    DTYPES,
    HEAD,
    ROW,
    SHORT,
    call_compiled,
    in_single,
    load_kernels,
    stack,
)
from specbench.models.transfer import stored
from specbench.types import InputError

# of a head: yields each forward, is sent its outcome, returns states or logits
Forwards = Generator[Any, Any, Tensor]


class RowFunction:
    """A function of rows that are independent of each other: those of several requests are one
    call.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def run_together(self, calls: Sequence[RowsCall]) -> list[Tensor]:
        """The outcome of each."""
        return list(
            self.function(join([call.rows for call in calls])).split(
                [len(call.rows) for call in calls]
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowsCall:
    """One request's rows (``specbench.method.DraftForward``). rows: (n, D)."""

    owner: RowFunction
    rows: Tensor

    def run(self) -> Tensor:
        """(n, ...)."""
        return self.owner.function(self.rows)


def join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the parts; a single one is returned unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


# kinds whose angles do not depend on the length of the sequence
STEADY = ("default", "linear", "llama3", "yarn")


class RopeTable:
    """cos and signed sin of every position: ``turn`` is x cos + swap_halves(x) sin."""

    def __init__(self, config: Any, size: int, device: torch.device, dtype: torch.dtype) -> None:
        """config: a Llama-like configuration. size: of an attention head. Raises InputError."""
        kind = config.rope_parameters.get("rope_type", "default")
        if kind not in STEADY:
            raise InputError(
                f"head: rotary positions of type {kind}; expected one of {', '.join(STEADY)}"
            )
        if (share := config.rope_parameters.get("partial_rotary_factor")) not in (None, 1):
            raise InputError(f"head: rotary positions turn {share} of the dimensions; expected all")
        try:
            self._embedding = LlamaRotaryEmbedding(config).to(device)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            # by the configured values
            raise InputError(
                f"head: rotary positions of {config.rope_parameters}: {error!r}"
            ) from error
        if not self._embedding.inv_freq.isfinite().all():
            raise InputError(
                f"head: rotary positions of {config.rope_parameters}; expected a base above 0"
            )
        if 2 * len(self._embedding.inv_freq) != size:
            raise InputError(
                f"head: rotary positions turn {2 * len(self._embedding.inv_freq)} of {size}"
                " dimensions; expected all"
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
    """Turn (rows, heads, size) to their positions; cos, sin: (rows or 1, 1, size) of a
    ``RopeTable``.
    """
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)


GROWTH = 256  # slots are reserved in multiples of this


def layer_shapes(
    config: Any, prefix: str, inputs: int, biased: bool, normed: bool = False
) -> dict[str, TensorShape]:
    """Names and shapes of a layer's matrices, norms before it apart.

    inputs: width of what attention reads. biased: q, k and v. normed: each head's query and key
    (Qwen3).
    """
    size, hidden = head_size(config), config.hidden_size
    wide, shared = config.num_attention_heads * size, config.num_key_value_heads * size
    shapes: dict[str, TensorShape] = {}
    for name, width in (("q", wide), ("k", shared), ("v", shared)):
        shapes[f"{prefix}self_attn.{name}_proj.weight"] = (width, inputs)
        if biased:
            shapes[f"{prefix}self_attn.{name}_proj.bias"] = (width,)
    if normed:
        shapes |= {f"{prefix}self_attn.{name}_norm.weight": (size,) for name in "qk"}
    shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, wide)
    shapes[f"{prefix}mlp.gate_proj.weight"] = shapes[f"{prefix}mlp.up_proj.weight"] = (
        config.intermediate_size,
        hidden,
    )
    shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, config.intermediate_size)
    shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def head_size(config: Any) -> int:
    """Width of an attention head: the configuration's, else hidden size over heads."""
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


class LayerMemory:
    """Keys and values of one request: committed tokens, then ``nodes`` slots of a tree.

    pairs: (layers, 2, shared heads, slots, size).
    array: on a CPU their memory, (layers, 2 * shared heads, slots, size).
    mask: (rows, slots), the additive mask of a tree's rows: zero for committed tokens.
    """

    def __init__(self, layers: DraftLayers, nodes: int, width: int) -> None:
        """nodes: tree nodes fed in one draft. width: most of them in one forward."""
        self.nodes, self.length, self._layers = nodes, 0, layers
        self.pairs = self.mask = layers.like.new_empty(0)
        self._capacity = 0
        self._width = width * layers.first.groups
        self.reserve(GROWTH)

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` committed tokens; what is stored stays."""
        if tokens <= self._capacity:
            return
        self._capacity = -(-max(tokens, 2 * self._capacity) // GROWTH) * GROWTH
        layers, slots = self._layers, self._capacity + self.nodes
        made = layers.like.new_zeros(layers.count, 2, layers.first.shared, slots, layers.first.size)
        if self.length:
            made[..., : self.length, :] = self.pairs[..., : self.length, :]
        self.pairs, self.array = (
            made,
            stored(made.flatten(1, 2)) if made.device.type == "cpu" else None,
        )
        self.mask = layers.like.new_zeros(self._width, slots)
        layers.rope.reserve(self._capacity + self.nodes + 1)

    def extend(self, tokens: int) -> slice:
        """Take the next slots for committed tokens, which are counted when they are stored; returns
        these slots.
        """
        start, end = self.length, self.length + tokens
        self.reserve(end)
        self.mask[:, start:end] = 0
        return slice(start, end)

    def forget(self) -> None:
        """Start a request."""
        self.length = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """Which tokens a row of a block sees in one layer, of the committed ones and of its block.

    causal: no later row of the block. window: those less than this many places away, None = all.
    from_root: the window is the number of committed tokens that all rows see, which see their block
    without it.
    """

    causal: bool = False
    window: int | None = None
    from_root: bool = False


class DraftLayers:
    """Layers one upon the other. What attention of the first one reads is given; later ones norm
    their input.

    A layer's name is its prefix. like: an empty tensor of their device and dtype.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        prefixes: Sequence[str],
        config: Any,
        biased: bool,
        sights: Sequence[Sight] = (),
    ) -> None:
        """Collect the weights.

        state: on the layers' device, in their dtype, with the names of ``layer_shapes`` and, of all
        but the first layer, ``input_layernorm``; with those of ``block_convolution``, layers that
        read blocks convolve them. sights: of a block's rows, one a layer; empty for layers that
        read trees.
        """
        self.like = state[f"{prefixes[0]}self_attn.q_proj.weight"].new_empty(0)
        self.rope = RopeTable(config, head_size(config), self.like.device, self.like.dtype)
        self._layers = [_Layer(state, prefix, config, biased) for prefix in prefixes]
        self._norms = [state[f"{prefix}input_layernorm.weight"] for prefix in prefixes[1:]]
        self.first, self.count, self._eps = (
            self._layers[0],
            len(prefixes),
            float(config.rms_norm_eps),
        )
        self._sights: list[Sight | None] = [*sights] or [None] * len(prefixes)
        self._convolutions = [BlockConvolution.around(state, prefix) for prefix in prefixes]
        self.compiled = (
            None
            if any(self._convolutions)
            else CompiledLayers.of(self._layers, self._norms, self.rope)
        )

    def new_memory(self, nodes: int, width: int) -> LayerMemory:
        """The keys and values of a request; see ``LayerMemory``."""
        return LayerMemory(self, nodes, width)

    def read(
        self,
        inputs: Tensor,
        residual: Tensor,
        memory: LayerMemory,
        outputs: int = 1,
        passing: int = 0,
    ) -> Forwards:
        """Remember committed tokens; yields the forward.

        inputs: (T, width), what attention reads.
        residual: (T, D), the tokens' own.
        outputs: rows wanted, the last ones; with several layers or outputs each row sees those up
        to its own. passing: of the last rows, how many are not remembered. Returns (outputs, D).
        """
        own = memory.extend(len(inputs))
        written = yield LayersCall(
            self, inputs, residual, memory, own, own.start, own.stop, outputs=outputs
        )
        memory.length = own.stop - passing
        return written

    def keep(self, inputs: Tensor, memory: LayerMemory) -> None:
        """Remember committed tokens that every layer reads unchanged: inputs (T, width), without
        outputs.
        """
        own = memory.extend(len(inputs))
        for layer, pair in zip(self._layers, memory.pairs, strict=True):
            _, pair[:, :, own] = layer.project(inputs, self.rope.cos[own], self.rope.sin[own])
        memory.length = own.stop

    def grow(
        self,
        inputs: Tensor,
        residual: Tensor,
        memory: LayerMemory,
        first: int,
        depths: slice,
        seen: Tensor,
    ) -> LayersCall:
        """The forward of w tree nodes, which are given the tree's slots from ``first`` on: outputs
        (w, D).

        inputs: (w, width), what attention of the first layer reads.
        residual: (w, D), the nodes' own.
        depths: of the nodes, one for all or one each; 0 is the place after the last committed
        token. seen: (w, nodes), 0 at the slots of nodes that a node sees, -inf at the others.
        """
        at = slice(memory.length + depths.start, memory.length + depths.stop)
        keys = memory.length + memory.nodes
        return LayersCall(
            self, inputs, residual, memory, at, memory.length + first, keys, seen, len(inputs)
        )

    def fill(self, inputs: Tensor, residual: Tensor, memory: LayerMemory) -> LayersCall:
        """The forward of a block, whose rows (w, width) and (w, D) are the places after the
        committed tokens.
        """
        rows = len(inputs)
        seen = self.like.new_zeros(rows, memory.nodes)
        if self._sights[0] and self._sights[0].causal:
            seen += torch.full_like(seen, -torch.inf).triu(1)
        return self.grow(inputs, residual, memory, 0, slice(0, rows), seen)

    def compiles(self, call: LayersCall) -> bool:
        """Returns whether the compiled code sees what the layers see: of a block, the same rows in
        all layers.
        """
        sights = [sight for sight in self._sights if sight]
        return bool(self.compiled) and len(call.inputs) <= SHORT and (
            len({sight.causal for sight in sights}) < 2
            and all(sight.window is None or call.keys <= sight.window for sight in sights)
        )  # fmt: skip

    def run_together(self, calls: Sequence[LayersCall]) -> list[Tensor]:
        """The outputs of each: products are of the rows of all, attention of each request's own."""
        inputs, residual = (
            join([call.inputs for call in calls]),
            join([call.residual for call in calls]),
        )
        counts = [len(call.inputs) for call in calls]
        masks = {
            sight: [call.fill_mask(self.first.groups, sight) for call in calls]
            for sight in set(self._sights)
        }
        cos, sin = (
            (
                table[calls[0].at]
                if len(calls) == 1
                else join([table[call.at].expand(len(call.inputs), -1, -1) for call in calls])
            )
            for table in (self.rope.cos, self.rope.sin)
        )
        for place, (layer, sight) in enumerate(zip(self._layers, self._sights, strict=True)):
            wanted = [call.outputs for call in calls] if place == self.count - 1 else counts
            if place:
                inputs = functional.rms_norm(
                    residual, residual.shape[-1:], self._norms[place - 1], self._eps
                )
            around = [each.over(counts) for each in self._convolutions[place]]
            if around:
                inputs = around[0].enter(inputs)
            query, made = layer.project(inputs, cos, sin)
            parts = zip(
                calls,
                masks[sight],
                query.split(counts),
                made.split(counts, dim=2),
                wanted,
                strict=True,
            )
            mixed = join(
                [layer.attend(call, call.memory.pairs[place], *part) for call, *part in parts]
            )
            if wanted is not counts:
                ends = zip(residual.split(counts), wanted, strict=True)
                residual = join([rows[len(rows) - count :] for rows, count in ends])
            residual = layer.finish(mixed, residual, around)
        return list(residual.split(wanted))


@dataclass(frozen=True, slots=True, eq=False)
class LayersCall:
    """One request's forward of the layers (``specbench.method.DraftForward``).

    inputs: (T, width), what attention of the first layer reads.
    residual: (T, D).
    at: positions, one for all rows or one each. first: the slot of the first row. keys: how many
    slots are seen. seen: (T, nodes), see ``DraftLayers.grow``; None = committed tokens, each of
    which sees those up to its own. outputs: rows wanted, the last ones.
    """

    owner: DraftLayers
    inputs: Tensor
    residual: Tensor
    memory: LayerMemory
    at: slice
    first: int
    keys: int
    seen: Tensor | None = None
    outputs: int = 1

    def run(self) -> Tensor:
        """(outputs, D)."""
        compiled = self.owner.compiled
        return (
            compiled.run(self)
            if compiled and self.owner.compiles(self)
            else self.owner.run_together([self])[0]
        )

    def fill_mask(self, groups: int, sight: Sight | None) -> Tensor | None:
        """(groups * T, n), what is added to the scores of the last n of the keys; the others are
        not read.

        sight: of a block's rows, None for tree nodes.
        """
        if self.seen is None:
            return None
        count, memory = len(self.inputs), self.memory
        if sight is None or (sight.window is None and not sight.causal):
            mask = memory.mask[: groups * count, : self.keys]
            mask.view(groups, count, -1)[:, :, memory.length :] = 0 if sight else self.seen
            return mask
        window = self.keys if sight.window is None else sight.window
        rows = torch.arange(memory.length, memory.length + count, device=self.seen.device)
        # The first token that the block's first row sees; a slot is a position here.
        oldest = max(0, memory.length + (0 if sight.from_root else 1) - window)
        apart = rows[:, None] - torch.arange(oldest, self.keys, device=self.seen.device)
        hidden = (
            torch.zeros_like(apart, dtype=torch.bool) if sight.from_root else apart.abs() >= window
        )
        if sight.causal:
            hidden |= apart < 0
        return self.seen.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf).repeat(groups, 1)


class _Layer:
    """Weights of one layer, with q, k, v in one matrix and gate and up in another: fewer
    launches.
    """

    def __init__(self, state: Mapping[str, Tensor], prefix: str, config: Any, biased: bool) -> None:
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        self.size, self.shared = head_size(config), int(config.num_key_value_heads)
        self.groups = int(config.num_attention_heads) // self.shared
        self.qkv = torch.cat([state[f"{attention}{name}_proj.weight"] for name in "qkv"])
        self.bias = (
            torch.cat([state[f"{attention}{name}_proj.bias"] for name in "qkv"]) if biased else None
        )
        self.norms = [state.get(f"{attention}{name}_norm.weight") for name in "qk"]
        self.out = state[f"{attention}o_proj.weight"]
        self.gate_up = torch.cat([state[f"{mlp}gate_proj.weight"], state[f"{mlp}up_proj.weight"]])
        self.down = state[f"{mlp}down_proj.weight"]
        self.norm = state[f"{prefix}post_attention_layernorm.weight"]
        self.act, self.eps = ACT2FN[config.hidden_act], float(config.rms_norm_eps)

    def attend(
        self,
        call: LayersCall,
        pair: Tensor,
        mask: Tensor | None,
        query: Tensor,
        made: Tensor,
        wanted: int,
    ) -> Tensor:
        """(wanted, heads * size), what the last rows of one request's (T, heads, size) queries see.

        pair: (2, shared, slots, size), where made (2, shared, T, size), the rows' keys and values,
        are stored first. mask: see ``LayersCall.fill_mask``.
        """
        pair[:, :, call.first : call.first + len(query)] = made
        keys, values = pair[
            :, None, :, call.keys - (call.keys if mask is None else mask.shape[1]) : call.keys
        ]
        if mask is None and wanted > 1:
            mask = torch.ones(wanted, call.keys, dtype=torch.bool, device=query.device).tril(
                call.keys - wanted
            )
            mask = mask.repeat(self.groups, 1)
        heads = query[len(query) - wanted :].view(wanted, self.shared, self.groups, self.size)
        grouped = heads.permute(1, 2, 0, 3).reshape(1, self.shared, self.groups * wanted, self.size)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return (
            mixed.view(self.shared, self.groups, wanted, self.size)
            .permute(2, 0, 1, 3)
            .reshape(wanted, -1)
        )

    def project(self, inputs: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, heads, size) queries, and (2, shared, rows, size) keys and values, turned by a
        ``RopeTable``.
        """
        qkv = functional.linear(inputs, self.qkv, self.bias).view(len(inputs), -1, self.size)
        cut = self.groups * self.shared
        raw, values = qkv[:, : cut + self.shared], qkv[:, cut + self.shared :]
        if self.norms[0] is not None:
            parts = zip(raw.split([cut, self.shared], dim=1), self.norms, strict=True)
            raw = torch.cat(
                [functional.rms_norm(part, (self.size,), norm, self.eps) for part, norm in parts],
                dim=1,
            )
        turned = turn(raw, cos, sin)
        return turned[:, :cut], torch.stack([turned[:, cut:], values]).transpose(1, 2)

    def finish(self, mixed: Tensor, residual: Tensor, around: Sequence[Convolved] = ()) -> Tensor:
        """Output projection and MLP: (rows, D). around: convolutions around attention and around
        the MLP.
        """
        attended = functional.linear(mixed, self.out)
        hidden = residual + (around[0].leave(attended) if around else attended)
        normed = functional.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps)
        if around:
            normed = around[1].enter(normed)
        gate, up = functional.linear(normed, self.gate_up).chunk(2, dim=-1)
        written = functional.linear(self.act(gate) * up, self.down)
        return hidden + (around[1].leave(written) if around else written)


class CompiledLayers:
    """The layers on a CPU, as one call of compiled code for the rows of one request."""

    def __init__(
        self, layers: Sequence[_Layer], norms: Sequence[Tensor], rope: RopeTable, kernels: Any
    ) -> None:
        """norms: before the later layers."""
        first, empty = layers[0], layers[0].qkv.new_empty(0, layers[0].size)
        heads = (first.groups * first.shared, first.shared)  # with norms
        after = [*norms, torch.ones_like(first.norm)]  # the last one's result is not read
        addresses = [[each.data_ptr() for each in (layer.qkv, layer.out, layer.gate_up, layer.down)]
                     for layer in layers]  # fmt: skip
        normed = [
            torch.cat(
                [
                    empty,
                    *(
                        norm.expand(count, -1)
                        for norm, count in zip(layer.norms, heads, strict=True)
                        if norm is not None
                    ),
                ]
            )
            for layer in layers
        ]
        biases = [
            empty if layer.bias is None else layer.bias.view(-1, first.size) for layer in layers
        ]
        pairs = [
            norm for layer, later in zip(layers, after, strict=True) for norm in (layer.norm, later)
        ]
        self._constants = (
            heads[0], first.down.shape[1], stored(first.qkv), np.array(addresses), stack(pairs),
            stack(normed), stack(biases), first.eps,
        )  # fmt: skip
        self._kernels, self._rope = kernels, rope
        self._cos = self._sin = np.empty((0, 0), np.float32)

    @classmethod
    def of(
        cls, layers: Sequence[_Layer], norms: Sequence[Tensor], rope: RopeTable
    ) -> CompiledLayers | None:
        """The layers, if compiled code can compute them."""
        first = layers[0]
        weights = [
            each for layer in layers for each in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        fits = (
            first.qkv.device.type == "cpu" and first.qkv.dtype in DTYPES and not first.size % HEAD
        )
        fits = (
            fits
            and type(first.act) is type(ACT2FN["silu"])
            and all(not each.shape[1] % ROW for each in weights)
        )
        kernels = (
            load_kernels()[0] if fits and all(each.is_contiguous() for each in weights) else None
        )
        return cls(layers, norms, rope, kernels) if kernels else None

    def run(self, call: LayersCall) -> Tensor:
        """(outputs, D)."""
        count, memory = len(call.inputs), call.memory
        if len(self._cos) != len(self._rope.cos):
            self._cos, self._sin = (
                each[:, 0].float().numpy() for each in (self._rope.cos, self._rope.sin)
            )
        places = np.arange(call.at.start, call.at.start + count)
        if call.at.stop - call.at.start < count:  # one position for all
            places[:] = call.at.start
        if call.seen is None:
            cached, bias = call.first, np.triu(np.ones((count, count), self._constants[2].dtype), 1)
        else:
            cached, bias = memory.length, stored(call.seen)[:, : call.first + count - memory.length]
        out = np.empty((call.outputs, call.residual.shape[1]), np.float32)
        queries, inner, like, addresses, norms, head_norms, head_bias, epsilon = self._constants
        call_compiled(
            self._kernels.read_layers, self._kernels, in_single(call.inputs),
            in_single(call.residual), places, call.first, cached, np.ascontiguousarray(bias),
            queries, inner, like, addresses, norms, head_norms, head_bias, epsilon, self._cos,
            self._sin, memory.array, out,
        )  # fmt: skip
        return torch.from_numpy(out).to(call.inputs.dtype)
