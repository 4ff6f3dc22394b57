"""Records written by hand, small enough to work out every figure on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specbench.records.record import CaseRecord, Lossless, TurnRecord
from specbench.records.store import Run
from specbench.report import gather
from specbench.report.frames.summary import COLUMNS
from specbench.report.frames.trials import MethodTrials, read_trials

EQUAL = Lossless(True, None, 10, 0, 0, 0.0)


def turn(accept: list[int], proposed: list[int] | None = None, **changes: Any) -> TurnRecord:
    """A turn that emits 1 + sum(accept) tokens."""
    proposed = [0] * len(accept) if proposed is None else proposed
    values: dict[str, Any] = {
        "prompt_tokens": 5,
        "ids": list(range(1 + sum(accept))),
        "finish": "length",
        "accept": accept,
        "proposed": proposed,
        "depth": proposed,
        "fed": [count + 1 for count in proposed],
        "prefill_s": 0.5,
        "decode_s": 1.0,
        "phases_s": {"draft": 0.25, "forward": 0.5},
    }
    return TurnRecord(**values | changes)


def record(method: str, case: str, turns: list[TurnRecord], category: str = "qa", **changes: Any) -> CaseRecord:
    values = {"round": 0, "block": 0, "position": 0, "status": "ok", "lossless": EQUAL} | changes
    return CaseRecord(case=case, category=category, subcategory=category, method=method, turns=turns, **values)


def failed(method: str, case: str, category: str = "qa", **changes: Any) -> CaseRecord:
    error = {"type": "ValueError", "message": "no", "traceback": "...", "turn": 0}
    return record(method, case, [], category, status="error", error=error, lossless=None, **changes)


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
