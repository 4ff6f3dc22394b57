"""The attention of a draft's rows: by an additive mask (SDPA), or by lengths and bits that are read
on the device.

On Hopper torch prefers cuDNN's attention kernel to all others, also with a mask. It plans every
exact shape anew, in 40 to 440 ms: once for every length of a prompt, in the timed prefill
(pytorch#191576). So it is off unless a run asks for it (``enable_cudnn_sdp``), for this package's
engines and for the library's own loops.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from specbench.models.fast.masks import LARGEST, NEVER, WORD, Attend, TreeMask
from specbench.models.fast.operations import SmallOps
from specbench.types import InputError

AUTO, SDPA, TRITON, FUSED, FLEX = "auto", "sdpa", "triton", "fused", "flex"
WAYS = (SDPA, TRITON, FUSED, FLEX)
OURS = (TRITON, FUSED)  # fused: the small operations of a layer too
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class FastOptions:
    """The ways in which the fast engine computes."""

    # use a second copy of the weights that is faster for short inputs, if torch computes on a CPU
    pack: bool = True
    attention: str = SDPA  # of drafts, one of ``WAYS``
    compiled: bool = True  # run the forward of a draft as one call of compiled code, on a CPU


def attend_behind(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute causal attention of the last n tokens on a CPU, without a mask: to earlier tokens,
    and to each other.

    The two results are weighted by the sums of their exponentials, so their mean is attention over
    all tokens (Dao et al. 2022). query: (1, H, n, size). keys, values: (1, K, T, size), the last n
    of them the queries' own. -> (1, H, n, size).
    """
    kernel, past = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        keys.shape[2] - query.shape[2],
    )
    before, sum_before = kernel(query, keys[:, :, :past], values[:, :, :past], 0.0, False)
    among, sum_among = kernel(query, keys[:, :, past:], values[:, :, past:], 0.0, True)
    share = torch.sigmoid(sum_among - sum_before)[..., None]
    return torch.lerp(before.to(share.dtype), among.to(share.dtype), share).to(query.dtype)


def find_attention(way: str, device: torch.device, dtype: torch.dtype, size: int) -> Attend | None:
    """Return the attention by a ``TreeMask``; None = SDPA, by an additive mask. size: of a head.
    Raises InputError.
    """
    require_attention(way, device.type, str(dtype).removeprefix("torch."), size)
    if way in OURS:
        # needs Triton, which may not be installed
        from specbench.models.fast.kernels.tree_attention import attend

        return attend
    return attend_flex if way == FLEX else None


def find_small_ops(way: str, device: torch.device, dtype: torch.dtype) -> type[SmallOps]:
    """Return the operations between a layer's products. Raises InputError."""
    require_attention(way, device.type, str(dtype).removeprefix("torch."))
    if way != FUSED:
        return SmallOps
    from specbench.models.fast.kernels.small_ops import FusedOps  # needs Triton, as above

    return FusedOps


def require_attention(way: str, device: str, dtype: str, size: int = 0) -> None:
    """Raise InputError if ``way`` does not support the device or dtype. size: of a head, if
    known.
    """
    if reason := explain_unusable(way, device, dtype, size):
        raise InputError(f"engine.attention={way}: {reason}")


def explain_unusable(way: str, device: str, dtype: str, size: int) -> str | None:
    """Explain why ``way`` does not support the device, the dtype or heads of this size, and the
    fix; None: it does.
    """
    if way not in WAYS:
        return f"expected one of {', '.join((AUTO, *WAYS))}"
    if way not in OURS:
        return None
    if find_spec("triton") is None:
        return "Triton is not installed; pip install 'specbench[triton]', or engine.attention=sdpa"
    if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            f"the kernel runs on a CUDA device, got {device}; expected engine.attention=sdpa or"
            " model.device=cuda"
        )
    if dtype not in DTYPES:
        return f"model.dtype is {dtype}; expected {', '.join(DTYPES)}, or engine.attention=sdpa"
    if size > LARGEST:
        return f"heads have {size} numbers; expected at most {LARGEST}, or engine.attention=sdpa"
    return None


def attend_flex(query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask) -> Tensor:
    """Attend as ``TreeMask`` describes by torch's FlexAttention; it reads every slot and serves as
    a comparison.
    """
    call = compile_flex() if query.is_cuda else _attend_flex
    return call(query, keys, values, mask.cached, mask.depths, mask.bits, mask.columns, mask.window)


@functools.cache
def compile_flex() -> Callable[..., Tensor]:
    """Compile FlexAttention; lengths are content of tensors, so each shape is compiled once."""
    return torch.compile(_attend_flex, dynamic=False)


def _attend_flex(
    query: Tensor, keys: Tensor, values: Tensor, cached: Tensor, depths: Tensor, bits: Tensor,
    columns: int | None, window: int | None,
) -> Tensor:  # fmt: skip
    batches, count = len(cached), len(query) // len(cached)
    width, depths, bits = (
        columns or count,
        depths.view(batches, count),
        bits.view(batches, count, -1),
    )

    def see(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        past = cached[batch]
        fed = (slot - past).clamp(0, width - 1)
        seen = (
            (slot >= past)
            & (slot < past + width)
            & ((bits[batch, row, fed // WORD] >> (fed % WORD)) & 1 == 1)
        )
        near = slot < past
        if window is not None:
            near = near & (past + depths[batch, row] - slot < window)
        return torch.where(seen | near, score, NEVER)

    rows = query.unflatten(0, (batches, count)).transpose(1, 2)
    mixed = flex_attention(rows, keys, values, score_mod=see, enable_gqa=True)
    assert isinstance(mixed, Tensor)
    return mixed.transpose(1, 2).flatten(0, 1)
