"""Forwards of a head that requests can share: a drafter yields them, and is sent their outcome (``SharedDrafter``)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Forwards = Generator[Any, Any, Tensor]  # of a head: yields each forward, is sent its outcome, returns states or logits


class RowFunction:
    """A function of rows that are independent of each other: those of several requests are one call."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def run_together(self, calls: Sequence[RowsCall]) -> list[Tensor]:
        """The outcome of each."""
        return list(self.function(join([call.rows for call in calls])).split([len(call.rows) for call in calls]))


@dataclass(frozen=True, slots=True, eq=False)
class RowsCall:
    """One request's rows (``specbench.method.DraftForward``). rows: (n, D)."""

    owner: RowFunction
    rows: Tensor

    def run(self) -> Tensor:
        """(n, ...)."""
        return self.owner.function(self.rows)


def join(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
