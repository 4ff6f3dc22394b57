"""The check of the Triton kernels on drawn cases: each result next to the same computation in float64.

A random value in every column would hide one key among thousands in bfloat16. Here the value of a slot is zero in all
columns but one, slot modulo size, and positive there, so a column is the weighted mean of few keys. One key too many or
too few, or a split with a wrong weight, changes it by percents; rounding by at most one epsilon of the dtype. Slots
after the fed rows are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.models.fast.attention import TreeMask, pack_bits
from specbench.models.fast.kernels import products, small_ops, tree_attention
from specbench.models.fast.layout import lay_out
from specbench.models.fast.operations import Norm, SmallOps, Unscaled
from specbench.types import EMPTY, ROOT

LIMITS = {torch.float32: 64, torch.float16: 2, torch.bfloat16: 2}  # [epsilons of the dtype]
WEIGHTS = 8  # of an output in ``ProductsCase`` that are not zero
HEAVY = 8  # the value of the last slot of the context and of each fed row; others are 1 to 2


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Tree attention of requests with ``width`` rows each."""

    dtype: torch.dtype
    key_heads: int
    groups: int  # query heads per key head
    size: int  # of a head
    width: int
    pasts: tuple[int, ...]  # [tokens] of each request's context
    window: int | None = None
    splits: int | None = None  # None: those that ``attend`` chooses
    slots: int = 0  # of each request's memory, at least

    def measure(self, device: torch.device) -> float:
        """Return the largest relative error of a number, in units of the limit."""
        random = torch.Generator(device).manual_seed(1)
        options: Any = {"device": device, "generator": random}
        batches, heads, most = len(self.pasts), self.key_heads * self.groups, max(self.pasts) + self.width
        layouts = [_draw_tree(self.width, seed) for seed in range(batches)]
        fed = torch.randn(batches * self.width, heads + 2 * self.key_heads, self.size, **options).to(self.dtype)
        both = torch.full(
            (2, batches, self.key_heads, max(self.slots, most + 1), self.size), torch.nan,
            dtype=self.dtype, device=device,
        )  # fmt: skip
        code = torch.arange(most, device=device)[:, None] % self.size == torch.arange(self.size, device=device)
        for batch, past in enumerate(self.pasts):
            end = past + self.width
            both[0, batch, :, :end] = torch.randn(self.key_heads, end, self.size, **options).to(self.dtype)
            values = 1 + torch.rand(self.key_heads, end, 1, **options)
            values[:, max(past - 1, 0) :] = HEAVY
            both[1, batch, :, :end] = (values * code[:end]).to(self.dtype)
        query, (keys, values) = fed[:, :heads], both
        depths = np.stack([depths for _, depths in layouts])
        seen = np.stack([seen for seen, _ in layouts])
        if self.window is not None:
            seen &= depths[:, :, None] - depths[:, None, :] < self.window
        bits = torch.from_numpy(pack_bits(seen.reshape(-1, self.width))).to(device)
        mask = TreeMask(
            tree_attention.attend, torch.tensor(self.pasts, device=device),
            torch.from_numpy(depths).flatten().to(device), bits, self.window,
        )  # fmt: skip
        if self.splits is None:
            got = tree_attention.attend(query, keys, values, mask)
        else:
            tile = tree_attention.choose_tile(self.width * self.groups, self.dtype == torch.float32)
            with torch.cuda.device_of(query):
                got = tree_attention.launch(query, keys, values, mask, tile, self.splits)
        each = zip(
            query.split(self.width), keys, values, self.pasts, torch.from_numpy(seen).to(device),
            mask.depths.split(self.width), strict=True,
        )  # fmt: skip
        want = torch.cat([self._compute(*request) for request in each])
        return _compare(got, want, want)

    def _compute(self, rows: Tensor, keys: Tensor, values: Tensor, past: int, seen: Tensor, depths: Tensor) -> Tensor:
        """(width, H, size) float64 of one request. rows: (width, H, size). keys, values: (K, slots, size)."""
        keys, values = (each[:, : past + self.width].double() for each in (keys, values))
        query = rows.double().unflatten(1, (self.key_heads, self.groups)).permute(1, 2, 0, 3)
        scores = query @ keys[:, None].mT * self.size**-0.5
        near = torch.ones(self.width, past, dtype=torch.bool, device=rows.device)
        if self.window is not None:
            near = past + depths[:, None] - torch.arange(past, device=rows.device) < self.window
        scores = scores.masked_fill(~torch.cat([near, seen], 1), float("-inf"))
        return (scores.softmax(-1) @ values[:, None]).permute(2, 0, 1, 3).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class RowsCase:
    """The small operations of a layer on ``count`` rows."""

    dtype: torch.dtype
    key_heads: int
    groups: int
    size: int
    count: int
    hidden: int
    inner: int  # numbers of a row that are gated

    def measure(self, device: torch.device) -> float:
        """Return the largest relative error of a number, in units of the limit."""
        random = torch.Generator(device).manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, generator=random).to(self.dtype)

        heads, places = self.key_heads * self.groups, self.count + 3
        cos, sin = draw(places, self.size), draw(places, self.size)
        fused = small_ops.FusedOps(cos, sin, heads, self.key_heads)
        exact = SmallOps(cos.double(), sin.double(), heads, self.key_heads)
        bound = SmallOps(cos.double().abs(), sin.double().abs(), heads, self.key_heads)
        rows, added, weight = draw(self.count, self.hidden), draw(self.count, self.hidden), draw(self.hidden)
        got = [*fused.add_norm(rows, added, Norm(weight, 1e-5))]
        want = [*exact.add_norm(rows.double(), added.double(), Norm(weight.double(), 1e-5))]
        gate_up = draw(self.count, 2 * self.inner)
        got.append(fused.gate(gate_up))
        want.append(exact.gate(gate_up.double()))
        sizes = [each.abs() for each in want]
        turned = draw(self.count, heads + 2 * self.key_heads, self.size)
        positions, at = (torch.randperm(places, device=device, generator=random)[: self.count] for _ in range(2))
        wide = turned.double()
        for ops, given, found in ((fused, turned, got), (exact, wide, want), (bound, wide.abs(), sizes)):
            slots = torch.ones(2 * self.key_heads, places, self.size, dtype=given.dtype, device=device)
            found.extend((ops.make_rotation(positions)(given, slots, at), slots))
        return max(map(_compare, got, want, sizes))


