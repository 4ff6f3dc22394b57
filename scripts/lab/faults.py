"""Faults planted in a fast engine on purpose, to see which of them the lossless check finds, and how soon.

A fault strikes only in steps with a draft, so vanilla in the same run stays sound. The forward of the lossless check
itself is not touched.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from specbench.models.engine import Engine
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import accept
from specbench.types import Draft, Step


class Fault:
    """The base of all faults, which changes nothing. chance: of striking in a step. strikes: their number so far."""

    chance = 1.0

    def __init__(self, engine: Engine) -> None:
        """Replace methods of a loaded fast engine."""
        self.engine, self.strikes = cast(FastEngine, engine), 0
        self.random = random.Random(0)
        self.plant()

    def plant(self) -> None:
        """Wrap the methods that the fault changes."""

    def strike(self) -> bool:
        """Return whether the fault strikes in this step."""
        return len(self.engine.request.draft) > 0 and self.random.random() < self.chance


class _WrongToken(Fault):
    """The base of faults that replace the token after the accepted path, which should be the target's pick."""

    late: Draft | None = None  # the late chain of this step
    _wrong = False

    def choose(self, row: Tensor, complete: bool) -> int | None:
        """Return the wrong token, or None. row: (V,) logits after the path. complete: all of the draft is accepted."""
        raise NotImplementedError

    def plant(self) -> None:
        engine: Any = self.engine
        real_accept, real_settle = engine.accept, engine.settle

        def accept() -> tuple[list[int], list[int]]:
            path, tokens = real_accept()
            row = engine.request.select(engine.request.logits)[path[-1] + 1 if path else 0]
            token = self.choose(row, len(path) == len(engine.request.draft)) if self.strike() else None
            self._wrong = token is not None and token != tokens[-1]
            return path, tokens if token is None else [*tokens[:-1], token]

        def settle(left: int, late: Draft | None = None) -> Step:
            self.late = late
            step = real_settle(left, late)
            self.strikes += self._wrong and len(step.emitted) == len(step.path) + 1
            return step

        engine.accept, engine.settle = accept, settle


class SecondBest(_WrongToken):
    """Emits the target's second best token, the smallest possible error."""

    chance = 0.5

    def choose(self, row: Tensor, complete: bool) -> int:
        """Return the second best token."""
        return int(row.topk(2).indices[1])


class AnyToken(_WrongToken):
    """Emits a random token of the vocabulary."""

    chance = 0.5

    def choose(self, row: Tensor, complete: bool) -> int:
        """Return a random token."""
        return self.random.randrange(len(row))


class LateToken(_WrongToken):
    """Emits the first token of a late chain after a completely accepted draft, without verifying it."""

    def choose(self, row: Tensor, complete: bool) -> int | None:
        """Return the first token of the late chain."""
        return int(self.late.tokens[0]) if complete and self.late is not None and len(self.late) else None


class ShiftedSlot(Fault):
    """Compacts an accepted path from the slots one after its own."""

    def plant(self) -> None:
        """Wrap the cache's move, and let paths be moved by the cache."""
        engine: Any = self.engine
        real = engine.cache.move

        def move(source: Tensor, target: Tensor) -> None:
            struck = self.strike()
            self.strikes += struck
            last = int(engine.request.frame.slots[-2])
            real((source + 1).clamp(max=last) if struck else source, target)

        engine.accept_rows, engine.cache.move = accept, move


class StaleMask(Fault):
    """Verifies a draft under the mask of the last draft of its size."""

    def plant(self) -> None:
        """Wrap the engine's forward."""
        engine: Any = self.engine
        real = engine.compute
        masks: dict[tuple[str, int], Tensor] = {}

        def compute(frame: Any, length: int, taps: Sequence[int]) -> Any:
            own = {kind: bias.clone() for kind, bias in frame.bias.items()}
            struck = self.strike()
            for kind, bias in own.items():
                stale = masks.get((kind, frame.width), bias)
                masks[kind, frame.width] = bias
                if struck and not torch.equal(stale, bias):
                    self.strikes += 1
                    frame.bias[kind].copy_(stale)
            found = real(frame, length, taps)
            for kind, bias in own.items():
                frame.bias[kind].copy_(bias)
            return found

        engine.compute = compute


FAULTS: dict[str, tuple[str, type[Fault]]] = {  # name -> the method that it strikes, the fault
    "wrong token, the second best": ("pld", SecondBest),
    "wrong token, any": ("pld", AnyToken),
    "late token, not verified": ("pearl", LateToken),
    "slots shifted by one": ("opt_tree", ShiftedSlot),
    "mask of an earlier draft": ("opt_tree", StaleMask),
}
