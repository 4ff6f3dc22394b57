"""The small operations of a layer by the kernels of ``row_kernels``: one launch each."""

from __future__ import annotations

from torch import Tensor
from triton import cdiv, next_power_of_2

from specbench.target.fast.kernels.row_kernels import add_norm, gate_product, rotate_write
from specbench.target.fast.kernels.tiles import BLOCK, HEADS, choose_warps
from specbench.target.fast.small_ops import Norm, Rotate, SmallOps


class FusedOps(SmallOps):
    """The same three, where rows lie without gaps."""

    def add_norm(self, rows: Tensor, added: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """See ``SmallOps``."""
        summed, normed, size = rows.new_empty(rows.shape), rows.new_empty(rows.shape), rows.shape[1]
        block = next_power_of_2(size)
        add_norm[(len(rows),)](
            rows.contiguous(),
            added.contiguous(),
            norm.weight,
            summed,
            normed,
            size,
            norm.epsilon,
            block,
            num_warps=choose_warps(block),
        )
        return summed, normed

    def gate(self, gate_up: Tensor) -> Tensor:
        """See ``SmallOps``."""
        count, size = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(count, size)
        gate_product[(count, cdiv(size, BLOCK))](gate_up.contiguous(), out, size, BLOCK)
        return out

    def make_rotation(self, positions: Tensor) -> Rotate:
        """See ``SmallOps``."""

        def rotate(heads: Tensor, slots: Tensor, at: Tensor) -> Tensor:
            count, all_heads, size = heads.shape
            queries = heads.new_empty(count, self.query_heads, size)
            rotate_write[(count, cdiv(all_heads, HEADS))](
                heads.contiguous(), self.cos, self.sin, positions, at, queries, slots,
                self.query_heads, self.key_heads, slots.stride(0),
                SIZE=size, PADDED=next_power_of_2(size), HEADS=HEADS,
            )  # fmt: skip
            return queries

        return rotate
