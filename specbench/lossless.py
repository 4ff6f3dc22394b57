"""The lossless check: whether a method's output is the target's own, token by token; ties are counted apart.

(a) the greedy ids equal vanilla's, else where they first part; (b) teacher forcing: the emitted ids go through the
target in one pass, and each must be the argmax there, or lie within a tolerance of it (a tie: the forward that emitted
it had another shape and rounded otherwise), or it is a violation. Vanilla is judged alike: its ties are the noise
floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specbench.record import VANILLA, CaseRecord, Lossless

# Largest logit gap that rounding explains, fixed per dtype before any run. float32: cached and uncached forwards differ
# by up to 4e-5 in logits; half precisions: a few units in the last place of logits of size 16 to 32.
TOLERANCE = {"float64": 1e-5, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}

Gaps = Callable[[Sequence[int], Sequence[int]], list[float]]


def judge_block(records: Sequence[CaseRecord], prompts: dict[str, list[list[int]]], gaps: Gaps, dtype: str) -> None:
    """Enter a ``Lossless`` into every good record of one block.

    prompts: method -> token ids of each turn's prompt. gaps: teacher forcing (``Engine.gaps``).
    """
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}
    vanilla = next((record for record in records if record.method == VANILLA and record.status == "ok"), None)
    for record in records:
        if record.status != "ok":
            continue
        found: list[float] = []
        for prompt, turn in zip(prompts[record.method], record.turns, strict=True):
            key = (tuple(prompt), tuple(turn.ids))
            if key not in known:
                known[key] = gaps(prompt, turn.ids)
            found += known[key]
        parted = divergence(vanilla, record) if vanilla else None
        tolerance = TOLERANCE[dtype]
        record.lossless = Lossless(
            equal=vanilla is not None and parted is None,
            divergence=parted,
            positions=len(found),
            ties=sum(0 < gap <= tolerance for gap in found),
            violations=sum(gap > tolerance for gap in found),
            worst_gap=max(found, default=0.0),
        )


def divergence(vanilla: CaseRecord, record: CaseRecord) -> list[int] | None:
    """[turn, position] of the first id that differs from vanilla's; None if all are equal."""
    for turn, (ours, theirs) in enumerate(zip(record.turns, vanilla.turns, strict=True)):
        for place, (mine, other) in enumerate(zip(ours.ids, theirs.ids, strict=False)):
            if mine != other:
                return [turn, place]
        if len(ours.ids) != len(theirs.ids):
            return [turn, min(len(ours.ids), len(theirs.ids))]
    return None
