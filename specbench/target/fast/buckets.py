"""Which widths and key lengths forwards come in: a captured graph serves one of each; on a CPU any size will do."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
LENGTHS = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072)


@dataclass(frozen=True, slots=True)
class Buckets:
    """widths: rows fed. lengths: [slots] of keys read. Empty = every size is its own."""

    widths: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    def width(self, rows: int) -> int:
        """The smallest width that holds ``rows``; beyond the largest a multiple of it."""
        return _fit(rows, self.widths)

    def length(self, slots: int, room: int) -> int:
        """The smallest length that holds ``slots``, at most ``room``."""
        return min(_fit(slots, self.lengths), room)

    def room(self, slots: int) -> int:
        """[slots] to reserve for ``slots``: whole lengths, so that a request little longer needs no other memory."""
        return _fit(slots, self.lengths)


GRAPHED = Buckets(WIDTHS, LENGTHS)
EXACT = Buckets()


def _fit(size: int, steps: tuple[int, ...]) -> int:
    if not steps:
        return size
    place = bisect_left(steps, size)
    return steps[place] if place < len(steps) else -(-size // steps[-1]) * steps[-1]