@dataclass(frozen=True, slots=True)
class ProductsCase:
    """The products of a layer with what comes before and after them, on ``count`` rows that our kernel takes.

    An output has ``WEIGHTS`` weights, and all numbers are positive, so that none hides behind the others.
    """

    dtype: torch.dtype
    key_heads: int
    groups: int
    size: int
    count: int
    hidden: int
    inner: int

    def measure(self, device: torch.device) -> float:
        """Return the largest relative error of a number, in units of the limit."""
        random = torch.Generator(device).manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return (0.5 + 0.5 * torch.rand(*shape, device=device, generator=random)).to(self.dtype)

        def make(outputs: int, inputs: int) -> products.ShortLinear:
            weight = torch.zeros(outputs, inputs, dtype=self.dtype, device=device)
            places = torch.randint(inputs, (outputs, WEIGHTS), device=device, generator=random)
            weight.scatter_(1, places, draw(*places.shape))
            return products.ShortLinear([SimpleNamespace(weight=weight, bias=None)], False)

        def multiply(given: Tensor, by: products.ShortLinear) -> Tensor:
            return given @ by.weight.double().T

        heads = self.key_heads * self.groups
        down, gate_up = make(self.hidden, self.inner), make(2 * self.inner, self.hidden)
        project = make((heads + 2 * self.key_heads) * self.size, self.hidden)
        rows, kept, scales = draw(self.count, self.inner), draw(self.count, self.hidden), draw(self.hidden)
        added, squares = down.add(rows, kept)
        want = multiply(rows.double(), down) + kept.double()
        sums = added.double().square().sum(1)
        errors = [_compare(added, want, want), _compare(squares.sum(0)[: self.count], sums, sums)]
        fed, normed = Unscaled(added, squares, Norm(scales, 1e-5)), Norm(scales.double(), 1e-5)(added.double())
        want = multiply(normed, project)
        errors.append(_compare(project(fed), want, want))
        cos, sin = draw(self.count, self.size), -draw(self.count, self.size)
        positions = torch.randperm(self.count, device=device, generator=random)
        slots = torch.ones(2 * self.key_heads, self.count, self.size, dtype=self.dtype, device=device)
        ops = SmallOps(cos, sin, heads, self.key_heads)
        gated = ops.gate(multiply(normed, gate_up))
        errors.append(_compare(gate_up.gate(fed), gated, gated) / 2)  # rounds twice as often
        got = [project.rotate(fed, ops, positions, slots, positions), slots]
        wants = []
        for sign in (1, -1):  # -1: with tables that are positive, the sizes of what is summed
            exact, to = SmallOps(cos.double(), sign * sin.double(), heads, self.key_heads), slots.double()
            wants.append([exact.make_rotation(positions)(want.unflatten(1, (-1, self.size)), to, positions), to])
        return max(*errors, *map(_compare, got, *wants))


