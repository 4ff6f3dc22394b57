"""The lossless check: whether a method's output is the target's own, token by token; ties are
counted separately.

(a) The greedy ids are compared with vanilla's, and the first divergence is noted. (b) Teacher
forcing: the emitted ids go through the target in one pass. Each must be the argmax there or lie
within a tolerance of it (a tie: the forward that emitted it had another shape and rounded
differently); otherwise it is a violation. Vanilla is checked in the same way: its ties are the
noise floor. A server gives no logits: there the log-probabilities of the two tokens are compared at
the first difference, if it states them (a difference of logits equals one of log-probabilities).

The same pass counts the steps that another rounding could change: those with an id whose best rival
is within a rounding step of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from specbench.records.record import VANILLA, CaseRecord, Lossless, find_divergence

# [logits] Distance of neighbouring numbers from 16 to 32, the size of a model's largest logits.
ROUNDING_STEP = {"float64": 2.0**-48, "float32": 2.0**-19, "float16": 2.0**-6, "bfloat16": 2.0**-3}
# [logits] Largest gap that rounding explains, fixed per dtype before any run: docs/measurement.md
# derives it.
TOLERANCE = {
    "float64": 1e-5,
    "float32": 1e-3,
    "float16": 8 * ROUNDING_STEP["float16"],
    "bfloat16": 8 * ROUNDING_STEP["bfloat16"],
}

Gap = Callable[
    [Sequence[int], int, int], float | None
]  # (context, the baseline's token, another) -> [nats], None if unknown
Gaps = Callable[[Sequence[int], Sequence[int]], list[float]]


def judge_block(
    records: Sequence[CaseRecord], prompts: dict[str, list[list[int]]], gaps: Gaps, dtype: str
) -> None:
    """Enter a ``Lossless`` into every successful record of one block.

    Args:
        records: the records of the block.
        prompts: method -> token ids of each turn's prompt.
        gaps: teacher forcing (``Engine.gaps``).
        dtype: of the target.
    """
    tolerance, step = TOLERANCE[dtype], ROUNDING_STEP[dtype]
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}
    vanilla = next(
        (record for record in records if record.method == VANILLA and record.status == "ok"), None
    )
    for record in records:
        if record.status != "ok":
            continue
        diverged = find_divergence(vanilla, record) if vanilla else None
        equal = vanilla is not None and diverged is None
        if record.text_only:  # no id is checked, as different ids can spell one text
            record.lossless = Lossless(equal, diverged, 0, 0, 0, 0.0)
            continue
        found, close = list[float](), 0
        for prompt, turn in zip(prompts[record.method], record.turns, strict=True):
            key = (tuple(prompt), tuple(turn.ids))
            if key not in known:
                known[key] = gaps(prompt, turn.ids)
            found += known[key]
            close += count_close(known[key], turn.accept, step)
        record.lossless = Lossless(
            equal=equal,
            divergence=diverged,
            positions=len(found),
            ties=sum(0 < gap <= tolerance for gap in found),
            violations=sum(gap > tolerance for gap in found),
            worst_gap=max([0.0, *found]),
            close_steps=close,
        )


def compare_block(
    records: Sequence[CaseRecord], prompts: dict[str, list[list[int]]], gap: Gap, dtype: str
) -> None:
    """Enter a ``Lossless`` into each successful record whose target is on a server, by comparison
    with vanilla.

    Only the first position that differs is checked, by the server's report for vanilla there: a
    tie, a violation, or nothing.

    Args:
        records: the records of the block.
        prompts: method -> token ids of each turn's prompt.
        gap: the server's gap [nats] between two tokens after a context.
        dtype: of the served model; auto: bfloat16.
    """
    vanilla = next(
        (record for record in records if record.method == VANILLA and record.status == "ok"), None
    )
    for record in records if vanilla else ():
        if record.status != "ok":
            continue
        assert vanilla is not None
        diverged, found = find_divergence(vanilla, record), None
        if diverged and not (record.text_only or vanilla.text_only):
            turn, place = diverged
            ours, theirs = record.turns[turn].ids, vanilla.turns[turn].ids
            if place < min(len(ours), len(theirs)):
                found = gap(
                    [*prompts[record.method][turn], *ours[:place]], theirs[place], ours[place]
                )
        tie = found is not None and found <= TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
        record.lossless = Lossless(
            equal=diverged is None,
            divergence=diverged,
            positions=int(found is not None),
            ties=int(tie),
            violations=int(found is not None and not tie),
            worst_gap=max(0.0, found or 0.0),
        )


def count_close(gaps: Sequence[float], accept: Sequence[int], step: float) -> int:
    """Count the decode steps with an id that is at most ``step`` [logits] away from the best other
    id.

    gaps: (n,) of a turn's ids. accept: tokens of each decode step; the ids in front of them are the
    prefill's.
    """
    ends = list(accumulate(accept, initial=len(gaps) - sum(accept)))
    return sum(any(abs(gap) <= step for gap in gaps[start:end]) for start, end in pairwise(ends))
