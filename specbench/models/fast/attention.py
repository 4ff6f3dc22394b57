"""How the rows of a draft attend: by an additive mask (SDPA), or by lengths and bits that are read on the device.

A dense mask is of one length of keys, so it needs a recording for each. ``TreeMask`` says the same in a length and one
bit for each pair of fed rows, and one recording serves every length.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from specbench.models.fast.operations import SmallOps
from specbench.types import InputError

SDPA, TRITON, FUSED, FLEX = "sdpa", "triton", "fused", "flex"
WAYS = (SDPA, TRITON, FUSED, FLEX)
OURS = (TRITON, FUSED)  # fused: the small operations of a layer too
WORD = 32  # bits
NEVER = float("-inf")  # in an additive mask, where a row does not see a key
DTYPES = ("float32", "float16", "bfloat16")
LARGEST = 128  # size of a head, in our kernel

Attend = Callable[[Tensor, Tensor, Tensor, "TreeMask"], Tensor]


@dataclass(frozen=True, slots=True)
class FastOptions:
    """How the fast engine computes.

    pack: where torch computes on a CPU, with a second copy of the weights that is faster for short inputs.
    attention: of drafts, one of ``WAYS``. compiled: on a CPU, drafts' forwards are one call of compiled code.
    """

    pack: bool = True
    attention: str = SDPA
    compiled: bool = True


@dataclass(frozen=True, slots=True)
class TreeMask:
    """What n rows of each of B requests see: the context within the window, and each other where a bit is set.

    attend: queries (B * n, H, size), keys and values (B, K, slots, size) -> (B * n, H, size).
    held: (B,) int64 [tokens] of context, in the slots before the rows' own.
    depths: (B * n,) int64 of a row below its root.
    bits: (B * n, words) int32, bit j of a row for slot j behind the context, within the window.
    window: [positions], None = all.
    columns: slots behind the context that bits speak of; None: those of the rows.
    """

    attend: Attend
    held: Tensor
    depths: Tensor
    bits: Tensor
    window: int | None
    columns: int | None = None


@dataclass(frozen=True, slots=True)
class PlacesMask:
    """What packed rows see, for torch. room: [slots] of a place. places: those that take part. end: slots read of each.

    laid: (k * q,) index of the packed row that lies there; padding has any. back: (n,) where each packed row lies.
    seen: (k, 1, groups * q, end) additive.
    """

    room: int
    places: slice
    end: int
    laid: Tensor
    back: Tensor
    seen: Tensor

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(n, H, size) queries, (1, K, slots, size) keys and values -> (n, H, size)."""
        count, (heads, size), key_heads = len(self.seen), query.shape[1:], keys.shape[1]
        width, groups = len(self.laid) // count, heads // key_heads
        laid = query[self.laid].view(count, width, key_heads, groups, size).permute(0, 2, 3, 1, 4)
        packed = laid.reshape(count, key_heads, groups * width, size)
        held = [each[0].unflatten(1, (-1, self.room))[:, self.places, : self.end] for each in (keys, values)]
        own, beside = (each.transpose(0, 1) for each in held)
        mixed = functional.scaled_dot_product_attention(packed, own, beside, attn_mask=self.seen)
        mixed = mixed.view(count, key_heads, groups, width, size).permute(0, 3, 1, 2, 4)
        return mixed.reshape(count * width, heads, size)[self.back]


