"""Long prompts and answers go through the target in chunks: memory grows with their length, not with its square."""

from __future__ import annotations

CHUNK = 2048  # [tokens] of which one forward makes masks or logits


def list_chunks(count: int) -> list[slice]:
    """The places of ``count`` tokens, at most ``CHUNK`` in each slice."""
    return [slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
