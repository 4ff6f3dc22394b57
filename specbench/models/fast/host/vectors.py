"""Vector operations in LLVM's own terms, for functions that numba compiles.

A sum over a row is one chain of fused multiply-adds in ``LANES`` partial sums, which are then added
in a fixed order. So a row's result has the same bits whichever other rows are computed with it.
numba would choose another order for each number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

from specbench.models.compiled_code import njit

intrinsic: Any = extending.intrinsic
# that numba compiles for
FEATURES = cpu_target.target_context.codegen().magic_tuple()[-1].split(",")
LANES = 16 if "+avx512f" in FEATURES else 8  # partial sums of a row
# an instruction multiplies bfloat16 two at a time
PAIRED = LANES == 16 and "+avx512bf16" in FEATURES
if PAIRED:
    llvm.initialize_native_asmparser()  # which numba needs for an instruction that is given by name
WORD, HALF_WORD, SINGLE = ir.IntType(32), ir.IntType(16), ir.FloatType()
VECTOR = ir.VectorType(SINGLE, LANES)
ITEM = 4  # [bytes] of a number in single precision
BFLOAT16 = types.int16  # the storage of a bfloat16: its bits
LOG2_E, LN2_HIGH, LN2_LOW = (
    np.float32(1.44269504),
    np.float32(0.693359375),
    np.float32(-2.12194440e-4),
)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(each)) for each in range(2, 8))
ONE, LEAST, MOST = np.float32(1), np.float32(-87), np.float32(88)
STORED = {types.float32: SINGLE, BFLOAT16: HALF_WORD}


def _stored(like: Any) -> Any:
    """The type of numba that an array's numbers are stored in."""
    if like.dtype not in STORED:
        raise TypingError(f"stored numbers are float32, or bfloat16 as int16, got {like.dtype}")
    return like.dtype


def _widen(builder: Any, bits: Any) -> Any:
    """bfloat16 bits, or a vector of them, to single precision."""
    vector = isinstance(bits.type, ir.VectorType)
    whole = builder.zext(bits, ir.VectorType(WORD, LANES) if vector else WORD)
    up = whole.type([16] * LANES) if vector else WORD(16)
    return builder.bitcast(builder.shl(whole, up), VECTOR if vector else SINGLE)


class _Rows:
    """Vectors of rows at an address."""

    def __init__(self, builder: Any, address: Any, step: Any, stored: Any) -> None:
        """step: [elements] from a row to the next."""
        self.builder, self.address, self.stored = builder, address, stored
        self.size = 4 if stored == types.float32 else 2
        self.step = builder.mul(step, step.type(self.size))

    def load(self, row: int, place: Any, ahead: Any = None, pairs: bool = False) -> Any:
        """The vector at element ``place`` of a row, in single precision; or as words of two
        bfloat16 numbers.

        ahead: [elements] to an address that is prefetched.
        """
        builder = self.builder
        at = builder.add(self.address, builder.mul(self.step, self.step.type(row)))
        at = builder.add(at, builder.mul(place, place.type(self.size)))
        if ahead is not None:
            _prefetch(builder, builder.add(at, builder.mul(ahead, ahead.type(self.size))))
        vector = ir.VectorType(WORD if pairs else STORED[self.stored], LANES)
        loaded = builder.load(builder.inttoptr(at, vector.as_pointer()))
        loaded.align = self.size
        return _widen(builder, loaded) if self.stored == BFLOAT16 and not pairs else loaded


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for a line of memory, to the second level of caches: the first has fewer requests in
    flight.
    """
    pointer, second_level = ir.IntType(8).as_pointer(), 2
    kind = ir.FunctionType(ir.VoidType(), [pointer, WORD, WORD, WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(
        function, [builder.inttoptr(address, pointer), WORD(0), WORD(second_level), WORD(1)]
    )


def _multiply_add(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """Left * right + total, rounded once."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [left, right, total])


def _multiply_pairs(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """Total + the products of two bfloat16 numbers in each word of left and right."""
    kind = ir.FunctionType(VECTOR, [left.type, left.type, VECTOR])
    return builder.asm(
        kind, "vdpbf16ps $2, $1, $0", "=v,v,v,0", [left, right, total], side_effect=False
    )


def _splat(builder: Any, value: Any) -> Any:
    lane = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), value, WORD(0))
    return builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(WORD, LANES), [0] * LANES))


