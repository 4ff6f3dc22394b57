"""Tree attention by the Triton kernels of ``split_keys``: which tile, how many splits, two launches.

The table of tiles is for 16-bit numbers on an H100, whose multiprocessors have 227 KiB of shared memory for blocks and
65,536 registers; ``scripts/check_kernels.py`` prints what the compiler takes. At a head size of 128 a block of 64 keys
with its values is 32 KiB, and a stage of the pipeline is one such block on its way from memory. Two programs on each
multiprocessor with one block each on its way are 8 MiB for the device: at 3.3 TB/s and 0.7 us of latency 2.3 MB are
enough. The wider the tile, the more registers its sums take; 64 rows are the widest with two programs at 4 warps, and
more rows read the keys once more, from the cache.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from specbench.target.fast.attention import LARGEST, TreeMask
from specbench.target.fast.kernels.split_keys import attend_split, merge_splits

RESIDENT = 2  # programs on a multiprocessor at a time, at least
MOST_SPLITS = 64
MERGED = 4096  # elements that one program merges
INTERPRETED = 2  # multiprocessors of a CPU, in the interpreter


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program takes: rows x grouped heads at a time, keys at a time; and how it is compiled."""

    rows: int
    keys: int
    warps: int
    stages: int


TILES = {16: Tile(16, 64, 4, 3), 32: Tile(32, 64, 4, 3), 64: Tile(64, 64, 4, 2)}
SINGLE = Tile(16, 32, 4, 2)  # float32: a product without tensor cores, in registers


def choose_tile(rows: int, dtype: torch.dtype) -> Tile:
    """The smallest tile that holds ``rows`` (of all heads that share a key head), or the widest."""
    if dtype == torch.float32:
        return SINGLE
    return next((tile for height, tile in TILES.items() if height >= rows), TILES[64])


def choose_splits(programs: int, slots: int, keys: int, processors: int) -> int:
    """How many programs share the keys of one tile: a power of two, and all of them run at once.

    programs: of one split. slots: [keys] at most, ``keys`` of them in a block. processors: multiprocessors.
    """
    room = max(1, min(RESIDENT * processors // programs, cdiv(slots, keys), MOST_SPLITS))
    return 1 << (room.bit_length() - 1)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else INTERPRETED


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask) -> Tensor:
    """See ``TreeMask``. The last two dimensions of keys and values lie as in a ``StaticKV``. Raises ValueError."""
    rows, programs = len(query) // len(keys) * (query.shape[1] // keys.shape[1]), len(keys) * keys.shape[1]
    tile = choose_tile(rows, query.dtype)
    splits = choose_splits(programs * cdiv(rows, tile.rows), keys.shape[2], tile.keys, _processors(query.device))
    return launch(query, keys, values, mask, tile, splits)


def launch(query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask, tile: Tile, splits: int) -> Tensor:
    """As ``attend``, with a tile and a number of splits of one's own."""
    (total, heads, size), (batches, key_heads) = query.shape, keys.shape[:2]
    if size > LARGEST or keys.stride() != values.stride() or keys.stride(2) != size or query.stride(1) != size:
        raise ValueError(
            f"head size {size}, strides {query.stride()}, {keys.stride()}, {values.stride()}: expected at most"
            f" {LARGEST}, heads without gaps, and values that lie as the keys do"
        )
    width, groups, padded = total // batches, heads // key_heads, max(16, next_power_of_2(size))
    out = query.new_empty(total, heads, size)
    partial = query.new_empty(splits, total, heads, size, dtype=torch.float32) if splits > 1 else out
    peaks = query.new_empty(splits, total, heads, dtype=torch.float32)
    attend_split[(batches * key_heads, cdiv(width * groups, tile.rows), splits)](
        query, keys, values, mask.bits, mask.held, mask.depths, partial, peaks,
        size**-0.5 * math.log2(math.e), width, mask.bits.shape[1], mask.window or 0,
        key_heads, query.stride(0), keys.stride(0), keys.stride(1),
        GROUPS=groups, SIZE=size, PADDED=padded, ROWS=tile.rows, KEYS=tile.keys, SPLITS=splits,
        WINDOWED=mask.window is not None, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1:
        items = max(1, MERGED // (splits * padded))
        merge_splits[(cdiv(total * heads, items),)](
            partial, peaks, out, total * heads, SIZE=size, PADDED=padded, SPLITS=splits, ITEMS=items
        )
    return out
