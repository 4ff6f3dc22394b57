"""The replay engine: recorded greedy tokens instead of a model.

Greedy decoding is a function of the context: whatever a drafter proposes, the target's picks along
the recorded answer are the recorded tokens, and nodes off that path are never accepted. Every
drafter that needs no logits therefore decodes exactly as with the model, at the cost of a few
comparisons a step.

The timed engines: they run the forwards of any model along a recorded answer (forced acceptance).

Acceptance compares every drafted token with the pick of its parent's row. So a step along a record
is a live step whose picks are replaced: forward, argmax, acceptance, compaction and read-back all
run, each once and on tensors of the same size, and the cache contains the keys and values of the
recorded path. The time of a step is the model's, its tokens are the record's. Beyond a live step
there is one copy of ids to the device; for a tree of the device's, their lookup there.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import (
    SILENT,
    Batch,
    Engine,
    Laps,
    Outcomes,
    Verdict,
    Verifier,
    require_place,
)
from specbench.models.facade import ModelCard
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.layout import DraftLayout
from specbench.models.transfer import upload
from specbench.models.verify import ActiveRequest, continues, cut, find_recorded_path
from specbench.records.record import EngineKind
from specbench.types import EMPTY, ROOT, CaseError, Draft, Needs, Prefill, Step


class ReplayEngine(Engine):
    """Replays one recorded answer at a time: ``load`` it, then decode as with any engine."""

    kind = EngineKind.REPLAY
    device = torch.device("cpu")

    def __init__(self, eos: frozenset[int], max_nodes: int) -> None:
        """eos: ids that end an answer. max_nodes: the largest draft."""
        self.eos, self.max_nodes = eos, max_nodes
        self.context = 0
        self.fed = 0
        self._answer: Sequence[int] = ()

    def load(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """The next request's ``prompt`` and the ids that were recorded for it."""
        self.context = len(prompt) + len(answer)
        self._answer = answer

    def reserve(self, tokens: int) -> None:
        """Do nothing: a replay has no cache."""

    def start(
        self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps
    ) -> Prefill:
        self._request = ActiveRequest(needs, laps)
        self._emitted = 1
        return Prefill(self._answer[0])

    def forward(self, draft: Draft) -> None:
        request = self._request
        request.take(draft, self.max_nodes)
        self.fed = (
            _count_batch(request.host_parents) if request.needs.rows else len(draft.tokens) + 1
        )
        request.laps.lap("forward")

    def settle(self, left: int, late: Draft | None = None) -> Step:
        draft, parents, start = self._request.draft, self._request.host_parents, self._emitted
        upcoming = self._answer[start : start + min(left, len(draft.tokens) + 1)]
        tokens = (
            cast(Sequence[int], draft.tokens.tolist())
            if isinstance(draft.tokens, Tensor)
            else draft.tokens
        )
        if isinstance(parents, range) and draft.passenger is None:
            agree = [token == right for token, right in zip(tokens, upcoming, strict=False)]
            path: Sequence[int] = range([*agree, False].index(False))
        else:
            path = find_recorded_path(tokens, parents, draft.passenger, upcoming)
        emitted, done = cut(upcoming[: len(path) + 1], self.eos, left)
        self._emitted = start + len(emitted)
        whole = len(path) == len(tokens) and len(emitted) == len(path) + 1
        step = Step(
            root=self._answer[start - 1],
            emitted=tuple(emitted),
            path=tuple(path[: len(emitted) - 1]),
            done=done or self._emitted == len(self._answer),
            late=int(continues(late, whole, emitted[-1])),
        )
        self._request.laps.lap("verify")
        return step

    def batch(self, requests: int, tokens: int, laps: Laps = SILENT) -> ReplayBatch:
        """See ``Engine.batch``; ``load`` what a request replays before it is opened."""
        return ReplayBatch(self, requests, laps)

    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Raise CaseError: a replay has no logits to check."""
        raise CaseError("a replay has no logits to compare; expected measure.lossless=false")


class ServerEngine(ReplayEngine):
    """Stands for a target that runs on servers: they decode, and their answers can only be
    compared.
    """

    kind = EngineKind.SERVER

    def __init__(self, card: ModelCard, max_nodes: int) -> None:
        """card: of the servers' model, without weights."""
        super().__init__(card.eos, max_nodes)
        self.context = card.context


@dataclass(slots=True, eq=False)
class Replayed:
    """A request of a ``ReplayBatch``."""

    prompt: Sequence[int]
    engine: ReplayEngine
    first: Prefill
    left: int  # [tokens] that it may still emit
    prompt_read: int = 0
    refused: CaseError | None = None  # the error of its last draft, if any


