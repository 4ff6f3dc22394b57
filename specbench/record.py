"""What a run writes, one line of JSON a (case, method, round): raw figures only, every printed number comes from here.

No torch, no pandas: a record can be read anywhere. Times are seconds. ``steps`` of a turn are its decode forwards; the
prefill and its token stand apart (``prefill_s``; the first of ``ids``).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = 1
VANILLA = "vanilla"
CONTROL = "vanilla_aa"  # vanilla a second time: the A/A control
OVERALL = "overall"  # the row of all categories in tables: no category may have this name
PHASES = ("prepare", "draft", "forward", "verify", "update")


class EngineKind(StrEnum):
    """Value of ``engine.kind``. auto: fast where it can drive the model, else eager."""

    AUTO = "auto"
    FAST = "fast"
    EAGER = "eager"
    REPLAY = "replay"
    TIMED = "timed"


@dataclass(slots=True)
class TurnRecord:
    """One turn of one case under one method.

    ids: every emitted token, the prefill's first, cut at the first EOS. finish: eos | length | context.
    accept: (steps,) tokens emitted by each decode step. proposed: (steps,) non-passenger nodes.
    depth: (steps,) deepest non-passenger node, 1-based, 0 = no draft. fed: (steps,) rows fed to the target.
    step_s: (steps,) time of each decode step, drafting included, and in the first what the method learns from the
    prompt; empty in records of older runs.
    sources: name -> [proposed nodes, accepted nodes]. prefill_s, decode_s: wall time; phases_s: parts of decoding.
    energy_j: [J] of the GPUs, None where nothing counts it.
    trees: (steps,) whole drafts of a sample of cases, each {tokens, parents, path} as in ``Draft`` and ``Step``, with
    {sources: name -> nodes} where the method names any, {passengers: nodes} where the draft may have some, and
    {late: true} where the step's last token was the first of a late chain.
    """

    prompt_tokens: int
    ids: list[int]
    finish: str
    accept: list[int]
    proposed: list[int]
    depth: list[int]
    fed: list[int]
    prefill_s: float
    decode_s: float
    phases_s: dict[str, float]
    text: str = ""
    sources: dict[str, list[int]] = field(default_factory=dict)
    stats: dict[str, float] = field(default_factory=dict)
    prompt_ids: list[int] | None = None  # in vanilla's records only: the run doubles as a trace
    trees: list[dict[str, Any]] | None = None
    step_s: list[float] = field(default_factory=list)
    energy_j: float | None = None

    @property
    def in_prefill(self) -> bool:
        """The first step verified its draft with the prompt's last token: no token was emitted before it."""
        return bool(self.accept) and sum(self.accept) == len(self.ids)


@dataclass(slots=True)
class Lossless:
    """Token-level judgement of one record against vanilla (see specbench/lossless.py).

    equal: ids equal vanilla's in every turn. divergence: [turn, position] of the first difference.
    positions: ids judged by teacher forcing; ties: not the argmax but within the tolerance; violations: beyond it.
    worst_gap: the largest logit gap between the argmax and the emitted id.
    """

    equal: bool
    divergence: list[int] | None
    positions: int
    ties: int
    violations: int
    worst_gap: float


@dataclass(slots=True)
class CaseRecord:
    """One case under one method in one round. position: place within its block, 0 = ran first."""

    case: str
    category: str
    subcategory: str
    method: str
    round: int
    block: int
    position: int
    status: str  # ok | error
    turns: list[TurnRecord]
    lossless: Lossless | None = None
    state_bytes: int = 0
    error: dict[str, Any] | None = None  # {type, message, traceback, turn}

    def to_json(self) -> str:
        """One line, no newline inside."""
        return json.dumps(self, default=_fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> CaseRecord:
        """Inverse of ``to_json``; raises ValueError on a line that is not a record."""
        raw = json.loads(line)
        try:
            raw["turns"] = [TurnRecord(**turn) for turn in raw["turns"]]
            raw["lossless"] = Lossless(**raw["lossless"]) if raw["lossless"] else None
            return cls(**raw)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a specbench record: {error}") from error


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass as its fields, without the deep copy that ``asdict`` makes of every list."""
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"a {type(value).__name__} cannot be written to a record")
    return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
