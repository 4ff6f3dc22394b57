"""A run's own ``records.jsonl`` as a trace: vanilla's rows hold the ids of every prompt and answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specbench.record import VANILLA, CaseRecord
from specbench.store import MANIFEST, RunError, read_manifest, read_records
from specbench.trace.recorded import Recorded, RecordedTurn
from specbench.types import Case, InputError


def read(path: Path) -> tuple[list[Recorded], frozenset[int]]:
    """Vanilla's first decoding of every case, and the ids that ended an answer. Raises InputError."""
    try:
        records = read_records(path)
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
    kept = [entry for entry in records if entry.method == VANILLA and entry.status == "ok" and entry.round == 0]
    kept = [entry for entry in kept if all(turn.prompt_ids for turn in entry.turns)]
    if not kept:
        raise InputError(
            f"model.trace={path}: holds no good record of {VANILLA} with its prompts; expected the records.jsonl of a"
            " run of specbench"
        )
    ends = {turn.ids[-1] for entry in kept for turn in entry.turns if turn.finish == "eos"}
    return [_recorded(entry) for entry in kept], frozenset(ends)


def _recorded(record: CaseRecord) -> Recorded:
    case = Case(record.case, record.category, ("",) * len(record.turns), record.subcategory)
    turns = (RecordedTurn(tuple(turn.prompt_ids or ()), tuple(turn.ids), turn.text) for turn in record.turns)
    return Recorded(case, tuple(turns))


def model_of(path: Path) -> dict[str, Any]:
    """The model section of the manifest of the run that wrote ``path``; empty when it is gone."""
    if not (path.parent / MANIFEST).is_file():
        return {}
    try:
        return dict(read_manifest(path.parent).get("model", {}))
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
