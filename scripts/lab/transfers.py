"""Transfers between host and device in each step of a method's decode loop, counted on a machine without a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scripts.lab.fake_cuda import DEVICE, READ, UPLOAD, FakeCuda
from specbench.decode.loop import Request, Transcript, decode
from specbench.decode.sampling import Sampling
from specbench.measure.clock import Clock
from specbench.method import Method, Peer
from specbench.models.facade import ModelCard, Target
from specbench.models.fast.engine import FastEngine
from specbench.models.load import load_model


class TransferClock(Clock):
    """Counts where a run's clock takes laps. steps_of: [(read-backs, uploads)] that wait for the device, one a step.

    drafting: what was launched where the method drafts, recorded calls counted as one.
    """

    def __init__(self, mode: FakeCuda) -> None:
        self.mode, self.drafting, self._launched = mode, 0, 0
        self.steps_of: list[tuple[int, int]] = []
        super().__init__(torch.device("cpu"))

    def _now(self) -> tuple[int, int]:
        return self.mode.blocking[READ], self.mode.blocking[UPLOAD]

    def start(self) -> None:
        """Nothing is counted before the first step."""
        super().start()
        self._open = False

    def lap(self, phase: str) -> None:
        """The first update is what a method learns from the prompt."""
        if phase == "update" and not self._open:
            self._open, self._seen = True, self._now()
        if phase == "draft":
            self.drafting += self.mode.launched - self._launched
        self._launched = self.mode.launched

    def mark(self) -> None:
        """A step ends."""
        if self._open:
            now = self._now()
            self.steps_of.append((now[0] - self._seen[0], now[1] - self._seen[1]))
            self._seen = now


def count_transfers(
    method: Method, card: ModelCard, prompt: Sequence[int], tokens: int, sampling: Sampling | None, max_nodes: int = 256
) -> tuple[Transcript, TransferClock]:
    """Decode one request on the fast engine with labelled tensors: the transcript, and what was counted.

    card: of the target, on the CPU.
    Raises DeviceMixError where a GPU would refuse an operation.
    """
    model: Any = load_model(card)
    card = replace(card, device=str(DEVICE))
    with FakeCuda() as mode:
        model.to(DEVICE)
        engine = FastEngine(model, card.context, card.eos, max_nodes)
        method.check(card)
        method.bind(Target(card, model, max_nodes, sampling))
        method.reset()
        clock = TransferClock(mode)
        out = decode(engine, method, Request(prompt, tokens, sampling, 0), clock)
        method.close()
    return out, clock


def print_transfers(methods: Mapping[str, Method], card: ModelCard, prompt: Sequence[int], tokens: int = 24) -> None:
    """A table of means over the steps, at temperature 0 and 0.8; peers decode by the library's own loop.

    Launches, at temperature 0: where the method drafts, a recorded call counted as one; a step, and a drafted node.
    """
    print(
        "| method | read-backs, T = 0 | uploads | read-backs, T = 0.8 | uploads | launches a draft | a drafted token |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, method in methods.items():
        if isinstance(method, Peer):
            continue
        greedy, clock = count_transfers(method, card, prompt, tokens, None)
        drawn = count_transfers(method, card, prompt, tokens, Sampling(0.8))[1]
        cells = [statistics.mean(each) for run in (clock, drawn) for each in zip(*run.steps_of, strict=True)]
        cells += [clock.drafting / max(1, count) for count in (len(greedy.accept), sum(greedy.proposed))]
        print(f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)
