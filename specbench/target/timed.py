"""The timed engines: real forwards of any model, random weights too, along a recorded answer (forced acceptance).

Acceptance compares every drafted token with what its parent's row picks. So a step of the record is a true step whose
picks are replaced: forward, argmax, walk, compaction and read-back all run, each once and on tensors of the true size,
and the cache ends up with the keys and values of the recorded path. What a step costs is the model's, what it emits is
the record's. Beyond a live step there is one copy of ids to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.target.eager.engine import EagerEngine
from specbench.target.engine import Engine, EngineKind, Laps, Verifier
from specbench.target.facade import Target
from specbench.target.fast.engine import FastEngine
from specbench.target.fast.frame import Frame
from specbench.types import Draft, Needs, Prefill

TIMED = EngineKind.TIMED
NOTHING = -1  # picked behind the record's end; no token, so nothing that is drafted there is accepted


class Recall:
    """A greedy walker that picks what is on record; the true pick is made first, and then forgotten."""

    sampling = None
    lossy = False

    def __init__(self, walk: Verifier, answer: np.ndarray) -> None:
        """answer: (n,) int64, padded with ``NOTHING`` as far as a draft may reach."""
        self._walk, self._answer = walk, answer
        self._emitted = 0

    def said(self, depths: np.ndarray | Sequence[int]) -> np.ndarray:
        """What rows at these depths pick (0 = the root)."""
        found: np.ndarray = self._answer[self._emitted + np.asarray(depths)]
        return found

    def pick(self, logits: Tensor, depths: Sequence[int]) -> Tensor:
        """See ``Verifier.pick``."""
        self._walk.pick(logits, depths)
        return torch.from_numpy(self.said(depths)).to(logits.device)

    def follow(
        self, tokens: Sequence[int], parents: Sequence[int], passenger: Sequence[bool] | None, picks: Sequence[int]
    ) -> list[int]:
        """See ``Verifier.follow``."""
        return self._walk.follow(tokens, parents, passenger, picks)

    def judge(self, logits: Tensor, draft: Draft, tokens: Sequence[int], late: Draft | None) -> Any:
        """Never asked for without a distribution."""
        return self._walk.judge(logits, draft, tokens, late)

    def advance(self, emitted: int) -> None:
        """See ``Verifier.advance``."""
        self._emitted += emitted
        self._walk.advance(emitted)


def padded(answer: Sequence[int], reach: int) -> np.ndarray:
    """(n + reach + 1,) the answer, and nothing behind it."""
    return np.array([*answer, *[NOTHING] * (reach + 1)], dtype=np.int64)


class Along(Engine):
    """Before an engine among a class's bases: its own forwards, the record's tokens; without one the engine itself."""

    kind = EngineKind.TIMED
    _answer: np.ndarray | None = None

    def load(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """The next request's ``prompt`` and the ids that were recorded for it."""
        self._answer = padded(answer, self.max_nodes)

    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """Read the prompt and emit the record's first token; see ``Engine.start``."""
        walk = walk if self._answer is None else Recall(walk, self._answer)
        return super().start(prompt, limit, walk, needs, laps)  # type: ignore[safe-super]


class TimedEager(Along, EagerEngine):
    """The eager engine along a record."""


class TimedFast(Along, FastEngine):
    """The fast engine along a record, at one argmax more a step."""

    def _frame(self, width: int) -> Frame:
        """Told its picks before anything of it is recorded."""
        frame = super()._frame(width)
        frame.be_told()
        return frame

    def _accept(self, logits: Tensor, slots: Tensor, late: Draft | None) -> tuple[list[int], list[int], bool]:
        """The device's own acceptance, behind the picks that the record has for these depths."""
        if isinstance(self._walk, Recall):
            self._active.tell(self._walk.said(self._layout.depths))
        else:
            told = self._active.told
            assert told is not None
            told.copy_(logits.argmax(-1))
        return super()._accept(logits, slots, late)


TimedEngine = TimedEager | TimedFast


@dataclass(frozen=True, slots=True)
class WatchedTarget(Target):
    """A target that notes when a method asks what its weights say. asked: the calls so far."""

    asked: list[str] = field(default_factory=list)

    def embed(self, ids: Tensor) -> Tensor:
        """See ``Target.embed``."""
        self.asked.append("embed")
        return Target.embed(self, ids)

    def head(self, hidden: Tensor) -> Tensor:
        """See ``Target.head``."""
        self.asked.append("head")
        return Target.head(self, hidden)

    def logits(self, ids: Tensor) -> Tensor:
        """See ``Target.logits``."""
        self.asked.append("logits")
        return Target.logits(self, ids)
