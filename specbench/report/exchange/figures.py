"""What the files say in common, and what a run's records give to write them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from specbench.input import InputError, parse_as
from specbench.record import OVERALL, CaseRecord, TurnRecord
from specbench.report.data.counting import drafted_steps
from specbench.report.data.facts import Facts

SLACK = 1e-3  # by which rounded figures of a file may differ from what they follow from
Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[float, Field(ge=1, le=1e6)]


@dataclass(frozen=True, slots=True)
class Figures:
    """A group of requests as a file tells of it; None is what it does not tell. group: a category or subset.

    requests: that succeeded. tokens: of their answers. steps: verifications that the length is of. drafted, accepted:
    draft tokens. length, rate: of acceptance, as the file's harness counts. positions: share of the steps that accepted
    at least one draft token, two, three ...
    """

    group: str = OVERALL
    requests: int | None = None
    tokens: int | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    length: float | None = None
    rate: float | None = None
    tokens_per_s: float | None = None
    positions: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A method's records of cases that succeeded. facts: of its run. created: ISO 8601. plain: no drafts are recorded.

    by_path: drafts were verified by whole paths (decode.verify=block).
    """

    facts: Facts
    method: str
    records: Sequence[CaseRecord]
    created: str = ""
    plain: bool = False
    by_path: bool = False

    @property
    def turns(self) -> list[TurnRecord]:
        """All requests, in order."""
        return [turn for record in self.records for turn in record.turns]

    def by_category(self) -> Iterator[tuple[str, list[CaseRecord]]]:
        """Category -> its records, by name."""
        for name in sorted({record.category for record in self.records}):
            yield name, [record for record in self.records if record.category == name]


def first_s(turn: TurnRecord) -> float:
    """[s] until the first token is there."""
    return turn.prefill_s + (turn.step_s[0] if turn.in_prefill and turn.step_s else 0.0)


def whole_s(turns: Iterable[TurnRecord]) -> float:
    """[s] that requests take one after the other."""
    return sum(turn.prefill_s + turn.decode_s for turn in turns)


def count_drafts(turns: Sequence[TurnRecord]) -> Figures:
    """What the counters of a server would have counted, steps without a draft left out."""
    steps = [step for turn in turns for step in drafted_steps(turn)]
    drafted, accepted = sum(nodes for _, nodes in steps), sum(taken for taken, _ in steps)
    deepest = max((depth for turn in turns for depth in turn.depth), default=0)
    shares = survival(count_values(taken for taken, _ in steps))
    length = 1 + accepted / len(steps) if steps else 0.0
    rate = accepted / drafted if drafted else 0.0
    positions = (*shares, *[0.0] * (deepest - len(shares)))
    return Figures(OVERALL, None, None, len(steps), drafted, accepted, length, rate, None, positions)


def count_values(values: Iterable[int]) -> dict[int, int]:
    """Value -> how often it is there, in ascending order."""
    return dict(sorted(Counter(values).items()))


def survival(accepted: Mapping[int, int]) -> tuple[float, ...]:
    """Share of steps that accepted at least 1, 2, ... draft tokens. accepted: draft tokens -> steps.

    1 plus their sum is the acceptance length.
    """
    steps = sum(accepted.values())
    beyond = (
        sum(count for taken, count in accepted.items() if taken > place) for place in range(max(accepted, default=0))
    )
    return tuple(count / steps for count in beyond)


def conditionals(marginals: Sequence[float]) -> list[float]:
    """The chance that a position is accepted once all earlier ones are; 0 where none gets there."""
    return [after / before if before else 0.0 for before, after in pairwise((1.0, *marginals))]


@functools.cache
def _schema(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse(kind: Any, raw: bytes, where: str, harness: str) -> Any:
    """A JSON text as this type. Raises InputError naming the first key that does not fit."""
    return parse_as(_schema(kind), raw, where, f"expected a file as {harness} writes it")


def check_close(where: str, key: str, got: float | None, due: float, formula: str, slack: float = SLACK) -> None:
    """Raise InputError where a figure of a file is not what it follows from."""
    if got is not None and not abs(got - due) <= slack * max(1.0, abs(due)):
        raise InputError(f"{where}: {key} is {got:g}, {formula} is {due:g}; expected them equal: a part was changed")


def check_falling(where: str, key: str, shares: Sequence[float]) -> None:
    """Raise InputError where more steps accept a position than the one before it."""
    for place, (before, after) in enumerate(pairwise(shares), start=1):
        if after > before + SLACK:
            raise InputError(f"{where}: {key}.{place} is {after:g}, {before:g} before it; expected no more than that")
