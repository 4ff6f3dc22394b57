"""The part of a run that a job has, ``k/n``: every n-th case from the k-th on; how parts split and join."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from specbench.records.store import RunError

_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def part_numbers(part: str) -> tuple[int, int]:
    """'2/3' -> (2, 3). Raises RunError."""
    found = _PART.fullmatch(part)
    if not found:
        raise RunError(f"part {part}: expected k/n")
    return int(found[1]), int(found[2])


def join_parts(parts: Sequence[str]) -> str | None:
    """The part that several make together; None for the whole. Raises RunError where one is missing."""
    numbers = [part_numbers(part) for part in parts]
    steps = math.lcm(*(step for _, step in numbers))
    taken = sorted({place for first, step in numbers for place in range(first - 1, steps, step)})
    wide, rest = divmod(steps, len(taken))
    if rest or taken != list(range(taken[0], steps, wide)):
        missing = [f"{place + 1}/{steps}" for place in range(steps) if place not in taken]
        raise RunError(f"parts {', '.join(parts)}: {', '.join(missing)} missing; expected all parts of a run")
    return None if wide == 1 else f"{taken[0] + 1}/{wide}"


def split_part(part: str | None, count: int) -> list[str]:
    """``count`` parts that make a part, or the whole, together: the inverse of ``join_parts``."""
    first, step = part_numbers(part) if part else (1, 1)
    return [f"{first + number * step}/{step * count}" for number in range(count)]


def part_name(part: str) -> str:
    """``k/n`` as the name of a directory."""
    return part.replace("/", "-of-")


def join_places(parts: Sequence[tuple[Sequence[int], Sequence[str]]]) -> dict[str, Any]:
    """Places and cases of several parts, in order of the places; only places where a part does not name its cases."""
    places = sorted(place for own, _ in parts for place in own)
    pairs = sorted(pair for own, cases in parts for pair in zip(own, cases, strict=False))
    return {"places": places, **({"cases": [name for _, name in pairs]} if len(pairs) == len(places) else {})}
