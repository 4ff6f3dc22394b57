"""The small operations of a layer as Triton kernels, one launch each, rounded where torch's own
operations round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2
from typing_extensions import override

from specbench.models.fast.kernels.products import ShortLinear
from specbench.models.fast.operations import (
    Linear,
    Norm,
    Normed,
    Product,
    Rotate,
    SmallOps,
    Unscaled,
)

BLOCK, HEADS = 1024, 8  # numbers of a row that one program gates, and heads that one rotates


@triton.jit
def add_norm(rows, added, weight, summed, normed, size, epsilon, BLOCK: tl.constexpr):
    """A program a row: the sum, and the sum over its root mean square, times the weight."""
    column = tl.arange(0, BLOCK)
    real, cell = column < size, tl.program_id(0) * size + column
    total = tl.load(rows + cell, mask=real, other=0.0).to(tl.float32)
    total += tl.load(added + cell, mask=real, other=0.0).to(tl.float32)
    kept = total.to(summed.dtype.element_ty)
    tl.store(summed + cell, kept, mask=real)
    total = kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / size + epsilon)
    total = total * scale * tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    tl.store(normed + cell, total.to(normed.dtype.element_ty), mask=real)


@triton.jit
def gate_product(gate_up, out, size, BLOCK: tl.constexpr):
    """SiLU of the first ``size`` numbers of a row, times the others."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real, start = column < size, gate_up + row.to(tl.int64) * 2 * size
    gate = tl.load(start + column, mask=real, other=0.0)
    up = tl.load(start + size + column, mask=real, other=0.0).to(tl.float32)
    opened = gate.to(tl.float32)
    opened = (opened / (1 + tl.exp(-opened))).to(gate.dtype).to(tl.float32)
    tl.store(out + row.to(tl.int64) * size + column, (opened * up).to(gate.dtype), mask=real)


@triton.jit
def rotate_write(
    heads, cos, sin, positions, at, queries, slots, query_heads, key_heads, slot_stride,
    SIZE: tl.constexpr, PADDED: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """HEADS heads of a row: q and k rotated, v unchanged; q to ``queries`` (n, H, SIZE), k and v to
    their slot.

    cos, sin: (positions, SIZE). at: (n,) the rows' slots. slots: (2K, slots, SIZE), a head's
    ``slot_stride`` apart.
    """
    row, head = tl.program_id(0), (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    part = tl.arange(0, PADDED)[None, :]
    count = query_heads + 2 * key_heads
    real = (head < count) & (part < SIZE)
    start = heads + (row * count + head) * SIZE
    own = tl.load(start + part, mask=real, other=0.0)
    other = tl.load(start + (part + SIZE // 2) % SIZE, mask=real, other=0.0).to(tl.float32)
    angle = tl.load(positions + row) * SIZE + part
    turn = tl.load(cos + angle, mask=part < SIZE, other=0.0).to(tl.float32)
    turned = (own.to(tl.float32) * turn).to(own.dtype).to(tl.float32)
    turned += other * tl.load(sin + angle, mask=part < SIZE, other=0.0).to(tl.float32)
    found = tl.where(head < query_heads + key_heads, turned.to(own.dtype), own)
    tl.store(
        queries + (row * query_heads + head) * SIZE + part, found, mask=real & (head < query_heads)
    )
    place = (head - query_heads).to(tl.int64) * slot_stride + tl.load(at + row) * SIZE + part
    tl.store(slots + place, found, mask=real & (head >= query_heads))


def choose_warps(block: int) -> int:
    """Choose the warps of a program for a row of ``block`` numbers: about 8 numbers per lane."""
    return min(16, max(4, block // 256))


class FusedOps(SmallOps):
    """``SmallOps`` in Triton, which launches on the current device: so each call selects the
    tensors' device.
    """

    linear = ShortLinear

    @override
    def add_norm(self, rows: Tensor, added: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        summed, normed, size = rows.new_empty(rows.shape), rows.new_empty(rows.shape), rows.shape[1]
        block = next_power_of_2(size)
        with torch.cuda.device_of(rows):
            add_norm[(len(rows),)](
                rows.contiguous(), added.contiguous(), norm.weight, summed, normed, size,
                norm.epsilon, BLOCK=block, num_warps=choose_warps(block),
            )  # fmt: skip
        return summed, normed

    @override
    def gate(self, gate_up: Tensor) -> Tensor:
        count, size = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(count, size)
        with torch.cuda.device_of(out):
            gate_product[(count, cdiv(size, BLOCK))](gate_up.contiguous(), out, size, BLOCK)
        return out

    @override
    def add_product(
        self, rows: Tensor, product: Product, given: Tensor, norm: Norm
    ) -> tuple[Tensor, Normed]:
        if not (isinstance(product, ShortLinear) and product.takes(given)):
            return super().add_product(rows, product, given, norm)
        summed, squares = product.add(given, rows)
        return summed, Unscaled(summed, squares, norm)

    @override
    def gate_product(self, gate_up: Linear, normed: Normed) -> Tensor:
        if isinstance(gate_up, ShortLinear) and gate_up.takes(normed):
            return gate_up.gate(normed)
        return super().gate_product(gate_up, normed)

    @override
    def project(
        self, qkv: Linear, norms: tuple[Norm, Norm] | None, normed: Normed, rotate: Rotate,
        positions: Tensor, slots: Tensor, at: Tensor,
    ) -> Tensor:  # fmt: skip
        if norms is None and isinstance(qkv, ShortLinear) and qkv.takes(normed):
            return qkv.rotate(normed, self, positions, slots, at)
        return super().project(qkv, norms, normed, rotate, positions, slots, at)

    @override
    def make_rotation(self, positions: Tensor) -> Rotate:

        def rotate(heads: Tensor, slots: Tensor, at: Tensor) -> Tensor:
            count, all_heads, size = heads.shape
            queries = heads.new_empty(count, self.query_heads, size)
            with torch.cuda.device_of(queries):
                rotate_write[(count, cdiv(all_heads, HEADS))](
                    heads.contiguous(), self.cos, self.sin, positions, at, queries, slots,
                    self.query_heads, self.key_heads, slots.stride(0),
                    SIZE=size, PADDED=next_power_of_2(size), HEADS=HEADS,
                )  # fmt: skip
            return queries

        return rotate
