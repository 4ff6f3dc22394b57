"""Counts of the copies between host and device that a step of a method waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from builders.fake_cuda import DEVICE, READ, UPLOAD, FakeCuda
from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.sampling import Sampling
from specbench.measure.clock import Clock
from specbench.method import Method
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import Buckets
from specbench.models.load import load_model

NODES = 256


class TransferClock(Clock):
    """A clock that counts transfers. steps_of: (read-backs, uploads) of each step that wait.

    late: keys of the calls, of engine and draft model, that were recorded while it decoded.
    """

    late: frozenset[Any] = frozenset()

    def __init__(self, mode: FakeCuda) -> None:
        self.mode = mode
        self.steps_of: list[tuple[int, int]] = []
        super().__init__(torch.device("cpu"))

    def _now(self) -> tuple[int, int]:
        return self.mode.blocking[READ], self.mode.blocking[UPLOAD]

    def start(self) -> None:
        """Begin a request; nothing is counted before the first step."""
        super().start()
        self._open = False

    def lap(self, phase: str) -> None:
        """Let the steps begin after the first update, in which a method reads the prompt."""
        if phase == "update" and not self._open:
            self._open, self._seen = True, self._now()

    def mark(self) -> None:
        if self._open:
            now = self._now()
            self.steps_of.append((now[0] - self._seen[0], now[1] - self._seen[1]))
            self._seen = now


def count_transfers(
    method: Method,
    card: ModelCard,
    prompt: Sequence[int],
    tokens: int,
    sampling: Sampling | None,
    engine_type: type[FastEngine] = FastEngine,
) -> tuple[Transcript, TransferClock]:
    """Decode one request on the fast engine with labelled tensors, and count its transfers.

    card: of the target, on the CPU. Raises DeviceMixError if a GPU would refuse an operation.
    """
    model: Any = load_model(card)
    card = replace(card, device=str(DEVICE))
    with FakeCuda() as mode:
        model.to(DEVICE)
        widths = (1, 8, 64, NODES + 1)  # few: what is prepared is computed
        buckets = Buckets(widths, (card.context,))
        engine = engine_type(model, card.context, card.eos, NODES, buckets)
        method.check(card)
        method.bind(Target(card, model, NODES, sampling))
        engine.prepare(method.needs, sampling is None)
        method.reset()
        clock, prepared = TransferClock(mode), set(mode.recorded)
        out = decode(engine, method, Request(prompt, tokens, sampling, 0), clock)
        method.close()
        clock.late = frozenset(key for _, key in mode.recorded - prepared)
    return out, clock
