"""Tree attention by the Triton kernels of ``split_keys``: two launches, cut up as ``tiles`` says."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from specbench.models.fast.attention import LARGEST, TreeMask
from specbench.models.fast.kernels.split_keys import attend_split, merge_splits
from specbench.models.fast.kernels.tiles import MERGED, Tile, choose_splits, choose_tile

INTERPRETED = 2  # multiprocessors of a CPU, in the interpreter


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else INTERPRETED


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: TreeMask) -> Tensor:
    """See ``TreeMask``. The last two dimensions of keys and values lie as in a ``StaticKV``. Raises ValueError."""
    rows, programs = len(query) // len(keys) * (query.shape[1] // keys.shape[1]), len(keys) * keys.shape[1]
    tile = choose_tile(rows, query.dtype == torch.float32)
    splits = choose_splits(programs * cdiv(rows, tile.rows), keys.shape[2], tile.keys, _processors(query.device))
    with torch.cuda.device_of(query):  # Triton launches on the current device; nothing on a CPU
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
        query, keys, values, mask.bits, mask.cached, mask.depths, partial, peaks,
        size**-0.5 * math.log2(math.e), width, mask.columns or width, mask.bits.shape[1], mask.window or 0,
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
