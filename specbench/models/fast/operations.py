"""A linear map's weights, laid out for the device: several matrices as one, and packed for short
inputs on a CPU.

Decoding multiplies matrices by 1 to some 100 rows. On a CPU the general routine pays for every row
of so short an input, where oneDNN with weights that were reordered once takes up to four rows for
the price of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

PACKED = (torch.float32, torch.bfloat16)
_ROWS = 8  # the length of input that the packed layout is chosen for
# of an input that is multiplied so: oneDNN keeps code of about 0.6 MB for each length and layer
_MOST_ROWS = 128


class Linear:
    """``x -> x W^T + b`` for (rows, in) inputs. weight: (out, in). packed: it once more, reordered,
    or None.
    """

    def __init__(self, layers: Sequence[Any], pack: bool) -> None:
        """layers: modules with ``weight`` and ``bias``, one below the other in the output.

        Several layers' parameters become views of one matrix: the model they belong to is
        unaffected, and no weight is stored twice except in the packed copy.
        """
        self.weight, self.bias = _join([layer.weight for layer in layers]), _bias(layers)
        self.packed = _pack(self.weight) if pack else None
        if len(layers) > 1:
            for layer, part in zip(
                layers, self.weight.split([len(layer.weight) for layer in layers]), strict=True
            ):
                layer.weight.data = part

    def __call__(self, rows: Any, into: Tensor | None = None) -> Tensor:
        """(rows, in) -> (rows, out). into: memory of the result, of its shape."""
        if into is not None:
            torch.mm(rows, self.weight.T, out=into)
            return into if self.bias is None else into.add_(self.bias)
        if self.packed is None or len(rows) > _MOST_ROWS:
            return functional.linear(rows, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch packs weights of ``dtype`` and computes correctly with them.

    The operation is the one that torch's own compiler uses; it has no public name, so it is tried,
    not assumed.
    """
    if device.type != "cpu" or dtype not in PACKED or not torch.backends.mkldnn.is_available():
        return False
    weight = torch.linspace(-1, 1, 24).reshape(6, 4).to(dtype)
    rows = torch.linspace(1, -2, 12).reshape(3, 4).to(dtype)
    try:
        ours = torch.ops.mkldnn._linear_pointwise(rows, _pack(weight), None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(ours, functional.linear(rows, weight), rtol=1e-2, atol=1e-2)


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)


def _join(parts: Sequence[Tensor]) -> Tensor:
    parts = [part.detach() for part in parts]
    if len(parts) == 1:
        return parts[0]
    first, joined = parts[0], sum(map(len, parts))
    places = [part.data_ptr() for part in parts]
    behind = all(
        there == here + part.nbytes
        for here, there, part in zip(places, places[1:], parts, strict=False)
    )
    shared = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    # joined before, by another engine
    if shared and behind and all(part.is_contiguous() for part in parts):
        return first.as_strided((joined, first.shape[1]), first.stride())
    return torch.cat(parts)


def _bias(layers: Sequence[Any]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    return torch.cat(
        [
            layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()
            for layer in layers
        ]
    )


# heads (n, H + 2K, size) of one layer, its slots (2K, slots, size), where the rows go (n,) ->
# queries (n, H, size)
Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]
Product = Callable[[Tensor], Tensor]  # (n, in) -> (n, out), summed over ranks, if any


