"""Products of up to 16 rows with a matrix of weights in Triton, with the operations of a layer
around them.

A program takes one tile of the outputs and one split of the inputs; it reads its weights once, 16
bytes a lane, through a pipeline in shared memory. The rows are padded to 16, tile and splits depend
on the weights alone, and the program that arrives last adds the splits in their order: a row has
the same bits whichever rows are fed with it.

A norm needs the sum of squares of a row, of which a program computes only a tile: the product
before it leaves one sum for each tile, and the next product adds them before it begins (see
``Unscaled``). Two outputs that are combined, the gate and its other half or the two halves of a
rotated head, are neighbours in a tile, so that one lane has both.

Adding splits by the last program: the fix-up of Osama et al. 2023 (Stream-K). ``BROAD`` and
``NARROW`` are for 16-bit numbers on an H100; ``scripts/lab/kernels.py`` prints what the compiler
makes of them. At 3.3 TB/s and 1 us of latency 3.3 MB must be on their way. 16 rows are a quarter as
many bytes as a broad block's weights and half of a narrow one's, and come from the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from typing_extensions import override

from specbench.models.fast.kernels.tree_attention import count_processors, follow
from specbench.models.fast.operations import Linear, Normed, SmallOps, Unscaled

# the interpreter multiplies the bits of bfloat16
WIDE = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
ROWS = tl.constexpr(16)  # of a tile of the tensor cores
PLAIN, ADD, GATE, ROTATE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
# blocks that are fetched early; numbers of a line of the cache
AHEAD, LINE = tl.constexpr(2), tl.constexpr(64)
DTYPES = (torch.float16, torch.bfloat16)  # float32 takes no tensor cores
FEWEST = 4  # blocks of inputs in a split, which fill the pipeline
MOST_SPLITS = 16
OPTIONAL = (
    "squares",
    "scales",
    "kept",
    "left",
    "cos",
    "sin",
    "positions",
    "at",
    "slots",
    "partial",
    "arrivals",
)
NUMBERS = ("unit", "apart", "query_heads", "key_heads", "slot_stride")


@triton.jit
def turn(own, other, cos, sin, real, dtype: tl.constexpr):
    """Rotate halves of heads, rounded as torch's ``addcmul``; those that are not ``real`` stay."""
    turned = (own * tl.load(cos, mask=real, other=1.0).to(tl.float32)).to(dtype).to(tl.float32)
    return (turned + other * tl.load(sin, mask=real, other=0.0).to(tl.float32)).to(dtype)


