"""The decode steps and turns of one method, in the order of its records.

A step is a few numbers, but a run of a million answers has hundreds of millions of them, so many
steps are kept in a temporary file. They are read in blocks of whole records; a sum over them is the
sum of the blocks' sums.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.records.record import PREFIX, CaseRecord, TurnRecord
from specbench.report.frames.counting import Requests, as_requests, count_request, first_s

Floats = NDArray[np.float64]
# Of a step: the record, in the order in which they were added, tokens in the cache before it
# (prompt and answer but for the root), tokens emitted before it, and the record's own columns;
# thinks: it began before the thinking's end; seconds are NaN if they were not recorded.
STEP = np.dtype(
    [
        *((name, "u4") for name in ("record", "context", "position", "fed", "emitted", "depth")),
        ("thinks", "?"),
        ("seconds", "f8"),
    ]
)
_PART, _BLOCK = 1 << 15, 1 << 19  # steps written at once, and read at once
_MEMORY_BYTES = 1 << 25  # of one run, before they go to the disk


def open_spool() -> Any:
    """A file for the steps of a run's methods."""
    return SpooledTemporaryFile(max_size=_MEMORY_BYTES)


class Steps:
    """Steps that are appended turn by turn. timed: how many have their seconds."""

    def __init__(self, spool: Any) -> None:
        """spool: where they are written; other methods write there too."""
        self._spool = spool
        self._parts: list[tuple[int, int]] = []  # place [bytes] and steps of each
        # Of those not yet written: record, prompt, context at the start, steps, tokens of thinking.
        self._turns: list[tuple[int, int, int, int, int]] = []
        self.thinks = False  # any of them
        self._waiting: dict[str, list[Any]] = {
            name: [] for name in ("emitted", "fed", "depth", "seconds")
        }
        self._written = self.timed = self._records = 0

    def __len__(self) -> int:
        return self._written + len(self._waiting["emitted"])

    def add(self, turns: Sequence[TurnRecord]) -> None:
        """Append the steps of a record."""
        waiting = self._waiting
        for turn in turns:
            if turn.accept:
                prompt = turn.prompt_tokens
                thinking = turn.thinking or 0
                self._turns.append(
                    (self._records, prompt, prompt - turn.in_prefill, len(turn.accept), thinking)
                )
                self.thinks |= thinking > 0
            waiting["emitted"] += turn.accept
            waiting["fed"] += turn.fed
            waiting["depth"] += turn.depth
            waiting["seconds"] += turn.step_s or [float("nan")] * len(turn.accept)
            self.timed += len(turn.step_s)
        self._records += 1
        if len(waiting["emitted"]) >= _PART:
            self._write()

    def _write(self) -> None:
        steps = np.empty(len(self._waiting["emitted"]), STEP)
        for name, values in self._waiting.items():
            steps[name] = values
            values.clear()
        records, prompts, starts, counts, thinking = np.array(self._turns).T
        emitted = steps["emitted"].astype(np.int64)
        before = np.cumsum(emitted) - emitted
        before -= np.repeat(before[np.cumsum(counts) - counts], counts)
        steps["record"] = np.repeat(records, counts)
        steps["context"] = context = np.repeat(starts, counts) + before
        steps["position"] = np.maximum(context - np.repeat(prompts, counts), 0)
        steps["thinks"] = context - np.repeat(prompts, counts) + 1 < np.repeat(thinking, counts)
        self._turns.clear()
        self._parts.append((self._spool.seek(0, 2), len(steps)))
        self._spool.write(steps.tobytes())
        self._written += len(steps)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """(S,) ``STEP``, whole records each."""
        if self._waiting["emitted"]:
            self._write()
        parts: list[NDArray[Any]] = []
        for place, count in self._parts:
            self._spool.seek(place)
            parts.append(np.frombuffer(self._spool.read(count * STEP.itemsize), STEP))
            if sum(map(len, parts)) >= _BLOCK:
                yield np.concatenate(parts)
                parts = []
        if parts:
            yield np.concatenate(parts)

    def read(self, *names: str) -> Iterator[tuple[Floats, ...]]:
        """(S,) columns, block by block."""
        return (tuple(block[name].astype(np.float64) for name in names) for block in self.blocks())

    def seconds(self) -> Floats:
        """(S,) of the steps that have them; of one method they fit into memory."""
        return np.concatenate([seconds[~np.isnan(seconds)] for (seconds,) in self.read("seconds")])

    def count(self, *names: str) -> Counter[tuple[int, ...]]:
        """The number of steps that have these values."""
        found: Counter[tuple[int, ...]] = Counter()
        for columns in self.read(*names):
            rows = pd.DataFrame(dict(zip(names, columns, strict=True))).astype(int)
            found.update(rows.value_counts(sort=False).to_dict())
        return found


