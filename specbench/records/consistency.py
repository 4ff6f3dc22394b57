"""What the records of one run say of each other: each once, of one question a case, and verdicts that the ids bear out.

Checked while they are read: a little is kept of each case and block, and nothing of a record but until vanilla's comes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from specbench.records.record import VANILLA, CaseRecord, Lossless

_KINDS = ("repeated", "disagreeing", "late", "judged")  # in the order in which they are told


class _Block:
    """One case in one round. methods: a bit each. answer: hash of vanilla's ids. waiting: judged before it came."""

    __slots__ = ("answer", "first", "methods", "number", "waiting")

    def __init__(self, number: int, first: int) -> None:
        self.number, self.first, self.methods = number, first, 0
        self.answer: int | None = None
        self.waiting: list[tuple[int, int, Lossless]] | None = None


class _Case:
    """What the first record said of its case, and the first that succeeded of its turns."""

    __slots__ = ("category", "done", "first", "subcategory", "turns")

    def __init__(self, category: str, subcategory: str, first: int) -> None:
        self.category, self.subcategory, self.first = category, subcategory, first
        self.turns = self.done = -1


class Consistency:
    """The check of one run. Records are named by their places, from 0."""

    def __init__(self, rounds: int | None, grown: bool = False) -> None:
        """rounds: the manifest's. grown: a case may be in several blocks of a round, each with vanilla."""
        self._rounds, self._grown = rounds, grown
        self._count = 0
        self._methods: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._cases: dict[str, _Case] = {}
        self._blocks: dict[tuple[str, int, int], _Block] = {}
        self._faults: dict[str, tuple[int, str]] = {}  # kind -> the first one's place, and what is wrong

    def add(self, record: CaseRecord) -> None:
        """The next record."""
        place = self._count
        self._count += 1
        case = self._cases.get(record.case)
        if case is None:
            category, subcategory = (
                self._texts.setdefault(each, each) for each in (record.category, record.subcategory)
            )
            case = self._cases[record.case] = _Case(category, subcategory, place)
        key = (record.case, record.round, record.block if self._grown else 0)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(record.block, place)
        if self._rounds is not None and record.round >= self._rounds:
            said = f"round is {record.round}, counted from 0, and the manifest's rounds are {self._rounds}"
            self._note("late", place, said)
        bit = 1 << self._methods.setdefault(record.method, len(self._methods))
        if block.methods & bit:
            self._note("repeated", place, "")
        block.methods |= bit
        self._compare(place, record, case, block)
        if record.status == "ok":
            self._judge(place, record, block)

    def _compare(self, place: int, record: CaseRecord, case: _Case, block: _Block) -> None:
        """Methods were asked the same question, in one block a round."""
        said: list[tuple[str, object, object, int]] = [
            ("category", record.category, case.category, case.first),
            ("subcategory", record.subcategory, case.subcategory, case.first),
            ("block", record.block, block.number, block.first),
        ]
        if record.status == "ok":
            if case.done < 0:
                case.turns, case.done = len(record.turns), place
            said.append(("number of turns", len(record.turns), case.turns, case.done))
        for name, value, before, first in said:
            if value != before:
                found = f"{name} of case {record.case} is {value!r}, on line {first + 1} it is {before!r}"
                self._note("disagreeing", place, found)

    def _judge(self, place: int, record: CaseRecord, block: _Block) -> None:
        """A verdict says whether the ids are those of vanilla in its block."""
        ids = hash(tuple(tuple(turn.ids) for turn in record.turns))
        judged = block.waiting or []
        if record.lossless is not None:
            judged = [*judged, (place, ids, record.lossless)]
        if record.method == VANILLA:
            block.answer = ids
        if block.answer is None:
            block.waiting = judged or None
            return
        block.waiting = None
        for number, own, verdict in judged:
            same = own == block.answer
            if verdict.equal != same or (verdict.divergence is None) != same:
                found = f"equal is {json.dumps(verdict.equal)}, divergence {json.dumps(verdict.divergence)}"
                self._note("judged", number, f"lossless.{found}, but the ids are {'' if same else 'not '}vanilla's")

    def _note(self, kind: str, place: int, text: str) -> None:
        if kind not in self._faults or place < self._faults[kind][0]:
            self._faults[kind] = place, text

    def find_fault(self, records: Sequence[CaseRecord]) -> tuple[int, str] | None:
        """The first fault of the first kind that has any. records: all of them."""
        place, text = next((self._faults[kind] for kind in _KINDS if kind in self._faults), (0, ""))
        if "repeated" in self._faults:
            record = records[place]
            same = (record.case, record.method, record.round)
            first = next(n for n, one in enumerate(records) if (one.case, one.method, one.round) == same)
            text = f"case {record.case}, {record.method}, round {record.round} is on line {first + 1} already"
        return (place, text) if text else None
