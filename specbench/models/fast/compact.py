"""The forward of the Llama family on flat rows of tokens, reduced to what a decode step needs.

Written for steps of 1 to some 400 tokens over one request's context, where launching operations
costs more than running them: q, k and v in one product, gate and up in another, both rotations and
the identity on v in one multiplication, one write of keys and values a layer. No shape depends on
the draft, so the same lines are captured into a CUDA graph. Weights come from the library's model.
Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral), Yang et al. 2024 (Qwen2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specbench.models.family import find_head_size, find_windows, list_attention_kinds
from specbench.models.fast.attention import attend_behind
from specbench.models.fast.cache import StaticKV
from specbench.models.fast.masks import PlacesMask, TreeMask
from specbench.models.fast.operations import (
    Linear,
    Norm,
    Normed,
    Product,
    Rotate,
    SmallOps,
    Unscaled,
)
from specbench.models.transfer import upload
from specbench.models.tree import build_causal_mask, list_chunks, list_masked_chunks

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. out, down: summed over ranks, if any."""

    kind: str  # of attention, a key of the masks
    before: Norm
    qkv: Linear
    heads: tuple[Norm, Norm] | None  # of q and of k, Qwen3's
    out: Product
    after: Norm
    gate_up: Linear
    down: Product


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The input of a forward over n rows: tokens, positions, cache slots and masks.

    ids, positions, slots: (n,) int64.
    masks: attention kind -> additive (groups * n, length), or lengths and bits; None = all keys
    that are read. prompt: a chunk of a prompt; masks are (n, length) then, None = causal. On a GPU
    such a chunk is the first one.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    length: int  # [slots] of the keys that are read, the fed ones included
    masks: Mapping[str, Tensor | TreeMask | PlacesMask | None]
    prompt: bool = False
    first: int = 0  # the slot where reading starts


def explain_unsupported(config: Any) -> str | None:
    """Explain why this forward cannot run a model of ``config``; None = it can."""
    text = config.get_text_config()
    if text.model_type not in FAMILIES:
        return f"the family {text.model_type} is not one of {', '.join(FAMILIES)}"
    if getattr(text, "hidden_act", "silu") != "silu":
        return f"its activation is {text.hidden_act}, not silu"
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("partial_rotary_factor", getattr(text, "partial_rotary_factor", None)) not in (
        None,
        1,
        1.0,
    ):
        return "only a part of each head is rotated"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised"
    return None


def explain_unfit(model: Any) -> str | None:
    """Explain why this forward cannot run a loaded model: its configuration, or modules unlike the
    library's.
    """
    if reason := explain_unsupported(model.config):
        return reason
    home = f"transformers.models.{model.config.get_text_config().model_type}."
    if not type(model).__module__.startswith(home):
        return f"its class is {type(model).__module__}.{type(model).__name__}, not the library's"
    if len({parameter.dtype for parameter in model.parameters()}) > 1:
        return "its weights are of several dtypes"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"its module {name} has hooks"
        if name.endswith(("_proj", "lm_head")) and type(module) is not torch.nn.Linear:
            return f"its module {name} is a {type(module).__name__}, not a plain linear map"
    return None