@triton.jit
def take_turn(weights, start, size, DEPTH: tl.constexpr, EARLY: tl.constexpr):
    """Wait for the kernels before this one; until then fetch the first blocks of weights, which no
    kernel writes.

    weights: (WIDTH, 1) pointers to rows. start: of this split. EARLY: see ``follow``.
    """
    if EARLY:
        gdc_launch_dependents()
        place = tl.minimum(start + tl.arange(0, AHEAD * DEPTH // LINE) * LINE, size - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [weights + place[None, :]],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        gdc_wait()


@triton.jit(do_not_specialize=["count", "before", "query_heads", "key_heads"])
def product(
    rows, weight, bias, out, squares, scales, kept, left, cos, sin, positions, at, slots, partial,
    arrivals, epsilon, count, size, columns, row_stride, weight_stride, unit, apart, before,
    query_heads, key_heads, slot_stride, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    SPLITS: tl.constexpr, EVEN: tl.constexpr, AFTER: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, BEFORE: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One split of one tile: WIDTH rows of weights, or WIDTH / 2 pairs of rows that are ``apart``
    from each other.

    rows: (count, size), ``row_stride`` apart. weight: (units * unit, size), ``weight_stride``
    apart; a unit has ``columns`` rows or pairs: all, or those of a head. bias: (units * unit,).
    NORM: rows are normed: squares (before, 16) float32, sums over parts of a row; scales (size,).
    AFTER: PLAIN -> out (count, columns). ADD: plus ``kept``, of the shape of ``out``; left (tiles,
    16) float32, the squares of a tile. GATE -> (count, columns), SiLU of the first of a pair, times
    the second. ROTATE: ``rotate_write`` of ``small_ops``; out (count, query_heads, unit). partial:
    (tiles, SPLITS, 16, WIDTH) float32. arrivals: (tiles,) int32 zeros; zeros again afterwards.
    EVEN: DEPTH divides size. BEFORE: ``before`` rounded up to a power of two. EARLY: see
    ``follow``.
    """
    PAIRS: tl.constexpr = 2 if AFTER >= GATE else 1
    TAKEN: tl.constexpr = WIDTH // PAIRS
    tile, split = tl.program_id(0), tl.program_id(1)
    tiles = (columns + TAKEN - 1) // TAKEN  # of a unit
    head, first = tile // tiles, tile % tiles * TAKEN
    row, part, inner = tl.arange(0, ROWS), tl.arange(0, DEPTH), tl.arange(0, WIDTH)
    used = row < count
    # beyond the last one: that one again, never stored
    line = tl.minimum(first + inner // PAIRS, columns - 1)
    line = (head * unit + line + inner % PAIRS * apart).to(tl.int64) * weight_stride
    blocks = (size + DEPTH - 1) // DEPTH
    share = (blocks + SPLITS - 1) // SPLITS
    take_turn(weight + line[:, None], split * share * DEPTH, size, DEPTH, EARLY)
    rate = tl.full([ROWS], 1.0, tl.float32)
    if NORM:
        earlier = tl.arange(0, BEFORE)[:, None]
        each = tl.load(
            squares + earlier * ROWS + row[None, :],
            mask=(earlier < before) & used[None, :],
            other=0.0,
        )
        rate = tl.rsqrt(tl.sum(each, 0) / size + epsilon)
    total = tl.full([ROWS, WIDTH], 0.0, tl.float32)
    for block in tl.range(
        split * share, tl.minimum(split * share + share, blocks), num_stages=STAGES
    ):
        place = block * DEPTH + part
        cell, taken = (
            rows + row[:, None] * row_stride + place[None, :],
            weight + line[:, None] + place[None, :],
        )
        inside = EVEN | (place < size)
        fed = tl.load(cell, mask=used[:, None] & inside[None, :], other=0.0)
        weights = tl.load(taken, mask=inside[None, :], other=0.0)
        if NORM:
            scale = tl.load(scales + place, mask=inside, other=0.0)
            fed = (fed.to(tl.float32) * rate[:, None] * scale[None, :]).to(fed.dtype)
        if WIDE:
            fed, weights = fed.to(tl.float32), weights.to(tl.float32)
        total = tl.dot(fed, tl.trans(weights), total, input_precision="ieee")
    if SPLITS > 1:
        cells = partial + (tile * SPLITS * ROWS + row[:, None]) * WIDTH + inner[None, :]
        tl.store(cells + split * (ROWS * WIDTH), total, mask=used[:, None])
        tl.debug_barrier()  # every lane has stored before one of them counts
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(arrivals + tile, 0)
        total = tl.full([ROWS, WIDTH], 0.0, tl.float32)
        # past the first cache, which other multiprocessors do not write to
        for each in tl.static_range(SPLITS):
            total += tl.load(
                cells + each * (ROWS * WIDTH), mask=used[:, None], other=0.0, cache_modifier=".cg"
            )
    if BIAS:
        line = tl.minimum(first + inner // PAIRS, columns - 1)
        total += tl.load(bias + head * unit + line + inner % PAIRS * apart).to(tl.float32)[None, :]
    rounded = total.to(out.dtype.element_ty)
    column = (first + tl.arange(0, TAKEN))[None, :]
    real, cell = used[:, None] & (column < columns), row[:, None].to(tl.int64) * columns + column
    if AFTER == PLAIN:
        tl.store(out + cell, rounded, mask=real)
    elif AFTER == ADD:
        rounded = (
            rounded.to(tl.float32) + tl.load(kept + cell, mask=real, other=0.0).to(tl.float32)
        ).to(rounded.dtype)
        tl.store(out + cell, rounded, mask=real)
        wide = tl.where(real, rounded.to(tl.float32), 0.0)
        tl.store(left + tile * ROWS + row, tl.sum(wide * wide, 1), mask=used)
    elif AFTER == GATE:
        gate, up = tl.split(tl.reshape(rounded.to(tl.float32), (ROWS, TAKEN, 2)))
        opened = (gate / (1 + tl.exp(-gate))).to(rounded.dtype).to(tl.float32)
        tl.store(out + cell, (opened * up).to(rounded.dtype), mask=real)
    else:
        angle = tl.load(positions + row, mask=used, other=0)[:, None] * unit + column
        slot = tl.load(at + row, mask=used, other=0)[:, None] * unit + column
        to = tl.where(
            head < query_heads,
            out + (row[:, None] * query_heads + head) * unit + column,
            slots + (head - query_heads).to(tl.int64) * slot_stride + slot,
        )
        one, two = tl.split(tl.reshape(rounded.to(tl.float32), (ROWS, TAKEN, 2)))
        turns = real & (column < tl.where(head < query_heads + key_heads, columns, 0))
        tl.store(to, turn(one, two, cos + angle, sin + angle, turns, rounded.dtype), mask=real)
        angle += apart
        tl.store(
            to + apart, turn(two, one, cos + angle, sin + angle, turns, rounded.dtype), mask=real
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of weights of one program and the inputs that it multiplies at a time, and how it is
    compiled.
    """

    width: int
    depth: int
    stages: int
    warps: int = 4


BROAD, NARROW = Block(64, 128, 4), Block(32, 256, 5)


def choose_block(weight: Tensor, processors: int) -> tuple[Block, int]:
    """Choose the block and the splits for weights (outputs, inputs), about one program per
    multiprocessor or more.
    """
    outputs, inputs = weight.shape
    block = BROAD if outputs > BROAD.width * processors else NARROW
    tiles, most, splits = cdiv(outputs, block.width), cdiv(inputs, block.depth) // FEWEST, 1
    while 4 * tiles * splits < 3 * processors and 2 * splits <= min(MOST_SPLITS, most):
        splits *= 2
    return block, splits


class ShortLinear(Linear):
    """``Linear`` whose products of up to 16 rows in half precision are our kernel's, with what
    comes before and after.

    Its calls may not overlap: they share the counters of arrivals.
    """

    def __init__(self, layers: Sequence[Any], pack: bool) -> None:
        super().__init__(layers, pack)
        self.block, self.splits = choose_block(self.weight, count_processors(self.weight.device))
        self._arrivals = self.weight.new_zeros(len(self.weight), dtype=torch.int32)

    def takes(self, rows: Normed) -> bool:
        """Return whether ``rows`` are few enough, in half precision, and the weights of an output
        without gaps.
        """
        return (
            0 < len(rows) <= ROWS.value
            and self.weight.dtype in DTYPES
            and self.weight.stride(1) == 1
        )

    @override
    def __call__(self, rows: Normed, into: Tensor | None = None) -> Tensor:
        if not self.takes(rows):
            return super().__call__(rows.scale() if isinstance(rows, Unscaled) else rows, into)
        out = self.weight.new_empty(len(rows), len(self.weight)) if into is None else into
        return self._launch(rows, PLAIN, out, len(self.weight))

    def add(self, rows: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """(n, in), (n, out) -> (n, out) the product plus ``kept``, and the squares of its parts for
        ``Unscaled``.
        """
        left = kept.new_empty(
            cdiv(len(self.weight), self.block.width), ROWS.value, dtype=torch.float32
        )
        out = kept.new_empty(kept.shape)
        return (
            self._launch(rows, ADD, out, len(self.weight), kept=kept.contiguous(), left=left),
            left,
        )

    def gate(self, rows: Normed) -> Tensor:
        """(n, in) -> (n, out / 2): see ``SmallOps.gate``."""
        half = len(self.weight) // 2
        return self._launch(rows, GATE, self.weight.new_empty(len(rows), half), half, apart=half)

    def rotate(
        self, rows: Normed, ops: SmallOps, positions: Tensor, slots: Tensor, at: Tensor
    ) -> Tensor:
        """(n, in) -> (n, H, size): see ``SmallOps.project``."""
        size, heads = slots.shape[2], ops.query_heads
        out = self.weight.new_empty(len(rows), heads * size)
        self._launch(
            rows, ROTATE, out, size // 2, units=len(self.weight) // size, unit=size,
            apart=size // 2, cos=ops.cos, sin=ops.sin, positions=positions, at=at, slots=slots,
            query_heads=heads, key_heads=ops.key_heads, slot_stride=slots.stride(0),
        )  # fmt: skip
        return out.view(-1, heads, size)

    def _launch(
        self,
        given: Normed,
        after: tl.constexpr,
        out: Tensor,
        columns: int,
        units: int = 1,
        **others: Any,
    ) -> Tensor:
        """Run the kernel; returns ``out``. The rest: see ``product``."""
        values: dict[str, Any] = dict.fromkeys(OPTIONAL) | dict.fromkeys(NUMBERS, 0)
        values |= {"epsilon": 0.0, "before": 1, **others}
        if isinstance(given, Unscaled):
            rows, values["squares"], values["scales"] = given.rows, given.squares, given.norm.single
            values["before"], values["epsilon"] = len(given.squares), given.norm.epsilon
        else:
            rows = given if given.stride(1) == 1 else given.contiguous()
        (count, size), block, splits = rows.shape, self.block, self.splits
        tiles = units * cdiv(columns, block.width // (2 if after.value >= GATE.value else 1))
        if splits > 1:
            values["partial"] = rows.new_empty(
                tiles, splits, ROWS.value, block.width, dtype=torch.float32
            )
            values["arrivals"] = self._arrivals
        with torch.cuda.device_of(rows):
            product[tiles, splits](
                rows, self.weight, self.bias, out, count=count, size=size, columns=columns,
                row_stride=rows.stride(0), weight_stride=self.weight.stride(0), WIDTH=block.width,
                DEPTH=block.depth, SPLITS=splits, EVEN=size % block.depth == 0, AFTER=after.value,
                NORM=values["squares"] is not None, BIAS=self.bias is not None,
                BEFORE=next_power_of_2(values["before"]), STAGES=block.stages,
                num_warps=block.warps, num_stages=block.stages, **values, **follow(rows.device),
            )  # fmt: skip
        return out