def attend_behind(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of the last n tokens on a CPU, without a mask: to those before them and to each other apart.

    Both results are weighed by the sums of their exponentials, so their mean is attention over all (Dao et al. 2022).
    query: (1, H, n, size). keys, values: (1, K, T, size), the last n of them the queries' own. -> (1, H, n, size).
    """
    kernel, past = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, keys.shape[2] - query.shape[2]
    before, sum_before = kernel(query, keys[:, :, :past], values[:, :, :past], 0.0, False)
    among, sum_among = kernel(query, keys[:, :, past:], values[:, :, past:], 0.0, True)
    share = torch.sigmoid(sum_among - sum_before)[..., None]
    return torch.lerp(before.to(share.dtype), among.to(share.dtype), share).to(query.dtype)


def count_words(rows: int) -> int:
    """Words that hold one bit for each row."""
    return -(-rows // WORD)


def pack_bits(seen: np.ndarray) -> np.ndarray:
    """(n, m) bool -> (n, words) int32."""
    packed = np.zeros((len(seen), 4 * count_words(seen.shape[1])), dtype=np.uint8)
    octets = np.packbits(seen, axis=1, bitorder="little")
    packed[:, : octets.shape[1]] = octets
    return packed.view("<i4")


def find_attention(way: str, device: torch.device, dtype: torch.dtype, size: int) -> Attend | None:
    """The attention by a ``TreeMask``; None: SDPA, by an additive mask. size: of a head. Raises InputError."""
    require_attention(way, device.type, str(dtype).removeprefix("torch."), size)
    if way in OURS:
        from specbench.models.fast.kernels.tree_attention import attend  # needs Triton, which may not be installed

        return attend
    return attend_flex if way == FLEX else None


def find_for_drafts(way: str, device: torch.device, dtype: torch.dtype, size: int) -> Attend | None:
    """The attention of a draft model: our kernel where the target has it and it runs on the draft model too."""
    usable = way in OURS and _explain_unusable(way, device.type, str(dtype).removeprefix("torch."), size) is None
    return find_attention(way, device, dtype, size) if usable else None


def find_small_ops(way: str, device: torch.device, dtype: torch.dtype) -> type[SmallOps]:
    """The operations between a layer's products. Raises InputError."""
    require_attention(way, device.type, str(dtype).removeprefix("torch."))
    if way != FUSED:
        return SmallOps
    from specbench.models.fast.kernels.fused import FusedOps  # needs Triton, as above

    return FusedOps


def require_attention(way: str, device: str, dtype: str, size: int = 0) -> None:
    """Raises InputError where ``way`` does not run on such numbers. device: its name. size: of a head, if known."""
    if reason := _explain_unusable(way, device, dtype, size):
        raise InputError(f"engine.attention={way}: {reason}")


def _explain_unusable(way: str, device: str, dtype: str, size: int) -> str | None:
    if way not in WAYS:
        return f"expected one of {', '.join(WAYS)}"
    if way not in OURS:
        return None
    if find_spec("triton") is None:
        return "Triton is not installed; pip install 'specbench[triton]', or engine.attention=sdpa"
    if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the kernel runs on a CUDA device, got {device}; expected engine.attention=sdpa or model.device=cuda"
    if dtype not in DTYPES:
        return f"model.dtype is {dtype}; expected {', '.join(DTYPES)}, or engine.attention=sdpa"
    if size > LARGEST:
        return f"heads have {size} numbers; expected at most {LARGEST}, or engine.attention=sdpa"
    return None


def attend_flex(query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask) -> Tensor:
    """See ``TreeMask``, by torch's FlexAttention; it goes over every slot, and is there to compare with."""
    batches, count = len(mask.held), len(query) // len(mask.held)
    columns = mask.columns or count
    depths, bits = mask.depths.view(batches, count), mask.bits.view(batches, count, -1)

    def see(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        past = mask.held[batch]
        fed = (slot - past).clamp(0, columns - 1)
        seen = (slot >= past) & (slot < past + columns) & ((bits[batch, row, fed // WORD] >> (fed % WORD)) & 1 == 1)
        near = slot < past
        if mask.window is not None:
            near = near & (past + depths[batch, row] - slot < mask.window)
        return torch.where(seen | near, score, float("-inf"))

    rows = query.unflatten(0, (batches, count)).transpose(1, 2)
    call = torch.compile(flex_attention) if query.is_cuda else flex_attention
    mixed = call(rows, keys, values, score_mod=see, enable_gqa=True)
    assert isinstance(mixed, Tensor)
    return mixed.transpose(1, 2).flatten(0, 1)


def allow_cudnn_attention(allowed: bool) -> None:
    """Of this process, from now on; the others (flash, memory efficient, plain) stay allowed."""
    torch.backends.cuda.enable_cudnn_sdp(allowed)


def is_cudnn_attention_allowed() -> bool:
    """What a process that is started from this one is to be told."""
    return torch.backends.cuda.cudnn_sdp_enabled()
