"""The small operations between a layer's products, as torch has them; ``kernels/fused.py`` has each as one kernel.

On a GPU an operation is a launch and a trip of the rows through memory: a layer has ten of these, fused it has four.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

# heads (n, H + 2K, size) of one layer, its slots (2K, slots, size), where the rows go (n,) -> queries (n, H, size)
Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]


class Norm:
    """Root mean square norm over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """weight: (D,)."""
        self.weight, self.epsilon = weight, epsilon
        size = len(weight)
        self._scaled = weight * size**0.5
        self._least = torch.tensor((size * epsilon) ** 0.5, dtype=weight.dtype, device=weight.device)
        # As x / |x| it is four operations; the library's is one kernel on a GPU from torch 2.9 on, and six on a CPU.
        self._by_length = weight.device.type == "cpu" and weight.dtype == torch.float32

    def __call__(self, rows: Tensor) -> Tensor:
        """Same shape. In double precision as the library has it: the mean in single."""
        if self._by_length:
            length = torch.hypot(torch.linalg.vector_norm(rows, dim=-1, keepdim=True), self._least)
            return rows * self._scaled / length
        if rows.dtype == torch.float64:
            return self.weight * functional.rms_norm(rows.float(), self.weight.shape, None, self.epsilon)
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


class SmallOps:
    """Torch's own operations. Holds the rotary tables."""

    def __init__(self, cos: Tensor, sin: Tensor, query_heads: int, key_heads: int) -> None:
        """cos, sin: (positions, size); the sine with the sign of the half that it is multiplied with."""
        self.cos, self.sin = cos, sin
        self.query_heads, self.key_heads = query_heads, key_heads
        self._one = torch.ones(1, key_heads, cos.shape[1], dtype=cos.dtype, device=cos.device)
        self._zero = torch.zeros_like(self._one)

    def add_norm(self, rows: Tensor, added: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """(n, D) each: the sum, and the sum after ``norm``."""
        rows = rows + added
        return rows, norm(rows)

    def gate(self, gate_up: Tensor) -> Tensor:
        """(n, 2I) -> (n, I): SiLU of the first half, times the second (Shazeer 2020)."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    def make_rotation(self, positions: Tensor) -> Rotate:
        """Of rows at positions (n,) int64, the same in all layers: turns q and k (Su et al. 2021), writes k and v."""
        turned, kept = self.query_heads + self.key_heads, self._one.expand(len(positions), -1, -1)
        cos = self.cos.index_select(0, positions)[:, None].expand(-1, turned, -1)
        sin = self.sin.index_select(0, positions)[:, None].expand(-1, turned, -1)
        cos, sin = torch.cat([cos, kept], 1), torch.cat([sin, self._zero.expand(len(positions), -1, -1)], 1)

        def rotate(heads: Tensor, slots: Tensor, at: Tensor) -> Tensor:
            heads = torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
            slots.index_copy_(1, at, heads[:, self.query_heads :].transpose(0, 1))
            return heads[:, : self.query_heads]

        return rotate
