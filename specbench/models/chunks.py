"""Long prompts and answers go through the target in chunks: memory grows with their length, not with its square."""

from __future__ import annotations

CHUNK = 2048  # [tokens] of which one forward makes masks or logits
CELLS = CHUNK * 8192  # of a chunk's mask: 64 MiB in float32
LEAST = 64  # [tokens] of a chunk, however many come before it


def list_chunks(count: int) -> list[slice]:
    """The places of ``count`` tokens, at most ``CHUNK`` in each slice."""
    return [slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def list_masked_chunks(end: int, start: int = 0) -> list[slice]:
    """The places from ``start`` to ``end`` in slices whose masks, over all places before their end, have few cells."""
    parts: list[slice] = []
    while start < end:
        stop = min(start + CHUNK, end)
        stop = min(stop, start + max(LEAST, CELLS // stop))
        parts.append(slice(start, stop))
        start = stop
    return parts
