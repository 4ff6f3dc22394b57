"""The check of a run's records against each other and against its manifest, in the order of the
file.

A record alone is checked by ``CaseRecord.find_fault``. Here a block must be one that the run could
have written: its number follows, it has every method, all of its records have the same questions,
and the results of the lossless check agree with the ids. The records of one block are kept, and a
little of each case.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

from specbench.input import InputError
from specbench.records.manifest import Manifest
from specbench.records.record import (
    REFERENCES,
    VANILLA,
    CaseRecord,
    EngineKind,
    LoadKind,
    find_divergence,
)

_Lines = list[tuple[int, CaseRecord]]  # with their numbers


class Consistency:
    """The check of the records of one run."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """path: for messages."""
        self._path = path
        self._names = manifest.rows if manifest.methods else frozenset[str]()
        self._first_blocks, self._grown = manifest.first_blocks, bool(manifest.grown)
        self._replayed = manifest.config.engine.kind in (EngineKind.REPLAY, EngineKind.TIMED)
        self._loaded = manifest.config.load.kind != LoadKind.ONE
        self._line, self._number = 0, -1
        # (case, round) -> method -> its latest line
        self._places: dict[tuple[str, int], dict[str, int]] = {}
        self._block: _Lines = []
        self._methods: set[str] = set()  # of the block

    def check(self, record: CaseRecord) -> None:
        """Check the next record. Raises InputError if it contradicts the manifest, or the records
        before it.
        """
        self._line += 1
        lines = self._places.setdefault((record.case, record.round), {})
        self._check_place(record, lines.get(record.method))
        if record.block != self._number:
            self._close(complete=True)
            if record.block != (self._number + 1):
                self._refuse(
                    f"block is {record.block}, after block {self._number}; blocks are numbered"
                    " from 0"
                )
            self._number = record.block
        else:
            line, first = self._block[0]
            if record.round != first.round or not (self._loaded or record.case == first.case):
                self._refuse(
                    f"block {record.block} is case {record.case}, round {record.round}; on line"
                    f" {line} it is case {first.case}, round {first.round}"
                )
        self._methods.add(record.method)
        lines[record.method] = self._line
        self._block.append((self._line, record))

    def end(self) -> None:
        """Check the last block, of which a kill may have cut the end."""
        self._close(complete=False)

    def _check_place(self, record: CaseRecord, line: int | None) -> None:
        """Refuse a record that is there, on this line, or that the manifest excludes."""
        if line is not None and (
            not (self._grown and record.method in REFERENCES)
            or (record.block == self._number and line >= self._block[0][0])
        ):
            self._refuse(
                f"case {record.case}, {record.method}, round {record.round} is on line {line}"
                " already"
            )
        if record.method not in self._names and self._names:
            known = ", ".join(sorted(self._names))
            self._refuse(f"method {record.method} is not in the manifest, which has {known}")

    def _close(self, complete: bool) -> None:
        """Check a block against itself. complete: another block follows, so that none of its
        records may be missing.
        """
        block, self._block = self._block, []
        methods, self._methods = self._methods, set()
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

    def _require_all(self, block: _Lines, methods: set[str]) -> None:
        """Refuse a block that lacks a method: each that the run had by then, and that the case was
        not done with.
        """
        line, first = block[0]
        lines = self._places[first.case, first.round]
        done = {name for name, at in lines.items() if at < line}
        added = {name for name in self._names if self._first_blocks.get(name, 0) <= self._number}
        if lacking := (added - done | added & REFERENCES) - methods:
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
