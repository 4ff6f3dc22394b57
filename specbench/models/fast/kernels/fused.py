"""The small operations of a layer by the kernels of ``row_kernels``: one launch each."""

from __future__ import annotations

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from specbench.models.fast.kernels.row_kernels import add_norm, gate_product, rotate_write
from specbench.models.fast.kernels.tiles import BLOCK, HEADS, choose_warps
from specbench.models.fast.operations import Norm, Rotate, SmallOps


class FusedOps(SmallOps):
    """The same three. Triton launches on the current device, so each names the tensors'; on a CPU that is nothing."""

    def add_norm(self, rows: Tensor, added: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """See ``SmallOps``."""
        summed, normed, size = rows.new_empty(rows.shape), rows.new_empty(rows.shape), rows.shape[1]
        block = next_power_of_2(size)
        with torch.cuda.device_of(rows):
            add_norm[(len(rows),)](
                rows.contiguous(), added.contiguous(), norm.weight, summed, normed, size, norm.epsilon,
                BLOCK=block, num_warps=choose_warps(block),
            )  # fmt: skip
        return summed, normed

    def gate(self, gate_up: Tensor) -> Tensor:
        """See ``SmallOps``."""
        count, size = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(count, size)
        with torch.cuda.device_of(out):
            gate_product[(count, cdiv(size, BLOCK))](gate_up.contiguous(), out, size, BLOCK)
        return out

    def make_rotation(self, positions: Tensor) -> Rotate:
        """See ``SmallOps``."""

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
