"""The check of a run's records against each other and against its manifest, in the order of the
file.

A record alone is checked by ``CaseRecord.find_fault``. Here a block must be one that the run could
have written: its number follows, it has every method in its place, all of its records have the same
questions, and the results of the lossless check agree with the ids. The records of one block are
kept, and a little of each case.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specbench.input import InputError
from specbench.records.manifest import Manifest
from specbench.records.record import (
    LARGEST,
    REFERENCES,
    VANILLA,
    CaseRecord,
    EngineKind,
    LoadKind,
    find_divergence,
)


@dataclass(slots=True)
class _Case:
    """The question of a case. first: the line of its first record. turns: of its first valid one,
    on line ``done``.
    """

    category: str
    subcategory: str
    first: int
    turns: int = 0
    done: int = 0


@dataclass(slots=True)
class _Place:
    """A case in a round. block: its latest one. first: the line of its first record. lines: method
    -> its latest.
    """

    block: int
    first: int
    lines: dict[str, int] = field(default_factory=dict)


_Lines = list[tuple[int, CaseRecord]]  # with their numbers


class Consistency:
    """The check of the records of one run."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """path: for messages."""
        self._path, self._manifest = path, manifest
        self._names = manifest.rows if manifest.methods else frozenset[str]()
        self._first_blocks, self._grown = manifest.first_blocks, bool(manifest.grown)
        self._rounds = LARGEST if manifest.rounds is None else manifest.rounds
        self._blocks = LARGEST if manifest.blocks is None else manifest.blocks
        self._shards = len(manifest.shards)
        self._known = set(manifest.part.cases) if manifest.part else set[str]()
        self._replayed = manifest.config.engine.kind in (EngineKind.REPLAY, EngineKind.TIMED)
        self._loaded = manifest.config.load.kind != LoadKind.ONE
        self._line, self._number = 0, -1
        self._cases: dict[str, _Case] = {}
        self._places: dict[tuple[str, int], _Place] = {}
        self._block: _Lines = []
        self._methods: dict[str, int] = {}  # of the block -> their records

    def check(self, record: CaseRecord) -> None:
        """Check the next record. Raises InputError if it contradicts the manifest, or the records
        before it.
        """
        self._line += 1
        place = self._places.setdefault(
            (record.case, record.round), _Place(record.block, self._line)
        )
        self._check_place(record, place)
        self._check_case(record)
        if record.block != self._number:
            self._close(complete=True)
            if record.block != (self._number + 1):
                self._refuse(
                    f"block is {record.block}, after block {self._number}; blocks are numbered"
                    " from 0"
                )
            self._number = record.block
        elif not self._loaded and record.case != self._block[0][1].case:
            line, first = self._block[0]
            self._refuse(
                f"case of block {record.block} is {record.case}, on line {line} it is {first.case}"
            )
        elif record.round != self._block[0][1].round:
            line, first = self._block[0]
            self._refuse(
                f"round of block {record.block} is {record.round}, on line {line} it is"
                f" {first.round}"
            )
        self._methods[record.method] = self._methods.get(record.method, 0) + 1
        if record.position != len(self._methods) - 1:
            self._refuse(
                f"position is {record.position}, {record.method} is method {len(self._methods) - 1}"
                " of its block, counted from 0"
            )
        place.block, place.lines[record.method] = record.block, self._line
        self._block.append((self._line, record))

    def end(self) -> None:
        """Check the last block, of which a kill may have cut the end."""
        self._close(complete=False)

    def _check_place(self, record: CaseRecord, place: _Place) -> None:
        """Refuse a record that is there, or that the manifest excludes."""
        line = place.lines.get(record.method)
        again = self._grown and record.method in REFERENCES
        if line is not None and not (again and not self._is_in_block(record, line)):
            self._refuse(
                f"case {record.case}, {record.method}, round {record.round} is on line {line}"
                " already"
            )
        if record.block != place.block and not self._grown:
            self._refuse_other("block", record, record.block, place.block, place.first)
        for name, number, count in (
            ("round", record.round, self._rounds),
            ("block", record.block, self._blocks),
            ("shard", record.shard, self._shards),
        ):
            if number is not None and number >= count:
                self._refuse(
                    f"{name} is {number}, counted from 0, and the manifest's {name}s are {count}"
                )
        if record.method not in self._names and self._names:
            known = ", ".join(sorted(self._names))
            self._refuse(f"method {record.method} is not in the manifest, which has {known}")
        if (record.stretch is not None) != self._loaded and record.status == "ok":
            has = "lacks its stretch" if self._loaded else "has a stretch"
            self._refuse(f"the record {has}, and load.kind is {self._manifest.config.load.kind}")

    def _is_in_block(self, record: CaseRecord, line: int) -> bool:
        """Returns whether a line is of the block that the record belongs to, if that is the
        latest.
        """
        return record.block == self._number and line >= self._block[0][0]

    def _check_case(self, record: CaseRecord) -> None:
        """Refuse another question than that of earlier records of the case."""
        case = self._cases.get(record.case)
        if case is None:
            case = self._cases[record.case] = _Case(record.category, record.subcategory, self._line)
            if self._known and record.case not in self._known:
                self._refuse(f"case {record.case} is not in the manifest's part.cases")
            if (
                self._manifest.suite.cases is not None
                and len(self._cases) > self._manifest.suite.cases
            ):
                self._refuse(
                    f"case {record.case} is one too many, the manifest's suite.cases are"
                    f" {self._manifest.suite.cases}"
                )
        if record.category != case.category:
            self._refuse_other("category", record, record.category, case.category, case.first)
        if record.subcategory != case.subcategory:
            self._refuse_other(
                "subcategory", record, record.subcategory, case.subcategory, case.first
            )
        if record.status == "ok":
            if not case.done:
                case.turns, case.done = len(record.turns), self._line
            elif len(record.turns) != case.turns:
                self._refuse_other(
                    "number of turns", record, len(record.turns), case.turns, case.done
                )

    def _refuse_other(
        self, name: str, record: CaseRecord, value: object, before: object, line: int
    ) -> NoReturn:
        self._refuse(f"{name} of case {record.case} is {value!r}, on line {line} it is {before!r}")

    def _close(self, complete: bool) -> None:
        """Check a block against itself. complete: another block follows, so that none of its
        records may be missing.
        """
        block, self._block = self._block, []
        methods, self._methods = self._methods, {}
        if not block:
            return
        if complete and self._names:
            self._require_all(block, methods)
        cases: dict[str, _Lines] = {}
        for entry in block if self._loaded else ():
            cases.setdefault(entry[1].case, []).append(entry)
        if complete and any(len(own) != len(methods) for own in cases.values()):
            self._refuse(f"block {self._number} has not the same cases under every method")
        for own in cases.values() or [block]:
            self._compare(own)

    def _require_all(self, block: _Lines, methods: dict[str, int]) -> None:
        """Refuse a block that lacks a method: each that the run had by then, and that the case was
        not done with.
        """
        line, first = block[0]
        place = self._places[first.case, first.round]
        done = {name for name, at in place.lines.items() if at < line}
        added = {name for name in self._names if self._first_blocks.get(name, 0) <= self._number}
        if lacking := (added - done | added & REFERENCES) - methods.keys():
            self._refuse(
                f"block {self._number}, from line {line}, lacks a record of"
                f" {', '.join(sorted(lacking))}"
            )

    def _compare(self, records: _Lines) -> None:
        """Compare a case's records in a block: their prompts, and their answers with vanilla's."""
        start, base = records[0]
        vanilla = next((each for _, each in records if each.method == VANILLA), None)
        done = vanilla is not None and vanilla.status == "ok"
        for line, record in records:
            for place, (one, two) in enumerate(zip(base.turns, record.turns, strict=False)):
                if one.prompt_tokens != two.prompt_tokens:
                    before, after = one.prompt_tokens, two.prompt_tokens
                    fault = (
                        f"turns.{place}.prompt_tokens is {after}, on line {start} it is {before}"
                    )
                    self._refuse(f"{fault} after equal answers", line)
                if one.text != two.text:  # the next prompt contains it
                    break
            verdict = record.lossless
            if (
                vanilla is None
                or record.status != "ok"
                or not (verdict or (self._replayed and done))
            ):
                continue
            diverged = find_divergence(vanilla, record) if done and record is not vanilla else None
            if verdict is None:
                if diverged:
                    self._refuse(
                        f"the ids at {diverged} are not vanilla's, and both replay one answer", line
                    )
            elif verdict.divergence != diverged or verdict.equal != (done and diverged is None):
                found = (
                    f"equal is {json.dumps(verdict.equal)}, divergence"
                    f" {json.dumps(verdict.divergence)}"
                )
                truth = f"not vanilla's from {diverged} on" if diverged else "vanilla's"
                self._refuse(
                    f"lossless.{found}, but"
                    f" {f'the answer is {truth}' if done else 'vanilla failed'}",
                    line,
                )

    def _refuse(self, fault: str, line: int | None = None) -> NoReturn:
        raise InputError(
            f"{self._path}, line {line or self._line}: {fault}; expected the records of one run"
        )


def check_records(path: Path, manifest: Manifest, records: Sequence[CaseRecord]) -> None:
    """Check all records of a run. path: of their file. Raises InputError."""
    consistency = Consistency(path, manifest)
    for record in records:
        consistency.check(record)
    consistency.end()
