"""A run's own ``records.jsonl`` as a trace: vanilla's rows hold the ids of every prompt and answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from specbench.record import VANILLA, CaseRecord
from specbench.store import MANIFEST, RunError, read_manifest, read_records
from specbench.trace.recorded import Recorded, RecordedTurn
from specbench.types import Case, InputError


def read(path: Path) -> tuple[list[Recorded], frozenset[int], int]:
    """Vanilla's first decoding of every case, the ids that ended an answer, and how many cases failed in it.

    Raises InputError, also where two records are of one case.
    """
    try:
        records = read_records(path)
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
    first = [entry for entry in records if entry.method == VANILLA and entry.round == 0]
    twice = [case for case, count in Counter(entry.case for entry in first).items() if count > 1]
    if twice:
        raise InputError(f"model.trace={path}: case {twice[0]} is recorded twice; expected the records of one run")
    kept = [entry for entry in first if entry.status == "ok"]
    kept = [entry for entry in kept if all(turn.prompt_ids for turn in entry.turns)]
    if not kept:
        raise InputError(
            f"model.trace={path}: holds no good record of {VANILLA} with its prompts; expected the records.jsonl of a"
            " run of specbench"
        )
    ends = {turn.ids[-1] for entry in kept for turn in entry.turns if turn.finish == "eos"}
    return [_recorded(entry) for entry in kept], frozenset(ends), len(first) - len(kept)


def _recorded(record: CaseRecord) -> Recorded:
    case = Case(record.case, record.category, ("",) * len(record.turns), record.subcategory)
    turns = (RecordedTurn.of(turn.prompt_ids or (), turn.ids, turn.text) for turn in record.turns)
    return Recorded(case, tuple(turns))


def model_of(path: Path) -> dict[str, Any]:
    """The model section of the manifest of the run that wrote ``path``; empty when it is gone."""
    if not (path.parent / MANIFEST).is_file():
        return {}
    try:
        return dict(read_manifest(path.parent).get("model", {}))
    except RunError as error:
        raise InputError(f"model.trace: {error}") from error
