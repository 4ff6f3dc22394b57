"""What the rows of a draft see: a length and bits that are read on the device, or a mask that
torch's attention adds.

A dense mask has one length of keys, so every length needs its own recording. ``TreeMask`` expresses
the same mask by a length and one bit for each pair of fed rows, and one recording serves every
length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional

WORD = 32  # bits
NEVER = float("-inf")  # in an additive mask, where a row does not see a key
LARGEST = 128  # size of a head, in our kernel

Attend = Callable[[Tensor, Tensor, Tensor, "TreeMask"], Tensor]


@dataclass(frozen=True, slots=True)
class TreeMask:
    """The mask of n rows of each of B requests: they see the context within the window, and rows
    whose bit is set.

    tiles: of packed rows of requests that each have ``room`` slots of one cache (B = 1); (T, 5)
    int64, of each tile the slot and the length of its request's context, the request's rows, and
    which pairs of row and grouped head it takes: the first one and their number, 0 = the tile is
    not used. A tile takes at most ``items``. Our kernel reads them instead of ``cached`` and
    ``columns``.
    """

    # queries (B * n, H, size), keys and values (B, K, slots, size) -> (B * n, H, size)
    attend: Attend
    cached: Tensor  # (B,) int64 [tokens] of context, in the slots before the rows' own
    depths: Tensor  # (B * n,) int64 of a row below its root
    # (B * n, words) int32, bit j of a row for slot j after the context, within the window
    bits: Tensor
    window: int | None  # [positions], None = all
    columns: int | None = None  # slots after the context that have bits; None: those of the rows
    tiles: Tensor | None = None
    items: int = 0
    room: int = 0


@dataclass(frozen=True, slots=True)
class PlacesMask:
    """The mask of packed rows for torch's attention."""

    room: int  # [slots] of a place
    places: slice  # those that take part
    end: int  # slots read of each
    laid: Tensor  # (k * q,) index of the packed row there; padding has any
    back: Tensor  # (n,) the place of each packed row
    seen: Tensor  # (k, 1, groups * q, end) additive

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(n, H, size) queries, (1, K, slots, size) keys and values -> (n, H, size)."""
        count, (heads, size), key_heads = len(self.seen), query.shape[1:], keys.shape[1]
        width, groups = len(self.laid) // count, heads // key_heads
        laid = query[self.laid].view(count, width, key_heads, groups, size).permute(0, 2, 3, 1, 4)
        packed = laid.reshape(count, key_heads, groups * width, size)
        taking_part = [
            each[0].unflatten(1, (-1, self.room))[:, self.places, : self.end]
            for each in (keys, values)
        ]
        own_keys, own_values = (each.transpose(0, 1) for each in taking_part)
        mixed = functional.scaled_dot_product_attention(
            packed, own_keys, own_values, attn_mask=self.seen
        )
        mixed = mixed.view(count, key_heads, groups, width, size).permute(0, 3, 1, 2, 4)
        return mixed.reshape(count * width, heads, size)[self.back]


def count_words(rows: int) -> int:
    """Return the number of words for one bit per row."""
    return -(-rows // WORD)


def pack_bits(seen: np.ndarray) -> np.ndarray:
    """(n, m) bool -> (n, words) int32."""
    packed = np.zeros((len(seen), 4 * count_words(seen.shape[1])), dtype=np.uint8)
    octets = np.packbits(seen, axis=1, bitorder="little")
    packed[:, : octets.shape[1]] = octets
    return packed.view("<i4")
