"""The figures that the formats share, and what a run's records give to write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import PydanticUndefined

from specbench.input import parse_as
from specbench.records.record import OVERALL, CaseRecord, TurnRecord
from specbench.report.frames.counting import first_s
from specbench.report.frames.facts import Facts

Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[float, Field(ge=1, le=1e6)]
Rate = Annotated[float, Field(ge=0, le=1e12)]


class Figures(BaseModel, frozen=True):
    """A group of requests as a file reports it; None if it is missing. A format's class has the
    keys.

    group: a category. requests: that succeeded. steps: verifications that the length is of. length:
    of acceptance, as the file's harness counts. positions: share of the steps that accepted at
    least one draft token, two, three ...
    """

    group: str = OVERALL
    requests: int | None = None
    steps: int | None = None
    length: float | None = None
    tokens_per_s: float | None = None
    positions: tuple[float, ...] = ()


def at(key: str, default: Any = PydanticUndefined) -> Any:
    """Declares the figure under this key; one without a default is required."""
    return Field(default, validation_alias=key)


@dataclass(frozen=True, slots=True)
class Measured:
    """A method's records of cases that succeeded. facts: of its run.

    by_path: drafts were verified by whole paths (decode.verify=block). target, draft: the
    checkpoints of the model and of the method, each a path or hub id and the fingerprint of its
    weights; None if the manifest has no such entry.
    """

    facts: Facts
    method: str
    records: Sequence[CaseRecord]
    by_path: bool = False
    target: tuple[str, str | None] | None = None
    draft: tuple[str, str | None] | None = None

    @property
    def turns(self) -> list[TurnRecord]:
        """All requests, in order."""
        return [turn for record in self.records for turn in record.turns]

    @property
    def tokens(self) -> int:
        """The number of tokens of all answers."""
        return sum(len(turn.ids) for turn in self.turns)

    @property
    def seconds(self) -> float:
        """[s] The time that the requests take in sequence."""
        return sum(turn.wall_s for turn in self.turns)

    @property
    def deepest(self) -> int:
        """The longest draft."""
        return max((depth for turn in self.turns for depth in turn.depth), default=0)


def token_s(turn: TurnRecord) -> float | None:
    """Returns the time [s] per token after the first one; None for an answer of one token."""
    return (turn.wall_s - first_s(turn)) / (len(turn.ids) - 1) if len(turn.ids) > 1 else None


def count_values(values: Iterable[int]) -> dict[int, int]:
    """Returns value -> its number of occurrences, in ascending order."""
    return dict(sorted(Counter(values).items()))


def survival(accepted: Mapping[int, int], size: int = 0) -> tuple[float, ...]:
    """Returns the share of steps that accepted at least 1, 2, ... draft tokens.

    accepted: draft tokens -> steps. size: the least number of positions. 1 plus their sum is the
    acceptance length.
    """
    steps = max(sum(accepted.values()), 1)
    places = range(max([size, *accepted]))
    return tuple(
        sum(count for taken, count in accepted.items() if taken > place) / steps for place in places
    )


def conditionals(marginals: Sequence[float]) -> list[float]:
    """Returns the chance that a position is accepted after all earlier ones; 0 if no step gets
    there.
    """
    return [after / before if before else 0.0 for before, after in pairwise((1.0, *marginals))]


def parse(kind: Any, raw: bytes, where: str) -> Any:
    """Reads a JSON text as this type. Raises InputError naming the first key that does not fit."""
    return parse_as(TypeAdapter(kind), raw, where, "expected a file as specdec_bench writes it")