class ReplayBatch(Batch):
    """A replay for each request; nothing is shared, since nothing is computed."""

    def __init__(self, engine: ReplayEngine, requests: int, laps: Laps) -> None:
        self.requests, self.tokens, self.fed = requests, sys.maxsize, 0
        self._engine, self._laps = engine, laps
        self._open: set[Replayed] = set()
        self._drafted: list[Replayed] = []

    @property
    @override
    def free(self) -> int:
        return self.requests - len(self._open)

    @override
    def open(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs) -> Replayed:
        require_place(self)
        engine = ReplayEngine(self._engine.eos, self._engine.max_nodes)
        engine.context, engine._answer = self._engine.context, self._engine._answer
        handle = Replayed(
            prompt, engine, engine.start(prompt, limit, walk, needs, SILENT), limit - 1
        )
        self._open.add(handle)
        return handle

    @override
    def prefill(self, handle: Replayed, most: int | None = None) -> Prefill | None:
        count = len(handle.prompt)
        handle.prompt_read = count if most is None else min(count, handle.prompt_read + most)
        return handle.first if handle.prompt_read == count else None

    @override
    def forward(self, handles: list[Replayed], drafts: Sequence[Draft | None]) -> None:
        self._drafted, self.fed = handles, 0
        for handle, draft in zip(handles, drafts, strict=True):
            handle.refused = None
            try:
                handle.engine.forward(EMPTY if draft is None else draft)
                self.fed += handle.engine.fed
            except CaseError as error:
                handle.refused = error
        self._laps.lap("forward")

    @override
    def settle(self, lates: Sequence[Draft | None] | None = None) -> Outcomes:
        given = zip(self._drafted, lates or [None] * len(self._drafted), strict=True)
        outcomes = Outcomes(
            [each.refused or each.engine.settle(each.left, late) for each, late in given]
        )
        for number, handle in enumerate(self._drafted):
            handle.left -= outcomes.count_tokens(number)
        self._laps.lap("verify")
        return outcomes

    @override
    def close(self, handle: Replayed) -> None:
        self._open.discard(handle)


def _count_batch(parents: Sequence[int]) -> int:
    """Return the tokens of the batch that a draft of rows would be: rows as long as the longest,
    each with the root.
    """
    if not len(parents):
        return 1
    starts = [node for node, parent in enumerate(parents) if parent == ROOT]
    ends = [*starts[1:], len(parents)]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    return len(starts) * (longest + 1)


NO_TOKEN = -1  # picked after the record's end, so nothing that is drafted there is accepted


class RecordedPicks:
    """A greedy verifier that picks the recorded tokens; the true pick is computed first and then
    ignored.
    """

    sampling = None
    lossy = False
    picks_best = False

    def __init__(self, walk: Verifier, answer: np.ndarray) -> None:
        """answer: (n,) int64, padded with ``NO_TOKEN`` as far as a draft may reach."""
        self._walk, self._answer = walk, answer
        self._on_device: Tensor | None = None  # the answer
        self._emitted = 0

    def picks_at(self, depths: np.ndarray | Sequence[int] | Tensor) -> np.ndarray:
        """Return the (rows,) int64 picks of rows at these depths, 0 = the root."""
        found: np.ndarray = self._answer[self._emitted + np.asarray(depths)]
        return found

    def look_up(self, depths: Tensor) -> Tensor:
        """See ``picks_at``, for depths that stay on their device."""
        if self._on_device is None:
            self._on_device = upload(self._answer, depths.device)
        return self._on_device[depths + self._emitted]

    def pick(self, logits: Tensor, depths: Sequence[int] | Tensor) -> Tensor:
        """See ``Verifier.pick``."""
        self._walk.pick(logits, depths)
        return torch.from_numpy(self.picks_at(depths)).to(logits.device)

    def numbers(self, depths: Sequence[int]) -> None:
        """Return None: the picks are the record's."""

    def draw(self, logits: Tensor, numbers: Sequence[float]) -> Tensor:
        """Required by the interface; not called, since there are no numbers."""
        return self._walk.draw(logits, numbers)

    def follow(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        passenger: Sequence[bool] | None,
        picks: Sequence[int],
    ) -> list[int]:
        """See ``Verifier.follow``."""
        return self._walk.follow(tokens, parents, passenger, picks)

    def verify(
        self, logits: Tensor, draft: Draft, parents: Sequence[int], fed: Tensor, late: Draft | None
    ) -> Verdict:
        """Required by the interface; not called, since it is for sampling."""
        return self._walk.verify(logits, draft, parents, fed, late)

    def advance(self, emitted: Sequence[int]) -> None:
        """See ``Verifier.advance``."""
        self._emitted += len(emitted)
        self._walk.advance(emitted)


