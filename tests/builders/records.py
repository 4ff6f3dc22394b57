"""Records and traces written by hand, small enough to work out every figure on paper."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specbench.records.record import CaseRecord, Lossless, TurnRecord

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
    } | changes
    left_s = max(0.0, values["decode_s"] - 0.75)
    values.setdefault("phases_s", {"draft": 0.25, "forward": 0.5, "rest": left_s})
    return TurnRecord(**values)


def record(
    method: str, case: str, turns: list[TurnRecord], category: str = "qa", **changes: Any
) -> CaseRecord:
    values = {"round": 0, "block": 0, "position": 0, "status": "ok", "lossless": EQUAL} | changes
    return CaseRecord(
        case=case, category=category, subcategory=category, method=method, turns=turns, **values
    )


def failed(method: str, case: str, category: str = "qa", **changes: Any) -> CaseRecord:
    error = {"type": "ValueError", "message": "no", "traceback": "...", "turn": 0}
    return record(method, case, [], category, status="error", error=error, lossless=None, **changes)


def write_json_lines(path: Path, rows: Iterable[object]) -> Path:
    """Write one JSON value a line and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_chat(path: Path, conversations: Iterable[tuple[str, str]]) -> Path:
    """Write a chat log of one question and one answer a line and return the path."""
    roles = ("user", "assistant")
    logs = (
        [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)]
        for pair in conversations
    )
    return write_json_lines(path, ({"messages": messages} for messages in logs))