def _add_lanes(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sums of the lanes of 1, 2 or 4 vectors, as one vector; of each the upper half is added
    onto the lower one.

    Vectors share operations, and the order of a sum does not depend on how many do.
    """
    length = LANES  # lanes of one sum
    while length > 1:
        half, pairs = length // 2, len(vectors) > 1
        lanes = vectors[0].type.count * (2 if pairs else 1)
        low = [start + lane for start in range(0, lanes, length) for lane in range(half)]
        places = [
            ir.Constant(ir.VectorType(WORD, len(low)), [each + up for each in low])
            for up in (0, half)
        ]
        chosen = (
            zip(vectors[::2], vectors[1::2], strict=True) if pairs else [(vectors[0], vectors[0])]
        )
        vectors = [
            builder.fadd(*(builder.shuffle_vector(*two, place) for place in places))
            for two in chosen
        ]
        length = half
    return vectors[0]


def _store(builder: Any, address: Any, place: Any, value: Any) -> None:
    at = builder.add(address, builder.mul(place, place.type(ITEM)))
    builder.store(value, builder.inttoptr(at, value.type.as_pointer())).align = ITEM


def _accumulate(
    builder: Any, weights: _Rows, vectors: _Rows, span: Any, ahead: Any, sums: Sequence[Any]
) -> None:
    """Add the products of ``span`` numbers, whole vectors, to the sums of each row of weights with
    each vector.
    """
    pairs = weights.stored == vectors.stored == BFLOAT16
    step, multiply = (2 * LANES, _multiply_pairs) if pairs else (LANES, _multiply_add)
    wide = len(sums[0])
    with cgutils.for_range_slice(builder, span.type(0), span, span.type(step), span.type) as (
        place,
        _,
    ):
        kept = [vectors.load(column, place, None, pairs) for column in range(wide)]
        for row, totals in enumerate(sums):
            weight = weights.load(row, place, ahead, pairs)
            for total, vector in zip(totals, kept, strict=True):
                builder.store(multiply(builder, weight, vector, builder.load(total)), total)


@intrinsic(prefer_literal=True)
def dot_tile(
    typing, rows, columns, fetches, weight, apart, inputs, size, ahead, out, out_step, like, given
):
    """out[c, r] = weight[r] . inputs[c], rows of ``size`` numbers, whole vectors, for ``columns`` c
    and ``rows`` r.

    rows, columns: literal counts. fetches: literal, 1 to fetch weights that lie ``ahead``
    [elements]. weight, inputs, out: addresses. apart: from one r to the next. out_step: [elements]
    between rows of ``out``. like, given: arrays of the types that weights and inputs are stored in;
    out is single.
    """
    high, wide, fetched = (each.literal_value for each in (rows, columns, fetches))
    stored, entered = _stored(like), _stored(given)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, apart, given, size, ahead, out, out_step = args[3:10]
        sums = [
            [
                cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES))
                for _ in range(wide)
            ]
            for _ in range(high)
        ]
        weights = _Rows(builder, address, builder.mul(size, apart), stored)
        vectors = _Rows(builder, given, size, entered)
        _accumulate(builder, weights, vectors, size, ahead if fetched else None, sums)
        for column in range(wide):
            found = _add_lanes(builder, [builder.load(each[column]) for each in sums])
            for row in range(high):
                place = builder.add(
                    builder.mul(out_step, out_step.type(column)),
                    builder.mul(apart, apart.type(row)),
                )
                _store(builder, out, place, builder.extract_element(found, WORD(row)))
        return context.get_dummy_value()

    return types.void(rows, columns, fetches, *[types.intp] * 7, like, given), generate


@intrinsic(prefer_literal=True)
def dot_slice(
    typing, rows, columns, sums_step, weight, size, inputs, step, span, ahead, sums, like, given
):
    """sums[r, c] += the products of ``span`` numbers of weight[r] and inputs[c], for a later
    ``add_sums``.

    rows, columns: literal counts. sums_step: literal, how many vectors each r has.
    weight, inputs, sums: addresses of rows that are ``size`` and ``step`` [elements] apart, and of
    vectors. ahead: [elements] to the weights that are fetched ahead. like, given: see ``dot_tile``.
    """
    high, wide, apart = (each.literal_value for each in (rows, columns, sums_step))
    stored, entered = _stored(like), _stored(given)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, size, given, step, span, ahead, place = args[3:10]
        kept, none = _Rows(builder, place, size.type(LANES), types.float32), size.type(0)
        sums = [
            [
                cgutils.alloca_once_value(builder, kept.load(row * apart + column, none))
                for column in range(wide)
            ]
            for row in range(high)
        ]
        weights, vectors = (
            _Rows(builder, address, size, stored),
            _Rows(builder, given, step, entered),
        )
        _accumulate(builder, weights, vectors, span, ahead, sums)
        for row, totals in enumerate(sums):
            for column, total in enumerate(totals):
                _store(
                    builder, place, size.type((row * apart + column) * LANES), builder.load(total)
                )
        return context.get_dummy_value()

    return types.void(rows, columns, sums_step, *[types.intp] * 7, like, given), generate


@intrinsic
def add_sums(typing, sums, step, out):
    """out[r] = the sum of the lanes of sums[r], for two r, whose vectors are ``step`` [elements]
    apart.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, step, out = args
        rows = _Rows(builder, address, step, types.float32)
        found = _add_lanes(builder, [rows.load(row, step.type(0)) for row in range(2)])
        for row in range(2):
            _store(builder, out, step.type(row), builder.extract_element(found, WORD(row)))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), generate