def contexts_of_tokens(context: Floats, emitted: Floats) -> Floats:
    """(E,) the context of every emitted token. context, emitted: (S,) of the steps."""
    counts = emitted.astype(np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(context, counts) + within, dtype=np.float64)


def median(counts: Mapping[int, int]) -> float:
    """``np.median`` of values that are given by how often each is there."""
    values = np.array(sorted(counts))
    ends = np.cumsum([counts[value] for value in values.tolist()])
    middle = np.searchsorted(ends, ((ends[-1] - 1) // 2, ends[-1] // 2), side="right")
    return float(values[middle].mean())


# of a turn's own figures: tokens in the method's state when the request began
CACHED = "cached_tokens"


class StateSize(NamedTuple):
    """Tokens in a method's state when a case began. place: of the record among those that count."""

    case: str
    category: str
    block: int
    place: int
    tokens: float


class Turns:
    """Turns that are added record by record, of cases that failed in no round.

    sources: name -> nodes proposed and accepted. figures: a method's own figure -> one value per
    turn that has it. state_sizes: of each record that has one. thought: turns that think;
    unanswered: those of them that have no answer.
    """

    def __init__(self, spool: Any) -> None:
        """spool: of the run's steps."""
        self.steps = Steps(spool)
        self.sources: dict[str, tuple[int, int]] = {}
        self.figures: dict[str, array[float]] = {}
        self.state_sizes: list[StateSize] = []
        self._first_s, self._per_token_s = array("d"), array("d")
        self._requests, self._places = array("I"), array("I")
        self._spent_s = array("d")
        self._records = 0
        self.thought = self.unanswered = 0

    def __len__(self) -> int:
        """Records."""
        return self._records

    @property
    def first_s(self) -> Floats:
        """(T,) [s] to the first token of each turn."""
        return np.asarray(self._first_s)

    @property
    def per_token_s(self) -> Floats:
        """[s] a token in each turn that decoded any."""
        return np.asarray(self._per_token_s)

    @property
    def requests(self) -> Requests:
        """The counts of each turn that engines and harnesses report."""
        return as_requests(np.asarray(self._requests))

    @property
    def places(self) -> NDArray[Any]:
        """(T, 3) of each turn its number from 1, the tokens of its prompt, and those of them that
        were in the cache.
        """
        return np.asarray(self._places).reshape(-1, 3)

    @property
    def spent_s(self) -> Floats:
        """(T, 2) [s] of each turn: its prefill and its decoding."""
        return np.asarray(self._spent_s).reshape(-1, 2)

    def add(self, record: CaseRecord) -> None:
        """The turns of a record."""
        for number, turn in enumerate(record.turns, start=1):
            emitted = sum(turn.accept)
            self._places.extend((number, turn.prompt_tokens, int(turn.stats.get(PREFIX, 0))))
            self._spent_s.extend((turn.prefill_s, turn.decode_s))
            self.thought += turn.thinking is not None
            self.unanswered += turn.thinking == len(turn.ids)
            self._first_s.append(first_s(turn))
            self._requests.extend(count_request(self._records, turn))
            if emitted:
                self._per_token_s.append(turn.decode_s / emitted)
            for name, (offered, taken) in turn.sources.items():
                proposed, accepted = self.sources.get(name, (0, 0))
                self.sources[name] = proposed + offered, accepted + taken
            for name, value in turn.stats.items():
                self.figures.setdefault(name, array("d")).append(value)
        if record.turns and CACHED in record.turns[0].stats:
            tokens = record.turns[0].stats[CACHED]
            self.state_sizes.append(
                StateSize(record.case, record.category, record.block, self._records, tokens)
            )
        self.steps.add(record.turns)
        self._records += 1