class Norm:
    """Root mean square norm over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """weight: (D,)."""
        self.weight, self.epsilon, self.single = weight, epsilon, weight.float()
        size = len(weight)
        self._scaled = weight * size**0.5
        self._least = torch.tensor(
            (size * epsilon) ** 0.5, dtype=weight.dtype, device=weight.device
        )
        # As x / |x| it is four operations; the library's is one kernel on a GPU from torch 2.9 on,
        # and six on a CPU.
        self._by_length = weight.device.type == "cpu" and weight.dtype == torch.float32

    def __call__(self, rows: Tensor) -> Tensor:
        """Same shape. In double precision as the library has it: the mean in single."""
        if self._by_length:
            length = torch.hypot(torch.linalg.vector_norm(rows, dim=-1, keepdim=True), self._least)
            return rows * self._scaled / length
        if rows.dtype == torch.float64:
            return self.weight * functional.rms_norm(
                rows.float(), self.weight.shape, None, self.epsilon
            )
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class Unscaled:
    """Rows before a norm, which the next product computes.

    rows: (n, D). squares: (parts, 16) float32, sums over parts of each row; those beyond n are
    undefined.
    """

    rows: Tensor
    squares: Tensor
    norm: Norm

    def __len__(self) -> int:
        return len(self.rows)

    def scale(self) -> Tensor:
        """Compute the norm."""
        return self.norm(self.rows)


Normed = Tensor | Unscaled


class SmallOps:
    """Torch's own operations. Holds the rotary tables. linear: the class of the model's
    products.
    """

    linear: ClassVar[type[Linear]] = Linear

    def __init__(self, cos: Tensor, sin: Tensor, query_heads: int, key_heads: int) -> None:
        """cos, sin: (positions, size); the sine with the sign of the half that it is multiplied
        with.
        """
        self.cos, self.sin = cos, sin
        self.query_heads, self.key_heads = query_heads, key_heads
        self._one = torch.ones(1, key_heads, cos.shape[1], dtype=cos.dtype, device=cos.device)
        self._zero = torch.zeros_like(self._one)

    def add_norm(self, rows: Tensor, added: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """(n, D) each: the sum, and the sum after ``norm``."""
        rows = rows + added
        return rows, norm(rows)

    def add_product(
        self, rows: Tensor, product: Product, given: Tensor, norm: Norm
    ) -> tuple[Tensor, Normed]:
        """(n, D): ``rows`` plus the product of ``given``, and that after ``norm``."""
        return self.add_norm(rows, product(given), norm)

    def gate_product(self, gate_up: Linear, normed: Normed) -> Tensor:
        """(n, D) -> (n, I): ``gate`` of the product."""
        return self.gate(gate_up(normed))

    def gate(self, gate_up: Tensor) -> Tensor:
        """(n, 2I) -> (n, I): SiLU of the first half, times the second (Shazeer 2020)."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    def project(
        self, qkv: Linear, norms: tuple[Norm, Norm] | None, normed: Normed, rotate: Rotate,
        positions: Tensor, slots: Tensor, at: Tensor,
    ) -> Tensor:  # fmt: skip
        """(n, D) -> (n, H, size) queries; writes keys and values to their slots.

        norms: of the heads of q and k. rotate: of ``positions``. The rest: see ``Rotate``.
        """
        heads = qkv(normed).view(len(normed), -1, slots.shape[2])
        if norms is not None:
            query, key = heads[:, : self.query_heads], heads[:, self.query_heads : -self.key_heads]
            query.copy_(norms[0](query))
            key.copy_(norms[1](key))
        return rotate(heads, slots, at)

    def make_rotation(self, positions: Tensor) -> Rotate:
        """Make the function that rotates q and k at positions (n,) int64 (Su et al. 2021), and
        writes k and v.
        """
        turned, kept = self.query_heads + self.key_heads, self._one.expand(len(positions), -1, -1)
        cos = self.cos.index_select(0, positions)[:, None].expand(-1, turned, -1)
        sin = self.sin.index_select(0, positions)[:, None].expand(-1, turned, -1)
        cos, sin = (
            torch.cat([cos, kept], 1),
            torch.cat([sin, self._zero.expand(len(positions), -1, -1)], 1),
        )

        def rotate(heads: Tensor, slots: Tensor, at: Tensor) -> Tensor:
            heads = torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
            slots.index_copy_(1, at, heads[:, self.query_heads :].transpose(0, 1))
            return heads[:, : self.query_heads]

        return rotate
