"""Runs that tests stop, resume, change and compare: a small replayed trace, and records without
their times.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders.runs import repeating_lines, replay_settings
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS


def replay_of(folder: Path, cases: int) -> tuple[str, ...]:
    """Settings of a replay of so many conversations, which are written into ``folder``; no model is
    loaded.
    """
    return replay_settings(folder / "t.jsonl", repeating_lines(cases))


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
    turns = [
        (turn.ids, turn.accept, turn.proposed, turn.fed, turn.finish, turn.sources)
        for turn in record.turns
    ]
    place = (record.case, record.method, record.round, record.block, record.position)
    return (*place, record.status, turns, record.lossless)
