"""Seeds of one request, each from all that names it: no two requests, roles or runs share a stream by accident."""

from __future__ import annotations

import hashlib


def seed_of(base: int, *names: object) -> int:
    """A 63-bit seed from the run's seed and the names of what it is for (case, turn, role)."""
    text = "\x1f".join(str(name) for name in (base, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
