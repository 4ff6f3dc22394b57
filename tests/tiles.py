"""A stand-in for our attention kernel, which takes long in Triton's interpreter: the same tiles and
bits, by torch.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from builders.fake_cuda import Labelled


@contextlib.contextmanager
def attending():
    """Engines made in the block attend by it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.models.fast.kernels.tree_attention.attend", attend_by_tiles)
        yield


def attend_by_tiles(query, keys, values, mask):
    """See ``tree_attention.attend``."""
    labelled = query if isinstance(query, Labelled) else None
    query, keys, values, bits, depths, cached, tiles = (
        getattr(each, "on_cpu", each)
        for each in (query, keys, values, mask.bits, mask.depths, mask.cached, mask.tiles)
    )
    groups, out = query.shape[1] // keys.shape[1], torch.zeros_like(query)
    if tiles is None:
        tiles = torch.tensor(
            [[0, int(cached[0]), mask.columns or len(query), 0, len(query) * groups]]
        )
    for start, past, columns, item, items in tiles.tolist():
        index = torch.arange(item, item + items)
        row, heads = index // groups, index % groups + groups * torch.arange(keys.shape[1])[:, None]
        place, slots = torch.arange(past + columns), slice(start, start + past + columns)
        own = torch.from_numpy(
            np.unpackbits(bits[row].numpy().view(np.uint8), axis=1, bitorder="little")
        )
        seen = torch.cat([torch.ones(items, past, dtype=torch.bool), own[:, :columns].bool()], 1)
        if mask.window is not None:
            seen[:, :past] &= past + depths[row][:, None] - place[:past] < mask.window
        if len(place):
            out[row, heads] = scaled_dot_product_attention(
                query[row, heads], keys[0, :, slots], values[0, :, slots], seen
            )
    return out if labelled is None else Labelled(out, labelled.counter)
