"""The turns of one method, for the distributions behind its means: a few numbers of each, and its steps."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from specbench.records.record import CaseRecord
from specbench.report.frames.counting import Requests, as_requests, count_request, first_s
from specbench.report.frames.steps import Floats, Steps

HELD = "cached_tokens"  # of a turn's own figures: tokens in the method's state when the request began


class Held(NamedTuple):
    """Tokens in a method's state when a case began. place: of the record among those that count."""

    case: str
    category: str
    block: int
    place: int
    tokens: float


class Turns:
    """Turns that are added record by record, of cases that failed in no round.

    sources: name -> nodes proposed and accepted. figures: what a method counts of itself -> a value a turn that has it.
    held: of each record that says what its method held. thought: turns that think; unanswered: and say nothing else.
    """

    def __init__(self, spool: Any) -> None:
        """spool: of the run's steps."""
        self.steps = Steps(spool)
        self.sources: dict[str, tuple[int, int]] = {}
        self.figures: dict[str, array[float]] = {}
        self.held: list[Held] = []
        self._first_s, self._per_token_s = array("d"), array("d")
        self._requests = array("I")
        self._records = 0
        self.thought = self.unanswered = 0

    def __len__(self) -> int:
        """Records."""
        return self._records

    @property
    def first_s(self) -> Floats:
        """(T,) [s] to the first token of each turn."""
        return np.asarray(self._first_s)

    @property
    def per_token_s(self) -> Floats:
        """[s] a token in each turn that decoded any."""
        return np.asarray(self._per_token_s)

    @property
    def requests(self) -> Requests:
        """What engines and harnesses count of each turn."""
        return as_requests(np.asarray(self._requests))

    def add(self, record: CaseRecord) -> None:
        """The turns of a record."""
        for turn in record.turns:
            emitted = sum(turn.accept)
            self.thought += turn.thinking is not None
            self.unanswered += turn.thinking == len(turn.ids)
            self._first_s.append(first_s(turn))
            self._requests.extend(count_request(self._records, turn))
            if emitted:
                self._per_token_s.append(turn.decode_s / emitted)
            for name, (offered, taken) in turn.sources.items():
                proposed, accepted = self.sources.get(name, (0, 0))
                self.sources[name] = proposed + offered, accepted + taken
            for name, value in turn.stats.items():
                self.figures.setdefault(name, array("d")).append(value)
        if record.turns and HELD in record.turns[0].stats:
            tokens = record.turns[0].stats[HELD]
            self.held.append(Held(record.case, record.category, record.block, self._records, tokens))
        self.steps.add(record.turns)
        self._records += 1
