"""Faults planted in a fast engine on purpose, to see which of them the judge of losslessness finds, and how soon.

A fault strikes in steps with a draft only, so vanilla next to it stays sound. The judge's own forward is not touched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from specbench.models.engine import Engine
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import accept
from specbench.types import Draft, Step


class Fault:
    """The base of all faults; by itself no fault. chance: of striking in a step. strikes: how often it did."""

    chance = 1.0

    def __init__(self, engine: Engine) -> None:
        """Plant the fault in a loaded fast engine, whose methods are replaced."""
        self.engine, self.strikes = cast(FastEngine, engine), 0
        self._random = random.Random(0)
        self.plant()

    def plant(self) -> None:
        """Wrap the methods that the fault changes; the base changes none."""

    def strike(self) -> bool:
        """Return whether the fault strikes in this step."""
        return len(self.engine.request.draft) > 0 and self._random.random() < self.chance

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a method of the engine or its cache by ``make(method)``."""
        setattr(owner, name, make(getattr(owner, name)))


class _WrongToken(Fault):
    """The base of faults where the token after the accepted path is not the target's pick."""

    def plant(self) -> None:
        """Wrap the methods that the fault changes."""
        self._late: Draft | None = None
        self._wrong = False
        self.wrap(self.engine, "accept", self._accept)
        self.wrap(self.engine, "settle", self._settle)

    def choose(self, row: Tensor, whole: bool) -> int | None:
        """Return the wrong token, or None. row: (V,) logits after the path. whole: the whole draft was accepted."""
        raise NotImplementedError

    @property
    def late(self) -> Draft | None:
        """The late chain of this step."""
        return self._late

    def _accept(self, real: Callable[[], tuple[list[int], list[int]]]) -> Callable[[], tuple[list[int], list[int]]]:
        def accept() -> tuple[list[int], list[int]]:
            path, tokens = real()
            request = self.engine.request
            row = request.select(request.logits)[path[-1] + 1 if path else 0]
            token = self.choose(row, len(path) == len(request.draft)) if self.strike() else None
            self._wrong = token is not None and token != tokens[-1]
            return path, tokens if token is None else [*tokens[:-1], token]

        return accept

    def _settle(self, real: Callable[..., Step]) -> Callable[..., Step]:
        def settle(left: int, late: Draft | None = None) -> Step:
            self._late = late
            step = real(left, late)
            self.strikes += self._wrong and len(step.emitted) == len(step.path) + 1
            return step

        return settle


class SecondBest(_WrongToken):
    """The target's second best token, the smallest possible error."""

    chance = 0.5

    def choose(self, row: Tensor, whole: bool) -> int:
        """Return the wrong token, see the class."""
        return int(row.topk(2).indices[1])


class AnyToken(_WrongToken):
    """Any token of the vocabulary."""

    chance = 0.5

    def choose(self, row: Tensor, whole: bool) -> int:
        """Return the wrong token, see the class."""
        return self._random.randrange(len(row))


class LateToken(_WrongToken):
    """The first token of a late chain is emitted after a whole draft without being verified."""

    def choose(self, row: Tensor, whole: bool) -> int | None:
        """Return the wrong token, see the class."""
        return int(self.late.tokens[0]) if whole and self.late is not None and len(self.late) else None


class ShiftedSlot(Fault):
    """An accepted path is compacted from the slots one after its own."""

    def plant(self) -> None:
        """Wrap the methods that the fault changes."""
        self.wrap(self.engine, "accept_rows", lambda _: accept)  # which moves slots by the cache
        self.wrap(self.engine.cache, "move", self._move)

    def _move(self, real: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor], None]:
        def move(source: Tensor, target: Tensor) -> None:
            struck = self.strike()
            self.strikes += struck
            last = int(self.engine.request.frame.slots[-2])
            real((source + 1).clamp(max=last) if struck else source, target)

        return move


class StaleMask(Fault):
    """A draft is verified under the mask of the last draft of its size."""

    def plant(self) -> None:
        """Wrap the methods that the fault changes."""
        self._masks: dict[tuple[str, int], Tensor] = {}
        self.wrap(self.engine, "compute", self._compute)

    def _compute(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def compute(frame: Any, length: int, taps: Sequence[int]) -> Any:
            own = {kind: bias.clone() for kind, bias in frame.bias.items()}
            struck = self.strike()
            for kind, bias in own.items():
                stale = self._masks.get((kind, frame.width), bias)
                self._masks[kind, frame.width] = bias
                if struck and not torch.equal(stale, bias):
                    self.strikes += 1
                    frame.bias[kind].copy_(stale)
            found = real(frame, length, taps)
            for kind, bias in own.items():
                frame.bias[kind].copy_(bias)
            return found

        return compute


FAULTS: dict[str, tuple[str, type[Fault]]] = {  # name -> the method that it strikes, the fault
    "wrong token, the second best": ("pld", SecondBest),
    "wrong token, any": ("pld", AnyToken),
    "late token, not verified": ("pearl", LateToken),
    "slots shifted by one": ("opt_tree", ShiftedSlot),
    "mask of an earlier draft": ("opt_tree", StaleMask),
}
