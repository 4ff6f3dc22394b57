"""The launches of our Triton kernels that a compiler is asked about: types, shapes and how many are counted on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.target.fast.kernels.row_kernels import add_norm, gate_product, rotate_write
from specbench.target.fast.kernels.split_keys import attend_split, merge_splits
from specbench.target.fast.kernels.tiles import BLOCK, HEADS, MERGED, RESIDENT, SINGLE, TILES, Tile, choose_warps

SPLITS = 8
GROUPS = 4  # query heads that share a key head


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as a launch compiles it. given: see ``compile_kernel``. needed: programs at a time, counted on."""

    kernel: Any
    label: str
    given: dict[str, Any]
    warps: int = 4
    stages: int = 1
    needed: int = 1


def list_launches(size: int, dtype: str) -> Iterator[Compiled]:
    """Of every kernel, for a head size."""
    padded = 1 << (size - 1).bit_length()
    for tile in (SINGLE,) if dtype == "fp32" else TILES:
        for window in (False, True):
            label = f"attend_split, {tile.rows} x {tile.keys}{', window' if window else ''}"
            given = _attend(size, padded, dtype, tile, window)
            yield Compiled(attend_split, label, given, tile.warps, tile.stages, RESIDENT)
    pointers = {"partial": "*fp32", "peaks": "*fp32", "out": f"*{dtype}", "count": "i32:16"}
    shape = {"SIZE": size, "PADDED": padded, "SPLITS": SPLITS, "ITEMS": max(1, MERGED // (SPLITS * padded))}
    yield Compiled(merge_splits, "merge_splits", {**pointers, **shape})
    yield from _list_small(size, padded, dtype)


def _list_small(size: int, padded: int, dtype: str) -> Iterator[Compiled]:
    """Of a model of 32 heads."""
    pointer, width = f"*{dtype}", 32 * size
    names = ("rows", "added", "weight", "summed", "normed")
    block = 1 << (width - 1).bit_length()
    given = {**dict.fromkeys(names, pointer), "size": "i32:16", "epsilon": "fp32", "BLOCK": block}
    yield Compiled(add_norm, "add_norm", given, choose_warps(block))
    yield Compiled(gate_product, "gate_product", {"gate_up": pointer, "out": pointer, "size": "i32:16", "BLOCK": BLOCK})
    pointers = dict.fromkeys(("heads", "cos", "sin", "queries", "slots"), pointer)
    numbers = {"query_heads": "i32", "key_heads": "i32", "slot_stride": "i32:16"}
    given = {**pointers, "positions": "*i64", "at": "*i64", **numbers, "SIZE": size, "PADDED": padded, "HEADS": HEADS}
    yield Compiled(rotate_write, "rotate_write", given)


def list_all(sizes: Sequence[int], dtypes: Sequence[str]) -> Iterator[tuple[int, str, Compiled]]:
    """(head size, dtype, launch) of every kernel."""
    for dtype in dtypes:
        for size in sizes:
            for launch in list_launches(size, dtype):
                yield size, dtype, launch


def _attend(size: int, padded: int, dtype: str, tile: Tile, window: bool) -> dict[str, Any]:
    pointers = dict.fromkeys(("queries", "keys", "values"), f"*{dtype}")
    pointers |= {"bits": "*i32", "held": "*i64", "depths": "*i64", "partial": "*fp32", "peaks": "*fp32"}
    numbers = {"scale": "fp32", **dict.fromkeys(("width", "columns", "words", "window", "key_heads"), "i32")}
    strides = dict.fromkeys(("query_stride", "batch_stride", "head_stride"), "i32:16")
    shape = {"GROUPS": GROUPS, "SIZE": size, "PADDED": padded, "ROWS": tile.rows, "KEYS": tile.keys}
    return {**pointers, **numbers, **strides, **shape, "SPLITS": SPLITS, "WINDOWED": window}
