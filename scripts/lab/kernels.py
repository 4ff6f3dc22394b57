"""Compile the Triton kernels for an H100, with or without such a GPU, and print the resources that they take.

    python -m scripts.lab kernels                   # head sizes 64, 80 and 128 in bfloat16 and float32
    python -m scripts.lab kernels --sizes 128 --dtypes bf16

Needs Triton. The exit code is 1 if a 16-bit kernel has a stack (spilled registers), or if fewer of its programs fit on
a multiprocessor than its launch counts on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is defined
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton's behaviour before it had this setting

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scripts.lab.materials import print_table
from specbench.models.fast.kernels.packed_rows import HEADS as MOVED
from specbench.models.fast.kernels.packed_rows import ROWS, SHARE, accept_rows, lay_out_rows, move_rows
from specbench.models.fast.kernels.small_ops import BLOCK, HEADS, add_norm, choose_warps, gate_product, rotate_write
from specbench.models.fast.kernels.tree_attention import MERGED, RESIDENT, SINGLE, TILES, attend_split, merge_splits

HOPPER = 90  # compute capability
SHARED_BYTES, PROGRAM_BYTES = 227 * 1024, 1024  # of a multiprocessor; taken by each program in addition to its own
REGISTERS, WARPS, LANES = 65536, 64, 32  # of a multiprocessor, and lanes of a warp (CUDA C++ Programming Guide, 9.0)
SPLITS = 8
GROUPS = 4  # query heads that share a key head


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print one row per kernel, head size and dtype; returns 1 if a kernel does not fit."""
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 80, 128], help="of a head")
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp32"])
    given = parser.parse_intermixed_args(arguments)
    unfit = []

    def rows() -> Iterator[list[object]]:
        for dtype, size in product(given.dtypes, given.sizes):
            for launch in list_launches(size, dtype):
                shared, registers, stack, resident = compile_launch(launch)
                if dtype != "fp32" and (stack or resident < launch.needed):
                    unfit.append(f"{launch.label} at {size} in {dtype}")
                yield [launch.label, size, dtype, f"{shared / 1024:.0f}", registers, stack, resident]

    columns = ("kernel", "head size", "dtype", "shared KiB", "registers", "stack bytes", "programs at a time")
    print_table(columns, rows(), left=(0, 2))
    for each in unfit:
        print(f"does not fit: {each}", file=sys.stderr)
    return int(bool(unfit))


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel. needed: the number of programs that must fit on a multiprocessor at a time.

    given: argument -> its type as a string (``*bf16``, ``i32``, ``i32:16`` = a multiple of 16), or its constant value.
    """

    kernel: Any
    label: str
    given: dict[str, Any]
    warps: int = 4
    stages: int = 1
    needed: int = 1


def list_launches(size: int, dtype: str) -> Iterator[Launch]:
    """Yield the launch of every kernel for a head size, in a model of 32 heads."""
    padded, pointer, width = 1 << (size - 1).bit_length(), f"*{dtype}", 32 * size
    sizes = {"SIZE": size, "PADDED": padded}
    given: dict[str, Any] = dict.fromkeys(("queries", "keys", "values"), pointer)
    given |= {"bits": "*i32", "partial": "*fp32", "peaks": "*fp32", "scale": "fp32"}
    given |= dict.fromkeys(("cached", "depths", "tiles"), "*i64")
    given |= dict.fromkeys(("width", "columns", "words", "window", "key_heads"), "i32")
    given |= dict.fromkeys(("query_stride", "batch_stride", "head_stride"), "i32:16")
    given |= {"GROUPS": GROUPS, **sizes, "SPLITS": SPLITS}
    for tile in (SINGLE,) if dtype == "fp32" else TILES:
        for window, packed in product((False, True), (False, True)):
            label = f"attend_split, {tile.rows} x {tile.keys}{', window' * window}{', packed' * packed}"
            tiled = {**given, "ROWS": tile.rows, "KEYS": tile.keys, "WINDOWED": window, "TILED": packed}
            yield Launch(attend_split, label, tiled, tile.warps, tile.stages, RESIDENT)
    given = {"partial": "*fp32", "peaks": "*fp32", "out": pointer, "count": "i32:16", **sizes, "SPLITS": SPLITS}
    yield Launch(merge_splits, "merge_splits", given | {"ITEMS": max(1, MERGED // (SPLITS * padded))})
    names, block = ("rows", "added", "weight", "summed", "normed"), 1 << (width - 1).bit_length()
    given = {**dict.fromkeys(names, pointer), "size": "i32:16", "epsilon": "fp32", "BLOCK": block}
    yield Launch(add_norm, "add_norm", given, choose_warps(block))
    yield Launch(gate_product, "gate_product", {"gate_up": pointer, "out": pointer, "size": "i32:16", "BLOCK": BLOCK})
    given = dict.fromkeys(("heads", "cos", "sin", "queries", "slots"), pointer)
    given |= {"positions": "*i64", "at": "*i64", "query_heads": "i32", "key_heads": "i32", "slot_stride": "i32:16"}
    yield Launch(rotate_write, "rotate_write", {**given, **sizes, "HEADS": HEADS})
    sent = "ids", "parents", "firsts", "past", "free", "depths", "positions", "spans", "found", "picks", "at"
    rows = dict.fromkeys(sent, "*i64") | {"peaks": pointer, "slots": pointer, "slot_stride": "i32:16"}
    rows |= {"bits": "*i32", "count": "i32", "window": "i32", "requests": "i32", "heads": "i32"}
    for kernel, name, constants in (
        (lay_out_rows, "lay_out_rows", {"ROWS": ROWS, "WORDS": 16}),
        (accept_rows, "accept_rows", {"ROWS": 512}),
        (move_rows, "move_rows", {**sizes, "HEADS": MOVED}),
    ):
        used = {key: value for key, value in rows.items() if key in kernel.arg_names}
        yield Launch(kernel, name, used | constants, 512 // SHARE if kernel is accept_rows else 4)


def compile_launch(launch: Launch) -> tuple[int, int, int, int]:
    """Compile a launch for an H100, and read the resource usage that the assembler reports.

    Returns the shared memory [bytes], the registers per lane, the stack [bytes] (registers that were spilled) and the
    number of programs that fit on a multiprocessor at a time.
    """
    names, given = launch.kernel.arg_names, launch.given
    types = {name: value.removesuffix(":16") for name, value in given.items() if isinstance(value, str)}
    constants = {(names.index(name),): value for name, value in given.items() if name not in types}
    aligned = [name for name in types if given[name].startswith("*") or given[name].endswith(":16")]
    signature = {name: types.get(name, "constexpr") for name in names}
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(launch.kernel, signature, constants, hints)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", HOPPER, LANES), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", listing)
    assert usage is not None, listing
    shared, registers, stack = compiled.metadata.shared, int(usage[1]), int(usage[2])
    by_registers = REGISTERS // (-(-registers // 8) * 8 * launch.warps * LANES)
    resident = min(SHARED_BYTES // (shared + PROGRAM_BYTES), by_registers, WARPS // launch.warps)
    return shared, registers, stack, resident
