"""The record that a run writes for each (case, method, round): one line of JSON with raw figures.

Every printed number is computed from records. They can be read without torch and pandas. Times are in seconds. The
steps of a turn are its decode forwards; the prefill and its token are kept apart (``prefill_s``; the first of ``ids``).
The classes are the schema that a line is checked against when it is read: its types, finite numbers, and lists of equal
length.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from specbench.input import InputError, parse_as

SCHEMA = 1
VANILLA = "vanilla"
CONTROL = "vanilla_aa"  # vanilla a second time: the A/A control
OVERALL = "overall"  # the row of all categories in tables: no category may have this name
PHASES = ("prepare", "draft", "forward", "verify", "update")
EXACT = ConfigDict(extra="forbid")
LARGEST = 2**31 - 1
# entries of a merged run, of a run under load, of checked answers, of thinking models; absent in other records
_ADDED = ("shard", "stretch", "load", "correct", "thinking")
_SLACK, _SLACK_S = 1.1, 0.01  # factor and time [s] by which the clocks of GPU and host may differ
_FIX = "expected a record as specbench writes it; restore the file, or begin anew with measure.fresh=true"

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Tokens = list[Count]  # ids of a vocabulary
Emitted = Annotated[int, Field(ge=1, le=LARGEST)]
Nodes = Annotated[int, Field(ge=0, le=1 << 16)]  # far above any engine.max_nodes
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Figure = Annotated[float, Field(ge=-1e18, le=1e18)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class EngineKind(StrEnum):
    """A value of ``engine.kind``. auto: fast where it can drive the model, else eager."""

    AUTO = "auto"
    FAST = "fast"
    EAGER = "eager"
    REPLAY = "replay"
    TIMED = "timed"
    SERVER = "server"


class TreeRecord(TypedDict):
    """A whole draft: tokens, parents and path as in ``Draft`` and ``Step``.

    sources: name -> nodes, where the method names any. passengers: nodes, where the draft may have some. late: where
    the step's last token was the first of a late chain.
    """

    __pydantic_config__ = EXACT  # type: ignore[misc]

    tokens: Tokens
    parents: list[int]
    path: list[Nodes]
    sources: NotRequired[dict[str, list[Nodes]]]
    passengers: NotRequired[list[Nodes]]
    late: NotRequired[bool]


class TurnLoad(TypedDict):
    """A turn that shared a server with other requests.

    arrival_s: intended arrival, since the stretch began. queue_s: wait until the prompt was read. requests, rows:
    (steps,) how many each of its forwards had. ``prefill_s`` of such a turn counts from when the prompt began to be
    read, ``step_s`` is the time between its bursts, and ``phases_s`` are those of all requests together.
    """

    arrival_s: Seconds
    queue_s: Seconds
    requests: list[Count]
    rows: list[Count]


class StretchRecord(TypedDict):
    """The work of a server from the first measured arrival to the last measured end; equal in all records of a stretch.

    tokens: emitted to any request. forwards: how many. requests, rows: sums over the forwards.
    """

    seconds: Seconds
    tokens: Count
    forwards: Count
    requests: Count
    rows: Count


@dataclass(slots=True)
class TurnRecord:
    """One turn of one case, decoded by one method.

    ids: every emitted token, the prefill's first, cut at the first EOS. finish: eos | length | context.
    accept: (steps,) tokens emitted by each decode step. proposed: (steps,) non-passenger nodes.
    depth: (steps,) deepest non-passenger node, 1-based, 0 = no draft. fed: (steps,) rows fed to the target.
    step_s: (steps,) time of each decode step, drafting included, and in the first what the method learns from the
    prompt; empty in records of older runs.
    sources: name -> [proposed nodes, accepted nodes]. prefill_s, decode_s: wall time; phases_s: parts of decoding.
    energy_j: [J] of the GPUs, None where nothing counts it.
    trees: (steps,) whole drafts of a sample of cases. load: under load only. thinking: ids up to the thinking's end.
    """

    __pydantic_config__ = EXACT

    prompt_tokens: Count
    ids: Tokens
    finish: Literal["eos", "length", "context"]
    accept: list[Emitted]
    proposed: list[Nodes]
    depth: list[Nodes]
    fed: list[Nodes]
    prefill_s: Seconds
    decode_s: Seconds
    phases_s: dict[str, Seconds]
    text: str = ""
    sources: dict[str, Pair] = field(default_factory=dict)
    stats: dict[str, Figure] = field(default_factory=dict)
    prompt_ids: Tokens | None = None  # in vanilla's records only: the run doubles as a trace
    trees: list[TreeRecord] | None = None
    step_s: list[Seconds] = field(default_factory=list)
    energy_j: Amount | None = None
    load: TurnLoad | None = None
    thinking: Count | None = None

    @property
    def in_prefill(self) -> bool:
        """True if the first step verified its draft with the prompt, so that no token was emitted before it."""
        return bool(self.accept) and sum(self.accept) == len(self.ids)

    @property
    def wall_s(self) -> float:
        """Time of the whole turn [s]."""
        return self.prefill_s + self.decode_s

    def find_fault(self) -> str | None:
        """The first entry that contradicts the rest of the turn; None for a consistent turn."""
        lengths = [len(column) for column in (self.accept, self.proposed, self.depth, self.fed)]
        lengths += [len(column) for column in (self.step_s, self.trees) if column]
        lengths += [len(self.load[name]) for name in ("requests", "rows")] if self.load else []
        if len(set(lengths)) > 1:
            return f"accept, proposed, depth, fed, step_s and trees have lengths {lengths}, one entry a step each"
        if not self.ids:
            return "ids is empty, the prefill gives one"
        if (self.thinking or 0) > len(self.ids):
            return f"thinking is {self.thinking}, ids are {len(self.ids)}"
        # the loop of a library, which records no phases, may emit several tokens before its first step
        if not (len(self.ids) - 1 if self.phases_s else 0) <= sum(self.accept) <= len(self.ids):
            return f"accept adds up to {sum(self.accept)}, ids behind the prefill's are {len(self.ids) - 1}"
        for step, tree in enumerate(self.trees or ()):
            if fault := _fault_of_tree(tree):
                return f"trees.{step}.{fault}"
        return self._find_impossible()

    def _find_impossible(self) -> str | None:
        """A step that emits more than a path of its draft and one token, or parts that take longer than the turn."""
        # the drafts of a library's loop, which records no phases, are unknown
        for step, (emitted, depth) in enumerate(zip(self.accept, self.depth, strict=True)):
            if self.phases_s and emitted > depth + 1:
                return f"accept.{step} is {emitted}, a draft of depth {depth} gives at most {depth + 1}"
        for name, (proposed, accepted) in self.sources.items():
            if accepted > proposed:
                return f"sources.{name} has {accepted} accepted nodes of {proposed} proposed ones"
        for name, spent in (("step_s", sum(self.step_s)), ("phases_s", sum(self.phases_s.values()))):
            if spent > _SLACK * self.wall_s + _SLACK_S:
                return f"{name} adds up to {spent:g} s, the whole turn took {self.wall_s:g} s"
        return None


class Failure(TypedDict):
    """Why a case failed. turn: the number of the turn that raised."""

    type: str
    message: str
    traceback: str
    turn: Count


@dataclass(slots=True)
class Lossless:
    """The token-level comparison of one record with vanilla (see specbench/measure/lossless.py).

    equal: ids equal vanilla's in every turn. divergence: [turn, position] of the first difference.
    positions: ids judged by teacher forcing; ties: not the argmax but within the tolerance; violations: beyond it.
    worst_gap: the largest logit gap between the argmax and the emitted id.
    close_steps: decode steps with an id that is within a rounding step of its best rival; None in older records.
    """

    __pydantic_config__ = EXACT

    equal: bool
    divergence: Pair | None
    positions: Count
    ties: Count
    violations: Count
    worst_gap: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    close_steps: Count | None = None

    def find_fault(self, turns: Sequence[TurnRecord]) -> str | None:
        """The first entry that contradicts the others, or the turns that were judged; None without one."""
        if self.ties + self.violations > self.positions:
            return f"ties {self.ties} and violations {self.violations} are more than the {self.positions} positions"
        steps = sum(len(turn.accept) for turn in turns)
        if self.close_steps is not None and self.close_steps > steps:
            return f"close_steps is {self.close_steps} of {steps} steps"
        if self.divergence is None:
            return None
        turn, place = self.divergence
        if self.equal or turn >= len(turns) or place > len(turns[turn].ids):
            return f"divergence is {self.divergence}, expected null where equal is true, else a place in the ids"
        return None


@dataclass(slots=True)
class CaseRecord:
    """One case, decoded by one method in one round. position: place within its block, 0 = ran first.

    shard: in a merged run, the index in the manifest's ``shards`` of the shard that measured it. stretch: under load.
    correct: whether the last answer has the reference's number; None without a reference, and in older records.
    """

    __pydantic_config__ = EXACT

    case: str
    category: str
    subcategory: str
    method: Annotated[str, Field(min_length=1)]
    round: Count
    block: Annotated[int, Field(ge=-1, le=LARGEST)]  # -1: of the warm-up, never written
    position: Count
    status: Literal["ok", "error"]
    turns: list[TurnRecord]
    lossless: Lossless | None = None
    state_bytes: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    error: Failure | None = None
    shard: Count | None = None
    stretch: StretchRecord | None = None
    correct: bool | None = None

    def to_json(self) -> str:
        """The record as one line, without its newline."""
        return json.dumps(_fields(self), default=_fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: bytes | str, where: str = "record") -> CaseRecord:
        """The inverse of ``to_json``, checked against the schema. Raises InputError, which begins with ``where``."""
        text = line.encode("utf-8") if isinstance(line, str) else line
        record = parse_as(CaseRecord, text, where, _FIX)
        if fault := record.find_fault():
            raise InputError(f"{where}: {fault}; {_FIX}")
        return record

    def find_fault(self) -> str | None:
        """The first entry that contradicts the rest of the record; None for a consistent record."""
        if self.status == "ok" and not self.turns:
            return "turns is empty though its status is ok"
        if (self.status == "ok") != (self.error is None):
            return "an error goes with status error, and with no other"
        if OVERALL in (self.category, self.subcategory):
            return f"category {OVERALL!r} is the row of all categories"
        if self.method in (VANILLA, CONTROL) and any(emitted > 1 for turn in self.turns for emitted in turn.accept):
            return f"accept has a step of several tokens, {self.method} emits one a step"
        if self.lossless and (fault := self.lossless.find_fault(self.turns)):
            return f"lossless.{fault}"
        faults = ((place, turn.find_fault()) for place, turn in enumerate(self.turns))
        return next((f"turns.{place}: {fault}" for place, fault in faults if fault), None)


def _fault_of_tree(tree: TreeRecord) -> str | None:
    nodes = len(tree["tokens"])
    if len(tree["parents"]) != nodes or any(not -1 <= parent < node for node, parent in enumerate(tree["parents"])):
        return f"parents are not those of {nodes} tokens, each -1 or an earlier node"
    named = [tree["path"], tree.get("passengers", []), *tree.get("sources", {}).values()]
    if any(node >= nodes for each in named for node in each):
        return f"path, passengers or sources name a node beyond its {nodes}"
    return None


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, without the deep copy that ``asdict`` makes of every list."""
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"a {type(value).__name__} cannot be written to a record")
    values = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    return {name: value for name, value in values.items() if value is not None or name not in _ADDED}
