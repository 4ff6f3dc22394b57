"""The tiles of tree attention: the rows and keys of one program, and how many programs share the keys.

The table is for 16-bit numbers on an H100, whose multiprocessors have 227 KiB of shared memory for programs and 65,536
registers; ``scripts/lab/kernels.py`` prints what the compiler takes of them. At a head size of 128 a block of 64 keys
with its values is 32 KiB, and every stage of the pipeline but one is such a block on its way from memory. Two programs
on each multiprocessor with one block each on its way are 8 MiB for the device; at 3.3 TB/s and 0.7 us of latency 2.3 MB
are enough. Fewer rows take blocks of half the keys, so that a short context still has a block for many programs. The
wider the tile, the more registers its sums take: of 64 rows two programs of 4 warps fit, and more rows read the keys
once more, from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

RESIDENT = 2  # programs on a multiprocessor at a time, at least
MOST_SPLITS = 64
MERGED = 4096  # elements that one program merges
BLOCK, HEADS = 1024, 8  # numbers of a row that one program gates, and heads that one turns


@dataclass(frozen=True, slots=True)
class Tile:
    """The share of one program, rows x grouped heads and keys at a time, and how it is compiled."""

    rows: int
    keys: int
    warps: int
    stages: int


TILES = (Tile(16, 32, 4, 4), Tile(32, 32, 4, 4), Tile(64, 64, 4, 2))
SINGLE = Tile(16, 32, 4, 2)  # float32: its products take no tensor cores, and their numbers registers


def choose_warps(block: int) -> int:
    """Of a program that holds a row of ``block`` numbers: some 8 a lane."""
    return min(16, max(4, block // 256))


def choose_tile(rows: int, single: bool) -> Tile:
    """The smallest tile that holds ``rows`` (of all heads that share a key head), or the widest. single: float32."""
    if single:
        return SINGLE
    return next((tile for tile in TILES if tile.rows >= rows), TILES[-1])


def choose_splits(programs: int, slots: int, keys: int, processors: int) -> int:
    """The number of programs that share the keys of one tile: a power of two, and all of them run at once.

    programs: of one split. slots: [keys] at most, ``keys`` of them in a block. processors: multiprocessors.
    """
    room = max(1, min(RESIDENT * processors // programs, -(-slots // keys), MOST_SPLITS))
    return 1 << (room.bit_length() - 1)
