"""Compile the Triton kernels for an H100, with or without such a GPU, and print the resources that
they take.

    python -m scripts.lab kernels                   # head sizes 64, 80 and 128 in bfloat16 and
    float32 python -m scripts.lab kernels --sizes 128 --dtypes bf16

Needs Triton. The exit code is 1 if a 16-bit kernel has a stack (spilled registers), if fewer of its
programs fit on a multiprocessor than its launch counts on, if a product copies a block in more or
fewer pieces than 16 bytes a lane, or if a kernel that begins early reads or writes before it waits.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is defined
# Triton's behaviour before it had this setting
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scripts.lab.bench import print_table
from specbench.models.fast.kernels import packed_rows
from specbench.models.fast.kernels.packed_rows import accept_rows, lay_out_rows, move_rows
from specbench.models.fast.kernels.products import (
    ADD,
    BROAD,
    GATE,
    NARROW,
    PLAIN,
    ROTATE,
    ROWS,
    product,
)
from specbench.models.fast.kernels.small_ops import (
    BLOCK,
    HEADS,
    add_norm,
    choose_warps,
    gate_product,
    rotate_write,
)
from specbench.models.fast.kernels.tree_attention import (
    MERGED,
    RESIDENT,
    SINGLE,
    TILES,
    attend_split,
    merge_splits,
)

HOPPER = 90  # compute capability
# of a multiprocessor; taken by each program in addition to its own
SHARED_BYTES, PROGRAM_BYTES = 227 * 1024, 1024
# of a multiprocessor, and lanes of a warp (CUDA C++ Programming Guide, 9.0)
REGISTERS, WARPS, LANES = 65536, 64, 32
SPLITS = 8
GROUPS = 4  # query heads that share a key head


def run(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Print one row per kernel, head size and dtype; returns 1 if a kernel does not fit."""
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 80, 128], help="of a head")
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp32"])
    given = parser.parse_intermixed_args(arguments)
    unfit = []

    def rows() -> Iterator[list[object]]:
        for dtype, size in itertools.product(given.dtypes, given.sizes):
            for launch in list_launches(size, dtype):
                found = compile_launch(launch)
                split = launch.copies is not None and found.copies != launch.copies
                spilled = found.stack or split or found.resident < launch.needed
                if found.hasty or (dtype != "fp32" and spilled):
                    unfit.append(f"{launch.label} at {size} in {dtype}")
                cells = (found.registers, found.stack, found.resident, found.copies)
                yield [launch.label, size, dtype, f"{found.shared / 1024:.0f}", *cells]

    columns = ("kernel", "head size", "dtype", "shared KiB", "registers", "stack bytes")
    print_table((*columns, "programs at a time", "copies of 16 bytes"), rows(), left=(0, 2))
    for each in unfit:
        print(f"does not fit: {each}", file=sys.stderr)
    return int(bool(unfit))


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel. needed: the number of programs that must fit on a multiprocessor at a
    time.

    copies: instructions that copy 16 bytes a lane from global to shared memory, if they are counted
    on.

    given: argument -> its type as a string (``*bf16``, ``i32``, ``i32:16`` = a multiple of 16), or
    its constant value.
    """

    kernel: Any
    label: str
    given: dict[str, Any]
    warps: int = 4
    stages: int = 1
    needed: int = 1
    copies: int | None = None


def list_launches(size: int, dtype: str) -> Iterator[Launch]:
    """Yield the launch of every kernel for a head size, in a model of 32 heads."""
    padded, pointer, width = 1 << (size - 1).bit_length(), f"*{dtype}", 32 * size
    sizes = {"SIZE": size, "PADDED": padded}
    given: dict[str, Any] = dict.fromkeys(("queries", "keys", "values"), pointer)
    given |= {"bits": "*i32", "partial": "*fp32", "peaks": "*fp32", "scale": "fp32"}
    given |= dict.fromkeys(("cached", "depths", "tiles"), "*i64")
    given |= dict.fromkeys(("width", "columns", "words", "window", "key_heads"), "i32")
    given |= dict.fromkeys(("query_stride", "batch_stride", "head_stride"), "i32:16")
    given |= {"GROUPS": GROUPS, **sizes, "SPLITS": SPLITS, "EARLY": True}
    for tile in (SINGLE,) if dtype == "fp32" else TILES:
        for window, packed in itertools.product((False, True), (False, True)):
            label = (
                f"attend_split, {tile.rows} x {tile.keys}{', window' * window}{', packed' * packed}"
            )
            tiled = {
                **given,
                "ROWS": tile.rows,
                "KEYS": tile.keys,
                "WINDOWED": window,
                "TILED": packed,
            }
            tiled["partial"] = pointer if tile is TILES[-1] else "*fp32"
            yield Launch(attend_split, label, tiled, tile.warps, tile.stages, RESIDENT)
    given = {"partial": pointer, "peaks": "*fp32", "out": pointer, "count": "i32:16"}
    given |= {**sizes, "SPLITS": SPLITS, "EARLY": True}
    yield Launch(
        merge_splits, "merge_splits", given | {"ITEMS": max(1, MERGED // (SPLITS * padded))}
    )
    names, block = ("rows", "added", "weight", "summed", "normed"), 1 << (width - 1).bit_length()
    given = {**dict.fromkeys(names, pointer), "size": "i32:16", "epsilon": "fp32", "BLOCK": block}
    yield Launch(add_norm, "add_norm", given, choose_warps(block))
    yield Launch(
        gate_product,
        "gate_product",
        {"gate_up": pointer, "out": pointer, "size": "i32:16", "BLOCK": BLOCK},
    )
    given = dict.fromkeys(("heads", "cos", "sin", "queries", "slots"), pointer)
    given |= {
        "positions": "*i64",
        "at": "*i64",
        "query_heads": "i32",
        "key_heads": "i32",
        "slot_stride": "i32:16",
    }
    yield Launch(rotate_write, "rotate_write", {**given, **sizes, "HEADS": HEADS})
    sent = (
        "ids",
        "parents",
        "firsts",
        "past",
        "free",
        "depths",
        "positions",
        "spans",
        "found",
        "picks",
        "at",
    )
    rows = dict.fromkeys(sent, "*i64") | {
        "peaks": pointer,
        "slots": pointer,
        "slot_stride": "i32:16",
    }
    rows |= {"bits": "*i32", "count": "i32", "window": "i32", "requests": "i32", "heads": "i32"}
    for kernel, name, constants in (
        (lay_out_rows, "lay_out_rows", {"ROWS": packed_rows.ROWS, "WORDS": 16}),
        (accept_rows, "accept_rows", {"ROWS": 512}),
        (move_rows, "move_rows", {**sizes, "HEADS": packed_rows.HEADS}),
    ):
        used = {key: value for key, value in rows.items() if key in kernel.arg_names}
        yield Launch(
            kernel, name, used | constants, 512 // packed_rows.SHARE if kernel is accept_rows else 4
        )
    if dtype != "fp32":
        yield from list_products(dtype)


def list_products(dtype: str) -> Iterator[Launch]:
    """Yield the launches of the products in half precision."""
    pointer, numbers = (
        f"*{dtype}",
        ("size", "columns", "row_stride", "weight_stride", "unit", "apart", "slot_stride"),
    )
    always: dict[str, Any] = {
        **dict.fromkeys(("rows", "weight", "out"), pointer),
        "bias": None,
        "BIAS": False,
    }
    always |= {
        **dict.fromkeys(numbers, "i32:16"),
        "epsilon": "fp32",
        "EVEN": True,
        "BEFORE": 128,
        "EARLY": True,
    }
    always |= dict.fromkeys(("count", "before", "query_heads", "key_heads"), "i32")
    tables = {
        **dict.fromkeys(("cos", "sin", "slots"), pointer),
        **dict.fromkeys(("positions", "at"), "*i64"),
    }
    shapes: dict[str, tuple[Any, dict[str, Any]]] = {
        "": (PLAIN, {}), ", sum": (ADD, {"kept": pointer, "left": "*fp32"}),
        ", norm and SiLU": (GATE, {}), ", norm and rotation": (ROTATE, tables),
    }  # fmt: skip
    optional = ("squares", "scales", "kept", "left", *tables, "partial", "arrivals")
    for block, splits, (label, (after, others)) in itertools.product(
        (BROAD, NARROW), (1, 4), shapes.items()
    ):
        normed = after.value >= GATE.value
        given = {
            **dict.fromkeys(optional),
            **always,
            **others,
            "AFTER": after.value,
            "SPLITS": splits,
            "NORM": normed,
        }
        given |= {"WIDTH": block.width, "DEPTH": block.depth, "STAGES": block.stages}
        if normed:
            given |= {"squares": "*fp32", "scales": "*fp32"}
        if splits > 1:
            given |= {"partial": "*fp32", "arrivals": "*i32"}
        size = f"product, {block.width} x {block.depth}{' split' if splits > 1 else ''}"
        copies = (
            (block.width + ROWS.value)
            * block.depth
            * 2
            // (16 * LANES * block.warps)
            * block.stages
        )
        yield Launch(
            product, f"{size}{label}", given, block.warps, block.stages, FIT[block], copies
        )


FIT = {BROAD: 3, NARROW: 2}  # programs on a multiprocessor


@dataclass(frozen=True, slots=True)
class Compiled:
    """The resources of a launch as the assembler reports them."""

    shared: int  # [bytes]
    registers: int  # of a lane
    stack: int  # [bytes] of spilled registers
    resident: int  # programs on a multiprocessor at a time
    copies: int  # of 16 bytes a lane to shared memory
    hasty: bool  # begins early, and has no wait or accesses memory before it


ACCESS = r"\b(ld|st|atom|red)\.global|\bcp\.async\.c"


def compile_launch(launch: Launch) -> Compiled:
    """Compile a launch for an H100."""
    names, given = launch.kernel.arg_names, launch.given
    types = {
        name: value.removesuffix(":16") for name, value in given.items() if isinstance(value, str)
    }
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
        tools, usage_of = (
            triton.knobs.nvidia,
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
        )
        listing, code = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for command in (usage_of, [tools.nvdisasm.path, file.name])
        )
    usage = re.search(r"REG:(\d+) STACK:(\d+)", listing)
    assert usage is not None, listing
    shared, registers, stack = compiled.metadata.shared, int(usage[1]), int(usage[2])
    by_registers = REGISTERS // (-(-registers // 8) * 8 * launch.warps * LANES)
    resident = min(SHARED_BYTES // (shared + PROGRAM_BYTES), by_registers, WARPS // launch.warps)
    before, waits, _ = compiled.asm["ptx"].partition("griddepcontrol.wait")
    hasty = given.get("EARLY", False) and (not waits or re.search(ACCESS, before) is not None)
    copies = len(re.findall(r"LDGSTS\S*\.128", code))
    return Compiled(shared, registers, stack, resident, copies, hasty)
