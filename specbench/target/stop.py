"""When a request ends: at the first end-of-sequence token, or when its room is used up."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def cut(emitted: Sequence[int], eos: Collection[int], left: int) -> tuple[list[int], bool]:
    """Cut one step's tokens at the first EOS (kept) and at ``left`` tokens; return them and whether it ends."""
    kept = list(emitted[:left])
    for place, token in enumerate(kept):
        if token in eos:
            return kept[: place + 1], True
    return kept, len(kept) >= left