@intrinsic(prefer_literal=True)
def mix_tile(
    typing, rows, vectors, shares, shares_step, values, step, start, stop, out, out_step, like
):
    """out[r, :] += sum over t in [start, stop) of shares[r, t] values[t, :], for ``vectors``
    vectors of numbers.

    rows, vectors: literal counts. shares, values, out: addresses. like: an array of the values'
    stored type.
    """
    high, wide, stored = rows.literal_value, vectors.literal_value, _stored(like)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shares, shares_step, address, step, start, stop, out, out_step = args[2:10]
        values, results = (
            _Rows(builder, address, step, stored),
            _Rows(builder, out, out_step, types.float32),
        )
        places = [step.type(LANES * each) for each in range(wide)]
        sums = [[cgutils.alloca_once_value(builder, results.load(row, place)) for place in places]
                for row in range(high)]  # fmt: skip
        with cgutils.for_range_slice(builder, start, stop, step.type(1), step.type) as (time, _):
            moment = builder.mul(time, step)
            loaded = [values.load(0, builder.add(moment, place)) for place in places]
            for row in range(high):
                at = builder.add(builder.mul(shares_step, shares_step.type(row)), time)
                at = builder.add(shares, builder.mul(at, at.type(ITEM)))
                share = _splat(builder, builder.load(builder.inttoptr(at, SINGLE.as_pointer())))
                for total, value in zip(sums[row], loaded, strict=True):
                    builder.store(_multiply_add(builder, share, value, builder.load(total)), total)
        for row in range(high):
            for total, place in zip(sums[row], places, strict=True):
                at = builder.add(builder.mul(out_step, out_step.type(row)), place)
                _store(builder, out, at, builder.load(total))
        return context.get_dummy_value()

    return types.void(rows, vectors, *[types.intp] * 8, like), generate


@intrinsic
def widen(typing, number):
    """A stored number in single precision."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _widen(builder, args[0]) if number == BFLOAT16 else args[0]

    return types.float32(number), generate


@intrinsic
def narrow(typing, number, like):
    """A single number as an array stores it: bfloat16 to the nearest, ties to even."""
    stored = _stored(like)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if stored != BFLOAT16:
            return args[0]
        bits = builder.bitcast(args[0], WORD)
        odd = builder.and_(builder.lshr(bits, WORD(16)), WORD(1))
        bits = builder.add(bits, builder.add(odd, WORD(0x7FFF)))
        return builder.trunc(builder.lshr(bits, WORD(16)), HALF_WORD)

    return stored(types.float32, like), generate


@intrinsic
def round_whole(typing, number):
    """The nearest whole number, in single precision."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [args[0].type]), args)

    return types.float32(types.float32), generate


@intrinsic
def two_to_the(typing, exponent):
    """2 ** exponent in single precision, for whole exponents (int32) of -126 to 127."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.shl(builder.add(args[0], WORD(127)), WORD(23)), SINGLE)

    return types.float32(types.int32), generate


@njit(error_model="numpy")
def exponential(number):
    """E ** number to 2 units in the last place, for -87 to 88; beyond, the value at the nearest of
    these.
    """
    number = min(max(number, LEAST), MOST)
    whole = round_whole(number * LOG2_E)
    left = number - whole * LN2_HIGH
    left = left - whole * LN2_LOW
    series = ((((C7 * left + C6) * left + C5) * left + C4) * left + C3) * left + C2
    return ((series * left + ONE) * left + ONE) * two_to_the(np.int32(whole))
