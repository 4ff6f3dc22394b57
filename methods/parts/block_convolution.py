"""Convolutions over the rows of a block, before and after a sublayer, with taps that the sublayer's
input adjusts.

DFlash 2 (z-lab, 2026, github.com/z-lab/dflash, dflash/model.py): row t becomes the sum over j of
k_tj x_{t-j}, where x_{t-j} is 0 before the block. The coefficient k_tj of a channel is a learned
one plus one that a projection of the sublayer's input in row t gives to a group of neighbouring
channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from methods.parts.head_file import TensorShape

BASE, PROJECTION = "base_kernel", "kernel_projection.weight"
SUBLAYERS = ("attention_conv", "mlp_conv")
BEFORE, AFTER = range(2)  # the sublayer


def convolution_shapes(prefix: str, hidden: int, taps: int, group: int) -> dict[str, TensorShape]:
    """Names and shapes of a layer's convolutions. group: channels that share an adjustment, a
    divisor of ``hidden``.
    """
    shapes: dict[str, TensorShape] = {}
    for name in SUBLAYERS:
        shapes[f"{prefix}{name}.{BASE}"] = (2, taps, hidden)
        shapes[f"{prefix}{name}.{PROJECTION}"] = (2 * taps * (hidden // group), hidden)
    return shapes


class BlockConvolution:
    """The two convolutions of one sublayer."""

    def __init__(self, base: Tensor, projection: Tensor) -> None:
        """base: (2, taps, D). projection: (2 * taps * groups, D)."""
        self.base, self.projection = base, projection

    @classmethod
    def around(cls, state: Mapping[str, Tensor], prefix: str) -> list[BlockConvolution]:
        """Those around a layer's attention and its MLP, or an empty list if the layer has none."""
        names = [f"{prefix}{name}." for name in SUBLAYERS if f"{prefix}{name}.{BASE}" in state]
        return [cls(state[name + BASE], state[name + PROJECTION]) for name in names]

    def over(self, counts: Sequence[int]) -> Convolved:
        """One forward. counts: rows of each block, in the order in which they are joined."""
        return Convolved(self, counts)


@dataclass(slots=True)
class Convolved:
    """One forward of a sublayer. kernel: (rows, 2, taps, groups), set by ``enter``."""

    owner: BlockConvolution
    counts: Sequence[int]
    kernel: Tensor | None = None

    def enter(self, inputs: Tensor) -> Tensor:
        """(rows, D) what the sublayer reads instead of ``inputs``."""
        taps = self.owner.base.shape[1]
        self.kernel = functional.linear(inputs, self.owner.projection).view(
            len(inputs), 2, taps, -1
        )
        return self._convolve(inputs, BEFORE)

    def leave(self, outputs: Tensor) -> Tensor:
        """(rows, D) what is added to the residual instead of ``outputs``."""
        return self._convolve(outputs, AFTER)

    def _convolve(self, rows: Tensor, side: int) -> Tensor:
        assert self.kernel is not None
        base, adjusted = self.owner.base[side], self.kernel[:, side]
        grouped = rows.view(len(rows), adjusted.shape[-1], -1)
        coefficients = base.view(len(base), *grouped.shape[1:]) + adjusted[..., None]
        mixed = coefficients[:, 0] * grouped
        for tap in range(1, len(base)):
            earlier = [functional.pad(part[:-tap], (0, 0, 0, 0, min(tap, len(part)), 0))
                       for part in grouped.split(list(self.counts))]  # fmt: skip
            mixed = mixed + coefficients[:, tap] * torch.cat(earlier)
        return mixed.reshape(rows.shape)
