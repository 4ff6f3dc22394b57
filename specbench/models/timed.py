"""The timed engines: they run the forwards of any model along a recorded answer (forced acceptance).

Acceptance compares every drafted token with the pick of its parent's row. So a step along a record is a live step whose
picks are replaced: forward, argmax, acceptance, compaction and read-back all run, each once and on tensors of the same
size, and the cache contains the keys and values of the recorded path. The time of a step is the model's, its tokens are
the record's. Beyond a live step there is one copy of ids to the device; for a tree of the device's, their lookup there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import Engine, Laps, Verdict, Verifier
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.layout import DraftLayout
from specbench.models.transfer import upload
from specbench.records.record import EngineKind
from specbench.types import Draft, Needs, Prefill

NO_TOKEN = -1  # picked after the record's end, so nothing that is drafted there is accepted


class RecordedPicks:
    """A greedy verifier that picks the recorded tokens; the true pick is computed first and then ignored."""

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
        self, tokens: Sequence[int], parents: Sequence[int], passenger: Sequence[bool] | None, picks: Sequence[int]
    ) -> list[int]:
        """See ``Verifier.follow``."""
        return self._walk.follow(tokens, parents, passenger, picks)

    def verify(self, logits: Tensor, draft: Draft, parents: Sequence[int], fed: Tensor, late: Draft | None) -> Verdict:
        """Required by the interface; not called, since it is for sampling."""
        return self._walk.verify(logits, draft, parents, fed, late)

    def advance(self, emitted: Sequence[int]) -> None:
        """See ``Verifier.advance``."""
        self._emitted += len(emitted)
        self._walk.advance(emitted)


class AlongRecord(Engine):
    """A mixin of an engine that emits a record's tokens; until ``load`` is called, the engine is unchanged."""

    kind = EngineKind.TIMED
    _answer: np.ndarray | None = None

    def load(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Set the next request's ``prompt`` and the ids that were recorded for it."""
        self._answer = np.array([*answer, *[NO_TOKEN] * (self.max_nodes + 1)], dtype=np.int64)

    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """Read the prompt and emit the record's first token; see ``Engine.start``."""
        return super().start(prompt, limit, self.bound_walk(walk), needs, laps)  # type: ignore[safe-super]

    @override
    def bound_walk(self, walk: Verifier) -> Verifier:
        return walk if self._answer is None else RecordedPicks(walk, self._answer)


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
