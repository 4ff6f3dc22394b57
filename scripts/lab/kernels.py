"""The launches of our Triton kernels, what the compiler takes for them, and how many a multiprocessor holds.

Without a GPU: the compiler is asked about a device that need not be here.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specbench.models.fast.kernels.row_kernels import add_norm, gate_product, rotate_write
from specbench.models.fast.kernels.split_keys import attend_split, merge_splits
from specbench.models.fast.kernels.tiles import BLOCK, HEADS, MERGED, RESIDENT, SINGLE, TILES, Tile, choose_warps

HOPPER = 90  # compute capability
SHARED_BYTES, PROGRAM_BYTES = 227 * 1024, 1024  # of a multiprocessor; taken by each program besides its own
REGISTERS, WARPS, LANES = 65536, 64, 32  # of a multiprocessor, and lanes of a warp (CUDA C++ Programming Guide, 9.0)
SPLITS = 8
GROUPS = 4  # query heads that share a key head


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel as it is launched. needed: programs at a time, counted on.

    given: argument -> its type as a string (``*bf16``, ``i32``, ``i32:16`` = a multiple of 16), or its constant value.
    """

    kernel: Any
    label: str
    given: dict[str, Any]
    warps: int = 4
    stages: int = 1
    needed: int = 1


def list_launches(size: int, dtype: str) -> Iterator[Launch]:
    """Of every kernel, for a head size."""
    padded = 1 << (size - 1).bit_length()
    for tile in (SINGLE,) if dtype == "fp32" else TILES:
        for window in (False, True):
            label = f"attend_split, {tile.rows} x {tile.keys}{', window' if window else ''}"
            given = _attend(size, padded, dtype, tile, window)
            yield Launch(attend_split, label, given, tile.warps, tile.stages, RESIDENT)
    pointers = {"partial": "*fp32", "peaks": "*fp32", "out": f"*{dtype}", "count": "i32:16"}
    shape = {"SIZE": size, "PADDED": padded, "SPLITS": SPLITS, "ITEMS": max(1, MERGED // (SPLITS * padded))}
    yield Launch(merge_splits, "merge_splits", {**pointers, **shape})
    yield from _list_small(size, padded, dtype)


def _list_small(size: int, padded: int, dtype: str) -> Iterator[Launch]:
    """Of a model of 32 heads."""
    pointer, width = f"*{dtype}", 32 * size
    names = ("rows", "added", "weight", "summed", "normed")
    block = 1 << (width - 1).bit_length()
    given = {**dict.fromkeys(names, pointer), "size": "i32:16", "epsilon": "fp32", "BLOCK": block}
    yield Launch(add_norm, "add_norm", given, choose_warps(block))
    yield Launch(gate_product, "gate_product", {"gate_up": pointer, "out": pointer, "size": "i32:16", "BLOCK": BLOCK})
    pointers = dict.fromkeys(("heads", "cos", "sin", "queries", "slots"), pointer)
    numbers = {"query_heads": "i32", "key_heads": "i32", "slot_stride": "i32:16"}
    given = {**pointers, "positions": "*i64", "at": "*i64", **numbers, "SIZE": size, "PADDED": padded, "HEADS": HEADS}
    yield Launch(rotate_write, "rotate_write", given)


def _attend(size: int, padded: int, dtype: str, tile: Tile, window: bool) -> dict[str, Any]:
    pointers = dict.fromkeys(("queries", "keys", "values"), f"*{dtype}")
    pointers |= {"bits": "*i32", "held": "*i64", "depths": "*i64", "partial": "*fp32", "peaks": "*fp32"}
    numbers = {"scale": "fp32", **dict.fromkeys(("width", "columns", "words", "window", "key_heads"), "i32")}
    strides = dict.fromkeys(("query_stride", "batch_stride", "head_stride"), "i32:16")
    shape = {"GROUPS": GROUPS, "SIZE": size, "PADDED": padded, "ROWS": tile.rows, "KEYS": tile.keys}
    return {**pointers, **numbers, **strides, **shape, "SPLITS": SPLITS, "WINDOWED": window}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Of one program: shared memory, registers of a lane, and its stack: what did not fit there."""

    shared_bytes: int
    registers: int
    stack_bytes: int
    warps: int

    @property
    def resident(self) -> int:
        """Programs on a multiprocessor of an H100 at a time."""
        by_registers = REGISTERS // (-(-self.registers // 8) * 8 * self.warps * LANES)
        return min(SHARED_BYTES // (self.shared_bytes + PROGRAM_BYTES), by_registers, WARPS // self.warps)


def compile_launch(launch: Launch) -> Occupancy:
    """Compile for an H100."""
    names, given = launch.kernel.arg_names, launch.given
    types = {name: value.removesuffix(":16") for name, value in given.items() if isinstance(value, str)}
    constants = {(names.index(name),): value for name, value in given.items() if name not in types}
    aligned = [name for name in types if given[name].startswith("*") or given[name].endswith(":16")]
    signature = {name: types.get(name, "constexpr") for name in names}
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(launch.kernel, signature, constants, hints)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", HOPPER, LANES), options=options)
    return Occupancy(compiled.metadata.shared, *_read_usage(compiled.asm["cubin"]), launch.warps)


def _read_usage(cubin: bytes) -> tuple[int, int]:
    """(registers of a lane, bytes of its stack), as the assembler has noted them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])
