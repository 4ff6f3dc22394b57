"""Figures of records that ``builders.records`` writes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.records import EQUAL, failed, record, turn
from specbench.records.record import CaseRecord
from specbench.records.store import Run
from specbench.report import gather
from specbench.report.frames.summary import COLUMNS
from specbench.report.frames.trials import MethodTrials, read_trials

__all__ = ["EQUAL", "failed", "record", "rows_of", "tried", "turn"]


def tried(records: list[CaseRecord]) -> MethodTrials:
    """The trials of one method."""
    found = read_trials(records)
    return found.of(next(iter(found.methods), ""))


def rows_of(
    records: list[CaseRecord], manifest: dict[str, Any], directory: str = "runs/one"
) -> dict[tuple[str, str], dict[str, Any]]:
    """(category, method) -> row of the summary of one run."""
    frame = gather([Run(Path(directory), manifest, records)]).summary
    assert tuple(frame.columns) == COLUMNS
    return {(row["category"], row["method"]): row for row in frame.to_dict("records")}
