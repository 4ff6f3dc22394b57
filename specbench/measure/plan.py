"""The plan of a run: which method decodes which case when, fixed by a seed before the first token.

Per case and round all methods run back to back in random order (a block), so that drift of the machine falls on all
of them alike; this made the ratio twenty times tighter than running one method after the other in our simulation
(docs/measurement.md). A reset policy says what a method may remember from block to block.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from specbench.records.record import CONTROL, VANILLA
from specbench.types import Case

# ``never`` resets with each round, so that rounds can be compared; ``run`` does not: a second pass over the cases.
Reset = Literal["turn", "case", "category", "never", "run"]
RESETS: tuple[str, ...] = get_args(Reset)
LASTING = ("category", "never", "run")  # what is learned from a case may reach the next
REFERENCES = (VANILLA, CONTROL)  # in every block: the others are paired with them
Key = tuple[frozenset[str], int]  # the cases of a block and its round

# Of no suite: a prompt that warms kernels, allocators and caches must not be measured as well.
WARMUP = (
    Case("warmup-1", "warmup", ("Name three rivers and say in one sentence each where they rise and where they end.",)),
    Case("warmup-2", "warmup", ("Write a short note to a neighbour who has lent you a ladder.", "Make it rhyme.")),
    Case("warmup-3", "warmup", ("A box holds 12 eggs. How many boxes are needed for 100 eggs? Think step by step.",)),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One case in one round: the methods in the order in which they run.

    place: its index in the plan of the whole, where the run has a part of it (``suite.part``).
    more: under load, the cases that are served in the same stretch.
    """

    index: int
    round: int
    case: Case
    order: tuple[str, ...]
    place: int
    more: tuple[Case, ...] = ()

    @property
    def cases(self) -> tuple[Case, ...]:
        """All of them."""
        return (self.case, *self.more)

    @property
    def key(self) -> Key:
        """What a run knows it again by."""
        return frozenset(case.id for case in self.cases), self.round


def make_plan(
    cases: Sequence[Case], resets: Mapping[str, str], rounds: int, seed: int, whole: Sequence[Case] = ()
) -> list[Block]:
    """All blocks in order. resets: method -> policy; with any ``category`` policy, categories are kept together.

    whole: the cases that ``cases`` are a part of.
    """
    places = {case.id: place for place, case in enumerate(_in_order(whole or cases, resets))}
    names = list(resets)
    blocks: list[Block] = []
    for turn in range(rounds):
        for case in _in_order(cases, resets):
            order = list(names)
            random.Random(f"{seed}/{turn}/{case.id}").shuffle(order)
            blocks.append(Block(len(blocks), turn, case, tuple(order), turn * len(places) + places[case.id]))
    return blocks


def plan_stretches(cases: Sequence[Case], methods: Sequence[str], rounds: int, size: int) -> list[Block]:
    """All blocks under load, of ``size`` cases each, the last of a round of fewer.

    Every second block has the methods in the opposite order: of any two of them the order is A B B A, in which a
    machine that drifts at a constant rate slows both alike.
    """
    blocks: list[Block] = []
    for turn in range(rounds):
        for start in range(0, len(cases), size):
            order = methods if len(blocks) % 2 == 0 else tuple(reversed(methods))
            first, *more = cases[start : start + size]
            blocks.append(Block(len(blocks), turn, first, tuple(order), len(blocks), tuple(more)))
    return blocks


def _in_order(cases: Sequence[Case], resets: Mapping[str, str]) -> Sequence[Case]:
    """The cases as a round has them."""
    if "category" not in resets.values():
        return cases
    first = {case.category: index for index, case in reversed(list(enumerate(cases)))}
    return sorted(cases, key=lambda case: first[case.category])


def starts_span(plan: Sequence[Block], index: int, policy: str) -> bool:
    """True if a method of this policy is reset before block ``index``."""
    if policy in ("turn", "case") or index == 0:
        return True
    if policy == "run":
        return False
    here, before = plan[index], plan[index - 1]
    return here.round != before.round or (policy == "category" and here.case.category != before.case.category)