class CompactModel:
    """The weights of one loaded model, on one device and in one dtype, and its forward."""

    def __init__(
        self, model: Any, positions: int, limit: int, pack: bool, small: type[SmallOps] = SmallOps
    ) -> None:
        """Take the weights of the library's model, in eval mode.

        positions: rows of the rotary table; those from ``limit`` on equal the last one before it.
        pack: see ``Linear``. small: the operations between products.
        """
        text = model.config.get_text_config()
        body, head = model.model, model.get_output_embeddings()
        self.embedding: Tensor = body.embed_tokens.weight.detach()
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.size = find_head_size(text)
        self.query_heads, self.key_heads = text.num_attention_heads, text.num_key_value_heads
        self.groups = self.query_heads // self.key_heads
        self.windows = find_windows(model.config)
        kinds = list_attention_kinds(model.config)
        linear = partial(small.linear, pack=pack)
        self.layers = [
            _layer(each, kind, linear) for each, kind in zip(body.layers, kinds, strict=True)
        ]
        self.norm = _norm(body.norm)
        self.head = linear([head])
        cos, sin = self._rotary(body.rotary_emb, positions, limit)
        self.small = small(cos, sin, self.query_heads, self.key_heads)
        # In half precision torch's CPU kernel takes several times longer for one row than for the
        # same row twice.
        self._twice = self.device.type == "cpu" and self.dtype in (torch.bfloat16, torch.float16)

    def _rotary(self, module: Any, positions: int, limit: int) -> tuple[Tensor, Tensor]:
        """(positions, size) each, scaling included; the sine carries the sign of the half it is
        multiplied with.
        """
        places = torch.arange(positions, device=self.device).clamp(max=limit - 1)
        cos, sin = module(self.embedding[:1], places[None])
        sign = torch.ones(self.size, dtype=self.dtype, device=self.device)
        sign[: self.size // 2] = -1
        return cos[0].clone(), sin[0] * sign

    def new_cache(self) -> StaticKV:
        """Make an empty cache of the model's shape."""
        return StaticKV(len(self.layers), self.key_heads, self.size, self.dtype, self.device)

    def __call__(
        self, rows: ForwardInput, cache: StaticKV, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Feed rows; returns their states after the final norm (n, D), and the hidden states of
        ``taps``.

        taps: 0 = the embeddings, i = after layer i, L = after the final norm.
        """
        hidden = functional.embedding(rows.ids, self.embedding)
        rotate = self.small.make_rotation(rows.positions)
        read = cache.read(rows.length, rows.first)
        normed: Normed = self.layers[0].before(hidden)
        tapped = {0: hidden}
        for number, layer in enumerate(self.layers):
            keys, values = read[2 * number], read[2 * number + 1]
            mixed = self._attend(layer, normed, rotate, rows, cache.layers[number], keys, values)
            hidden, normed = self.small.add_product(hidden, layer.out, mixed, layer.after)
            behind = self.layers[number + 1].before if number + 1 < len(self.layers) else self.norm
            gated = self.small.gate_product(layer.gate_up, normed)
            hidden, normed = self.small.add_product(hidden, layer.down, gated, behind)
            if number + 1 in taps:
                tapped[number + 1] = hidden
        tapped[len(self.layers)] = normed = (
            normed.scale() if isinstance(normed, Unscaled) else normed
        )
        return normed, {tap: tapped[tap] for tap in taps}

    def _attend(
        self,
        layer: Layer,
        normed: Normed,
        rotate: Rotate,
        rows: ForwardInput,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """(n, H * size): the heads' results. slots: this layer's keys and values, (2K, slots,
        size), written here.
        """
        query = self.small.project(
            layer.qkv, layer.heads, normed, rotate, rows.positions, slots, rows.slots
        )
        mask = rows.masks[layer.kind]
        if mask is None or isinstance(mask, Tensor):
            mixed = (self._prompt if rows.prompt else self._draft)(query, keys, values, mask)
        elif isinstance(mask, TreeMask):
            mixed = mask.attend(query, keys, values, mask)
        else:
            mixed = mask.attend(query, keys, values)
        return mixed.reshape(len(normed), -1)

    def _prompt(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Causal attention over a prompt so far, (n, H, size)."""
        rows, shared = query.transpose(0, 1)[None], self.groups > 1
        if mask is None and keys.shape[2] > len(query):
            return attend_behind(rows, keys, values)[0].transpose(0, 1)
        # on a GPU only the kernel that writes all scores would share keys by a mask
        if shared and mask is not None:
            keys, values = (each.repeat_interleave(self.groups, 1) for each in (keys, values))
        mixed = functional.scaled_dot_product_attention(
            rows,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=shared and mask is None,
        )
        return mixed[0].transpose(0, 1)

    def _draft(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention by mask, (n, H, size): query heads that share keys become additional rows."""
        count = len(query)
        packed = query.view(count, self.key_heads, self.groups, self.size).permute(1, 2, 0, 3)
        packed = packed.reshape(1, self.key_heads, self.groups * count, self.size)
        if self._twice and packed.shape[2] == 1:
            packed = packed.expand(-1, -1, 2, -1)
        mixed = functional.scaled_dot_product_attention(packed, keys, values, attn_mask=mask)
        mixed = mixed[0, :, : self.groups * count].unflatten(1, (self.groups, count))
        return mixed.permute(2, 0, 1, 3)


def _layer(module: Any, kind: str, linear: Callable[..., Linear]) -> Layer:
    attention, mlp = module.self_attn, module.mlp
    if hasattr(attention, "qkv_proj"):  # Phi-3 stores them joined
        qkv, gate_up = [attention.qkv_proj], [mlp.gate_up_proj]
    else:
        qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
        gate_up = [mlp.gate_proj, mlp.up_proj]
    normed = hasattr(attention, "q_norm")
    return Layer(
        kind=kind,
        before=_norm(module.input_layernorm),
        qkv=linear(qkv),
        heads=(_norm(attention.q_norm), _norm(attention.k_norm)) if normed else None,
        out=linear([attention.o_proj]),
        after=_norm(module.post_attention_layernorm),
        gate_up=linear(gate_up),
        down=linear([mlp.down_proj]),
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon)


def list_prompt_inputs(
    ids: Tensor,
    windows: Mapping[str, int | None],
    dtype: torch.dtype,
    start: int,
    context: int,
    past: int = 0,
) -> Iterator[ForwardInput]:
    """List the forwards that read a prompt's last tokens (n,), after its first ``past``, into slots
    from ``start`` on.

    On a CPU, and where a mask is needed, by a sliding window or by tokens before them, they are
    read in chunks; else by one forward. windows: attention kind -> sliding window [positions].
    context: [tokens] of the model; later tokens are at its last position.
    """
    count = past + len(ids)
    host = ids.device.type == "cpu"  # of ``attend_behind``, which needs no mask
    masked = any(window is not None and window < count for window in windows.values()) or (
        past > 0 and not host
    )
    unmasked = list_chunks(count, past) if host else [slice(0, count)]
    for part in list_masked_chunks(count, past) if masked else unmasked:
        places, masks = (
            torch.arange(part.start, part.stop, device=ids.device),
            dict[str, Tensor | None](),
        )
        for kind, window in windows.items():
            causal = (host or part.start == 0) and (window is None or window >= part.stop)
            built = (
                None if causal else build_causal_mask(part.stop, window, dtype, part.start)[0, 0]
            )
            masks[kind] = None if built is None else upload(built, ids.device, dtype)
        slots = places + start if start else places
        fed = ids[part.start - past : part.stop - past]
        yield ForwardInput(fed, places.clamp(max=context - 1), slots, part.stop, masks, True, start)


def read_prompt(
    model: CompactModel,
    cache: StaticKV,
    inputs: Iterator[ForwardInput],
    count: int,
    taps: tuple[int, ...],
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the (count, D) states of the inputs' tokens, and layer -> (count, D) of ``taps``.

    They are written into their final memory: chunks that are joined later would be stored twice,
    and would be between what a forward frees, so that the next one could not use it.
    """
    whole, first = list[Tensor](), 0
    for each in inputs:
        states, tapped = model(each, cache, taps)
        if len(states) == count:
            return states, tapped
        parts = [states, *(tapped[tap] for tap in taps)]
        whole = whole or [part.new_empty(count, part.shape[1]) for part in parts]
        for place, part in zip(whole, parts, strict=True):
            place[first : first + len(part)] = part
        first += len(states)
    return whole[0], dict(zip(taps, whole[1:], strict=True))
