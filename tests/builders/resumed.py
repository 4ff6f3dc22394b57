"""Runs that tests stop, resume, change and compare: a small replayed trace, and records without their times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.records import write_json_lines
from builders.runs import Stopped, job_for
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS
from specbench.runs.execution import execute


def replay_of(folder: Path, cases: int) -> tuple[str, ...]:
    """Settings of a replay of so many conversations, which are written into ``folder``; no model is loaded."""
    answers = [[5, 6, 7 + case, 5, 6, 7 + case, 5] * (1 + case) for case in range(cases)]
    rows = [
        {"case": str(case), "category": "ab"[case % 2], "turns": [{"prompt_ids": [1, 5, 6, 7 + case], "ids": ids}]}
        for case, ids in enumerate(answers)
    ]
    trace = write_json_lines(folder / "t.jsonl", rows)
    return "model=replay", f"model.trace={trace}", "model.tokenizer=bundled:tiny"


def watch_job(folder: Path, *overrides: str, stop_after: int | None = None) -> list[list[int]]:
    """Execute ``specbench OVERRIDES``; returns the blocks of each call of the observer.

    stop_after: raise inside the observer after so many blocks, those of an earlier process included.
    """
    seen: list[list[int]] = []

    def observe(records: list[CaseRecord], done: int, total: int) -> None:
        seen.append(sorted({record.block for record in records}))
        if stop_after is not None and sum(map(len, seen)) >= stop_after:
            raise Stopped

    if stop_after is None:
        execute(job_for(*overrides), folder, observe)
    else:
        with pytest.raises(Stopped):
            execute(job_for(*overrides), folder, observe)
    return seen


def edit_manifest(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a run."""
    values = json.loads((directory / MANIFEST).read_text())
    edit(values)
    (directory / MANIFEST).write_text(json.dumps(values))


def cut_records(directory: Path, lines: int) -> None:
    """Keep the first lines of the records; a negative number drops the last ones."""
    kept = (directory / RECORDS).read_bytes().splitlines(keepends=True)[:lines]
    (directory / RECORDS).write_bytes(b"".join(kept))


def counted(directory: Path) -> list[dict[str, Any]]:
    """The records without their times and without who measured them."""
    records = [json.loads(line) for line in (directory / RECORDS).read_text().splitlines()]
    for record in records:
        record.pop("shard", None)
        for turn in record["turns"]:
            for key in [key for key in turn if key.endswith("_s")]:
                del turn[key]
    return records


def timeless(record: CaseRecord) -> tuple:
    """Everything of a record that a repeated run must reproduce."""
    turns = [(turn.ids, turn.accept, turn.proposed, turn.fed, turn.finish, turn.sources) for turn in record.turns]
    place = (record.case, record.method, record.round, record.block, record.position)
    return (*place, record.status, turns, record.lossless)
