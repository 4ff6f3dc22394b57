"""The replay engine: recorded greedy tokens instead of a model.

Greedy decoding is a function of the context: whatever a drafter proposes, the target's picks along the recorded answer
are the recorded tokens, and nodes off that path are never accepted. Every drafter that needs no logits therefore
decodes exactly as with the model, at the cost of a few comparisons a step.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.engine import SILENT, Batch, Engine, Laps, Verifier, require_place
from specbench.models.facade import ModelCard
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

    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        self._request = ActiveRequest(needs, laps)
        self._emitted = 1
        return Prefill(self._answer[0])

    def forward(self, draft: Draft) -> None:
        """Take the draft; nothing is computed."""
        request = self._request
        request.take(draft, self.max_nodes)
        self.fed = _count_batch(request.host_parents) if request.needs.rows else len(draft.tokens) + 1
        request.laps.lap("forward")

    def settle(self, left: int, late: Draft | None = None) -> Step:
        draft, parents, start = self._request.draft, self._request.host_parents, self._emitted
        upcoming = self._answer[start : start + min(left, len(draft.tokens) + 1)]
        tokens = cast(Sequence[int], draft.tokens.tolist()) if isinstance(draft.tokens, Tensor) else draft.tokens
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
    """Stands for a target that runs on servers: they decode, and their answers can only be compared."""

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
        handle = Replayed(prompt, engine, engine.start(prompt, limit, walk, needs, SILENT))
        self._open.add(handle)
        return handle

    @override
    def prefill(self, handle: Replayed, most: int | None = None) -> Prefill | None:
        count = len(handle.prompt)
        handle.prompt_read = count if most is None else min(count, handle.prompt_read + most)
        return handle.first if handle.prompt_read == count else None

    @override
    def forward(self, drafts: Sequence[tuple[Replayed, Draft | None]]) -> None:
        self._drafted, self.fed = [handle for handle, _ in drafts], 0
        for handle, draft in drafts:
            handle.refused = None
            try:
                handle.engine.forward(EMPTY if draft is None else draft)
                self.fed += handle.engine.fed
            except CaseError as error:
                handle.refused = error
        self._laps.lap("forward")

    @override
    def settle(self, left: Sequence[int], lates: Sequence[Draft | None] | None = None) -> list[Step | CaseError]:
        given = zip(self._drafted, left, lates or [None] * len(left), strict=True)
        found = [handle.refused or handle.engine.settle(most, late) for handle, most, late in given]
        self._laps.lap("verify")
        return found

    @override
    def close(self, handle: Replayed) -> None:
        self._open.discard(handle)


def _count_batch(parents: Sequence[int]) -> int:
    """Return the tokens of the batch that a draft of rows would be: rows as long as the longest, each with the root."""
    if not len(parents):
        return 1
    starts = [node for node, parent in enumerate(parents) if parent == ROOT]
    ends = [*starts[1:], len(parents)]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    return len(starts) * (longest + 1)