@dataclass
class SyntheticAcceptance:
    """Draws how many tokens of a chain are accepted, whatever they are.

    Source: vLLM 0.33.0, ``config/speculative.py``, ``rejection_sample_method='synthetic'``: rates
    by position are those with which all tokens up to it are accepted, and a mean length has the
    rates of least variance.

    curve: tokens of a step on average, the target's own included (1 = nothing is accepted), or (K,)
    rates of the positions, which do not rise.
    """

    curve: float | Sequence[float]
    _random: random.Random = field(default_factory=random.Random)

    def restart(self, prompt: Sequence[int]) -> None:
        """Draw from the beginning, of every method and round the same after the same prompt."""
        self._random.seed(zlib.crc32(np.array(prompt, dtype=np.int64).tobytes()))

    def draw(self, length: int) -> int:
        """Return the accepted tokens of a chain of this length. One number decides, as the rates do
        not rise.
        """
        drawn = self._random.random()
        if isinstance(self.curve, (int, float)):
            certain = int(self.curve - 1)
            accepted = certain + (drawn < self.curve - 1 - certain)
        else:
            accepted = sum(drawn < rate for rate in self.curve)
        return min(accepted, length)

    def settle(self, draft: Draft, upcoming: Sequence[int]) -> Draft:
        """Return the draft with the tokens of which as many as drawn are accepted.

        upcoming: the picks after the root and after each token. Raises CaseError for a tree.
        """
        count = len(draft)
        parents = draft.parents.tolist() if isinstance(draft.parents, Tensor) else draft.parents
        if draft.passenger is not None or list(parents) != list(range(-1, count - 1)):
            raise CaseError(
                "engine.acceptance: the draft is a tree; expected chains: a method, or settings,"
                " without"
            )
        accepted = self.draw(count)
        right = [int(token) for token in upcoming[:accepted] if token != NO_TOKEN]
        wrong = int(upcoming[len(right)] == 0)  # any other token
        tokens: Sequence[int] | Tensor = [*right, *[wrong] * (count - len(right))]
        if isinstance(draft.tokens, Tensor):
            tokens = torch.tensor(tokens, dtype=draft.tokens.dtype, device=draft.tokens.device)
        return replace(draft, tokens=tokens)


class AlongRecord(Engine):
    """A mixin of an engine that emits a record's tokens; until ``load`` is called, the engine is
    unchanged.

    acceptance: decides how much of a draft is accepted; None = the record does.
    """

    kind = EngineKind.TIMED
    acceptance: SyntheticAcceptance | None = None
    _answer: np.ndarray | None = None
    _picks: RecordedPicks

    def load(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Set the next request's ``prompt`` and the ids that were recorded for it."""
        self._answer = np.array([*answer, *[NO_TOKEN] * (self.max_nodes + 1)], dtype=np.int64)
        if self.acceptance:
            self.acceptance.restart(prompt)

    @override
    def forward(self, draft: Draft) -> None:
        if self.acceptance and self._answer is not None and len(draft):
            upcoming = self._picks.picks_at(np.arange(len(draft) + 1))
            draft = self.acceptance.settle(draft, upcoming.tolist())
        super().forward(draft)  # type: ignore[safe-super]

    @override
    def settle(self, left: int, late: Draft | None = None) -> Step:
        if self.acceptance and late is not None:
            raise CaseError(
                "engine.acceptance: the method drafts while the target runs; expected one that"
                " waits"
            )
        return super().settle(left, late)  # type: ignore[safe-super]

    def start(
        self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps
    ) -> Prefill:
        """Read the prompt and emit the record's first token; see ``Engine.start``."""
        return super().start(prompt, limit, self.bound_walk(walk), needs, laps)  # type: ignore[safe-super]

    @override
    def bound_walk(self, walk: Verifier) -> Verifier:
        if self._answer is None:
            return walk
        self._picks = RecordedPicks(walk, self._answer)
        return self._picks


class TimedEager(AlongRecord, EagerEngine):
    """The eager engine along a record."""


class TimedFast(AlongRecord, FastEngine):
    """The fast engine along a record, with one more argmax per step."""

    forces = True

    def accept(self) -> tuple[list[int], list[int]]:
        """Run the device's acceptance with the record's picks at these depths."""
        request, frame = self.request, self.request.frame
        assert frame.forced is not None
        if not isinstance(request.walk, RecordedPicks):
            frame.forced.copy_(request.logits.argmax(-1))
        elif isinstance(request.layout, DraftLayout):
            frame.force(request.walk.picks_at(request.layout.depths))
        else:
            frame.forced.copy_(request.walk.look_up(frame.depths))
        return super().accept()
