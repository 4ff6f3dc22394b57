"""The record that a run writes for each (case, method, round): one line of JSON with raw figures.

Every printed number is computed from records. They can be read without torch and pandas. Times are
in seconds. The steps of a turn are its decode forwards; the prefill and its token are kept apart
(``prefill_s``; the first of ``ids``). The classes are the schema that a line is checked against
when it is read: its types, finite numbers, and lists of equal length.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from specbench.input import InputError, parse_as

SCHEMA = 1
VANILLA = "vanilla"
CONTROL = "vanilla_aa"  # vanilla a second time: the A/A control
# they run in every block, and the others are paired with them
REFERENCES = frozenset({VANILLA, CONTROL})
PREFIX = "prefix_tokens"  # figure of a turn: tokens of its prompt that were in the engine's cache
# figure of a turn for which a server returned text only; our tokenizer made its ids
TEXT_ONLY = "text_only"
OVERALL = "overall"  # the row of all categories in tables: no category may have this name
# When a method forgets. ``never``: at the start of every round, so that rounds can be compared.
# ``run``: only before the first block, so that a round is a second pass.
Reset = Literal["turn", "case", "category", "never", "run"]
PHASES = ("prepare", "draft", "forward", "verify", "update")
DRAFTER_PHASES = ("draft", "update")  # in which a drafter runs, and nothing else
EXACT = ConfigDict(extra="forbid")
LARGEST = 2**31 - 1
# entries of a merged run, of a run under load, of checked answers, of thinking models, of decoding
# on a CPU; absent in other records
_ADDED = ("shard", "stretch", "load", "correct", "thinking", "cpu_s")
_FIX = (
    "expected a record as specbench writes it; restore the file, or begin anew with"
    " measure.fresh=true"
)

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Tokens = list[Count]  # ids of a vocabulary
Emitted = Annotated[int, Field(ge=1, le=LARGEST)]
Nodes = Annotated[int, Field(ge=0, le=1 << 16)]  # far above any engine.max_nodes
# no clock can show when a run began: it may be set back
Seconds = Annotated[float, Field(ge=0, le=366 * 86_400)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Figure = Annotated[float, Field(ge=-1e18, le=1e18)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class EngineKind(StrEnum):
    """A value of ``engine.kind``. auto: fast if it can drive the model, else eager."""

    AUTO = "auto"
    FAST = "fast"
    EAGER = "eager"
    REPLAY = "replay"
    TIMED = "timed"
    SERVER = "server"


class LoadKind(StrEnum):
    """A value of ``load.kind``. one: request after request. closed: a constant number. Others: at
    arrival times.
    """

    ONE = "one"
    CLOSED = "closed"
    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"
    TRACE = "trace"


class Sink(StrEnum):
    """A value of ``report.to``: a place that a report is sent to. hub: files in the form of the
    Hugging Face hub.
    """

    MLFLOW = "mlflow"
    HUB = "hub"


class TreeRecord(TypedDict):
    """A complete draft: tokens, parents and path as in ``Draft`` and ``Step``.

    sources: name -> nodes, if the method names any. passengers: nodes, if the draft may have some.
    late: whether the step's last token was the first of a late chain.
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

    arrival_s: intended arrival, since the stretch began. queue_s: wait until the prompt was read.
    requests, rows: (steps,) how many each of its forwards had. ``prefill_s`` of such a turn counts
    from when the prompt began to be read, ``step_s`` is the time between its bursts, and
    ``phases_s`` are those of all requests together. burst_s: the longest of these times, of a
    remote server whose bursts are not steps, so that ``step_s`` is empty.
    """

    arrival_s: Seconds
    queue_s: Seconds
    requests: list[Count]
    rows: list[Count]
    burst_s: NotRequired[Seconds]


class StretchRecord(TypedDict):
    """The work of a server from the first measured arrival to the last measured end; equal in all
    records of a stretch.

    tokens: emitted to any request. forwards: how many. requests, rows: sums over the forwards.
    gauges: what a server reported of itself meanwhile, name -> [mean, largest] of the readings.
    """

    seconds: Seconds
    tokens: Count
    forwards: Count
    requests: Count
    rows: Count
    gauges: NotRequired[dict[str, Annotated[list[Amount], Field(min_length=2, max_length=2)]]]


@dataclass(slots=True)
class TurnRecord:
    """One turn of one case, decoded by one method.

    ids: every emitted token, the prefill's first, cut at the first EOS. finish: eos | length |
    context. accept: (steps,) tokens emitted by each decode step. proposed: (steps,) non-passenger
    nodes. depth: (steps,) deepest non-passenger node, 1-based, 0 = no draft. fed: (steps,) rows fed
    to the target. step_s: (steps,) time of each decode step, drafting included, and in the first
    what the method learns from the prompt; empty for a server whose bursts are not steps. sources:
    name -> [proposed nodes, accepted nodes]. prefill_s, decode_s: wall time; phases_s: parts of
    decoding. cpu_s: processor time of the decoding thread in this turn, which counts no other
    process; None on a GPU. energy_j: [J] of the GPUs, None if nothing counts it. trees: (steps,)
    complete drafts of a sample of cases. load: under load only. thinking: ids up to the thinking's
    end.
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
    cpu_s: Seconds | None = None

    @property
    def in_prefill(self) -> bool:
        """True if the first step verified its draft with the prompt, so that no token was emitted
        before it.
        """
        return bool(self.accept) and sum(self.accept) == len(self.ids)

    @property
    def wall_s(self) -> float:
        """Time of the complete turn [s]."""
        return self.prefill_s + self.decode_s

    def find_fault(self) -> str | None:
        """The first entry that contradicts the rest of the turn; None for a consistent turn."""
        lengths = [len(column) for column in (self.accept, self.proposed, self.depth, self.fed)]
        lengths += [len(column) for column in (self.step_s, self.trees) if column]
        lengths += [len(self.load[name]) for name in ("requests", "rows")] if self.load else []
        if len(set(lengths)) > 1:
            return (
                f"accept, proposed, depth, fed, step_s and trees have lengths {lengths}, one entry"
                " a step each"
            )
        if not self.ids:
            return "ids is empty, the prefill gives one"
        if self.prompt_ids is not None and len(self.prompt_ids) != self.prompt_tokens:
            return f"prompt_ids are {len(self.prompt_ids)}, prompt_tokens is {self.prompt_tokens}"
        # the loop of a library, which records no phases, may emit several tokens before its first
        # step
        if not (len(self.ids) - 1 if self.phases_s else 0) <= sum(self.accept) <= len(self.ids):
            return (
                f"accept adds up to {sum(self.accept)}, ids after the prefill's are"
                f" {len(self.ids) - 1}"
            )
        return self._find_wrong_step()

    def _find_wrong_step(self) -> str | None:
        """A step whose figures contradict each other: more tokens than a path of its draft and one,
        more nodes.
        """
        steps = self.accept, self.proposed, self.depth, self.fed
        plain = not any(self.proposed) and self.proposed == self.depth and self.accept == self.fed
        # most turns of vanilla, and nothing else to find in them
        if plain and sum(self.accept) == len(self.accept):
            steps = [], [], [], []
        for emitted, proposed, depth, fed in set(zip(*steps, strict=False)):  # most are alike
            # the drafts of a library's loop, which records no phases, are unknown
            if self.phases_s and emitted > depth + 1:
                fault = (
                    f"accept.{{}} is {emitted}, a draft of depth {depth} gives at most {depth + 1}"
                )
            elif fed <= proposed:
                fault = f"fed.{{}} is {fed}, expected a root and {proposed} proposed nodes"
            elif depth > proposed or bool(depth) != bool(proposed):
                fault = (
                    f"depth.{{}} is {depth}, a draft of {proposed} nodes has one on each of its"
                    " levels"
                )
            else:
                continue
            return fault.format(
                list(zip(*steps, strict=True)).index((emitted, proposed, depth, fed))
            )
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
    positions: ids checked by teacher forcing; ties: not the argmax but within the tolerance;
    violations: beyond it. worst_gap: the largest logit gap between the argmax and the emitted id.
    close_steps: decode steps with an id that is within a rounding step of its best rival; None
    without ids to check.
    """

    __pydantic_config__ = EXACT

    equal: bool
    divergence: Pair | None
    positions: Count
    ties: Count
    violations: Count
    worst_gap: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    close_steps: Count | None = None


@dataclass(slots=True)
class CaseRecord:
    """One case, decoded by one method in one round. position: place within its block, 0 = ran
    first.

    shard: in a merged run, the index in the manifest's ``shards`` of the shard that measured it.
    stretch: under load. correct: whether the last answer has the reference's number; None without a
    reference.
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

    @property
    def text_only(self) -> bool:
        """True if a server returned text only for some of its turns."""
        return any(TEXT_ONLY in turn.stats for turn in self.turns)

    def to_json(self) -> str:
        """The record as one line, without its newline."""
        return json.dumps(
            _fields(self),
            default=_fields,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, line: bytes | str, where: str = "record") -> CaseRecord:
        """The inverse of ``to_json``, checked against the schema. Raises InputError, which begins
        with ``where``.
        """
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
        if self.method in (VANILLA, CONTROL) and any(
            max(turn.accept, default=1) > 1 for turn in self.turns
        ):
            return f"accept has a step of several tokens, {self.method} emits one a step"
        faults = ((place, turn.find_fault()) for place, turn in enumerate(self.turns))
        return next((f"turns.{place}: {fault}" for place, fault in faults if fault), None)


def find_divergence(vanilla: CaseRecord, record: CaseRecord) -> list[int] | None:
    """Find the first place in which an answer is not vanilla's: the one rule for writing a verdict
    and reading it.

    Texts are compared if a server returned text only for one of the two, as different ids can spell
    one text.

    Returns:
        [turn, position] of the first id that differs, in the first turn that differs; None if the
        answers are equal.
    """
    by_text = None
    for turn, (ours, theirs) in enumerate(zip(record.turns, vanilla.turns, strict=True)):
        if ours.ids == theirs.ids and ours.text == theirs.text:
            continue
        by_text = record.text_only or vanilla.text_only if by_text is None else by_text
        if (ours.text != theirs.text) if by_text else (ours.ids != theirs.ids):
            same = [mine == other for mine, other in zip(ours.ids, theirs.ids, strict=False)]
            return [turn, (*same, False).index(False)]
    return None


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, without the deep copy that ``asdict`` makes of every list."""
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"a {type(value).__name__} cannot be written to a record")
    values = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    return {
        name: value for name, value in values.items() if value is not None or name not in _ADDED
    }
