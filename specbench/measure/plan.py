"""The plan of a run: in which order the methods decode the cases, fixed by a seed before the first
token.

For each case and round all methods run back to back in random order (a block), so that a drift of
the machine affects all of them equally. In our simulation this made the ratio twenty times tighter
than running one method after the other (docs/measurement.md). A reset policy states what a method
may remember from block to block.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from specbench.records.record import Reset
from specbench.types import Case

RESETS: tuple[str, ...] = get_args(Reset)
LASTING = ("category", "never", "run")  # policies with which a method learns from case to case
Key = tuple[frozenset[str], int]  # the cases of a block and its round

# From no suite: a prompt that warms up kernels, allocators and caches must not be measured as well.
WARMUP = (
    Case(
        "warmup-1",
        "warmup",
        ("Name three rivers and say in one sentence each where they rise and where they end.",),
    ),
    Case(
        "warmup-2",
        "warmup",
        ("Write a short note to a neighbour who has lent you a ladder.", "Make it rhyme."),
    ),
    Case(
        "warmup-3",
        "warmup",
        ("A box holds 12 eggs. How many boxes are needed for 100 eggs? Think step by step.",),
    ),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One case in one round: the methods in the order in which they run."""

    index: int
    round: int
    case: Case
    order: tuple[str, ...]
    # its index in the plan of the complete run, of which this run may be a part (``suite.part``)
    place: int
    more: tuple[Case, ...] = ()  # under load, the further cases that are served in the same stretch

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases of the block."""
        return (self.case, *self.more)

    @property
    def key(self) -> Key:
        """The key that identifies the block in records."""
        return frozenset(case.id for case in self.cases), self.round


def make_plan(
    cases: Sequence[Case],
    resets: Mapping[str, str],
    rounds: int,
    seed: int,
    whole: Sequence[Case] = (),
) -> list[Block]:
    """All blocks of a run without load, in order; with any ``category`` policy, categories are kept
    together.

    Args:
        cases: of the run.
        resets: method -> reset policy.
        rounds: how often each case is decoded.
        seed: of the methods' order.
        whole: the cases that ``cases`` are a part of, if they are one.
    """
    places = {case.id: place for place, case in enumerate(_in_order(whole or cases, resets))}
    names = list(resets)
    blocks: list[Block] = []
    for turn in range(rounds):
        for case in _in_order(cases, resets):
            order = list(names)
            random.Random(f"{seed}/{turn}/{case.id}").shuffle(order)
            blocks.append(
                Block(len(blocks), turn, case, tuple(order), turn * len(places) + places[case.id])
            )
    return blocks


def plan_stretches(
    cases: Sequence[Case], methods: Sequence[str], rounds: int, size: Callable[[int], int]
) -> list[Block]:
    """All blocks under load; the last of a round may have fewer cases than its ``size``, which its
    place decides.

    Every second block has the methods in the opposite order: any two of them run in the order A B B
    A, in which a machine that drifts at a constant rate slows both equally.
    """
    blocks: list[Block] = []
    for turn in range(rounds):
        start = 0
        while start < len(cases):
            order = methods if len(blocks) % 2 == 0 else tuple(reversed(methods))
            first, *more = cases[start : start + size(len(blocks))]
            blocks.append(Block(len(blocks), turn, first, tuple(order), len(blocks), tuple(more)))
            start += 1 + len(more)
    return blocks


def _in_order(cases: Sequence[Case], resets: Mapping[str, str]) -> Sequence[Case]:
    """The cases in the order of a round."""
    if "category" not in resets.values():
        return cases
    first = {case.category: index for index, case in reversed(list(enumerate(cases)))}
    return sorted(cases, key=lambda case: first[case.category])


def starts_span(plan: Sequence[Block], index: int, policy: str) -> bool:
    """Returns whether a method with this policy is reset before block ``index``; the first block is
    always so.

    ``turn`` also resets between the turns of a case: ``runs.session``, and under load
    ``runs.load_session``.
    """
    if policy in ("turn", "case") or index == 0:
        return True
    if policy == "run":
        return False
    here, before = plan[index], plan[index - 1]
    return here.round != before.round or (
        policy == "category" and here.case.category != before.case.category
    )