Case = AttentionCase | RowsCase | ProductsCase


def find_fault(cases: Iterable[Case], device: torch.device) -> str | None:
    """Return the first case whose error is beyond the limit, with the error; None if there is none."""
    for case in cases:
        if not (error := case.measure(device)) <= 1:
            return f"{case}: the error is {error:.3g} times the limit"
    return None


def list_wide(longest: int = 2048, dtypes: Iterable[torch.dtype] = tuple(LIMITS)) -> Iterator[Case]:
    """List cases with every pair of values of GQA groups, splits, rows and head size, each with and without a window.

    Each has a request at every border of a block and one to each side, up to about ``longest`` [tokens]. Nine cases
    are an orthogonal array of the four axes (Taguchi's L9), so each compilation serves six pairs. bfloat16 is wrong in
    Triton's interpreter (3.6 to 3.9).
    """
    borders = [border for border in (0, 32, 64, 96, 128, 256, 512, 1024, 2048, 8192) if border <= longest]
    pasts = tuple(sorted({max(0, border + side) for border in borders for side in (-1, 0, 1)}))
    sizes, counts, dtypes = (128, 64, 80), (1, 2, tree_attention.MOST_SPLITS), tuple(dtypes)
    for dtype, (window, widths) in product(dtypes, ((None, (1, 8, 65)), (40, (2, 20, 33)))):
        for place, groups in enumerate((1, 4, 8)):
            for other, splits in enumerate(counts):
                width, size = widths[(place + other) % 3], sizes[(place + 2 * other) % 3]
                yield AttentionCase(dtype, 2, groups, size, width, pasts, window, splits)
    for dtype, count, (size, hidden, inner) in product(dtypes, (1, 65), ((128, 4096, 11008), (80, 2560, 6912))):
        yield RowsCase(dtype, 2, 4, size, count, hidden, inner)
    shapes = ((128, 4096, 11008), (80, 2560, 6912), (64, 896, 4864))  # without splits, and with 4
    for dtype, count, (size, hidden, inner) in product(dtypes, (1, 16), shapes):
        if dtype in products.DTYPES:
            yield ProductsCase(dtype, 2, 4, size, count, hidden, inner)


def list_few(
    dtype: torch.dtype, key_heads: int, groups: int, size: int, windows: Iterable[int | None], widths: Sequence[int],
    hidden: int, inner: int, slots: int,
) -> Iterator[Case]:  # fmt: skip
    """List cases of one model's shapes, which its engine is about to compile. slots: of its cache."""
    for window, width in product(dict.fromkeys(windows), widths):
        for past in (0, 31, 32, 65, min(2048, slots - width - 1)):
            yield AttentionCase(dtype, key_heads, groups, size, width, (past,), window, None, slots)
    for width in widths:
        yield RowsCase(dtype, key_heads, groups, size, width, hidden, inner)
        if width <= products.ROWS.value and dtype in products.DTYPES:
            yield ProductsCase(dtype, key_heads, groups, size, width, hidden, inner)


def _draw_tree(width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(width, width) bool of what each row sees, and (width,) depths; half of the nodes continue a chain."""
    random = np.random.default_rng(seed)
    parents = [node - 1 if random.random() < 0.5 else int(random.integers(ROOT, node)) for node in range(width - 1)]
    layout = lay_out(parents, EMPTY, None)
    return layout.seen(), layout.depths


def _compare(got: Tensor, want: Tensor, sizes: Tensor) -> float:
    """Return the largest error over the size, in units of the limit; NaN if a number is. sizes: of what was summed."""
    if got.shape != want.shape:
        return float("inf")
    kind = torch.finfo(got.dtype)
    return float(((got.double() - want).abs() / (sizes + kind.tiny)).max()) / (LIMITS[got.dtype] * kind.eps)
