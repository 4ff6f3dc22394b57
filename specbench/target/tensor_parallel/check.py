"""What the ranks of a model must agree on after every step, in six numbers (the debug mode of several GPUs).

Keys and values differ between ranks by design, so each rank keeps a book instead: which token lies in which slot, as
its own writes and moves have it. The hidden states after the last sum are the same on every rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.target.tensor_parallel.team import TeamError

NAMES = ("steps taken", "tokens held", "rows fed", "keys read", "tokens in the cache", "hidden states")
# Relative difference of the states' sizes. They come out of one sum, but what follows it may round in another order
# where memory is aligned otherwise.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}


class Book:
    """One rank's record of what it did."""

    def __init__(self, slots: int) -> None:
        """slots: more than a cache will ever have."""
        self._tokens = np.full(slots, -1, dtype=np.int64)
        self._steps = 0

    def fed(self, start: int, ids: Tensor | Sequence[int]) -> None:
        """Tokens went into the slots from ``start`` on."""
        values = torch.as_tensor(ids).cpu().numpy()
        if start + len(values) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.full(start + len(values), -1)])
        self._tokens[start : start + len(values)] = values

    def moved(self, start: int, rows: Sequence[int]) -> None:
        """Rows of the frame that began in slot ``start`` were moved behind its root."""
        self._tokens[start + 1 : start + 1 + len(rows)] = self._tokens[start + np.array(rows, dtype=np.int64)]

    def page(self, past: int, width: int, length: int, fed: int, states: Tensor) -> Tensor:
        """(6,) float64, see ``NAMES``. fed: rows of the frame that are no padding. states: (width, D)."""
        self._steps += 1
        lying = zlib.crc32(self._tokens[: past + fed].tobytes())
        total = states[:fed].double().abs().sum().item()
        return torch.tensor([self._steps, past, width, length, lying, total], dtype=torch.float64)


def compare(pages: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Raise TeamError where a rank's page is not rank 0's. dtype: of the states."""
    first = pages[0]
    for rank, page in enumerate(pages[1:], start=1):
        same = page == first
        same[-1] = torch.isclose(page[-1], first[-1], rtol=NEAR[dtype], atol=0, equal_nan=True)
        if not bool(same.all()):
            place = int((~same).nonzero()[0])
            raise TeamError(
                f"rank {rank} diverged from rank 0 at step {int(first[0])} of this run, in its {NAMES[place]}:"
                f" {page[place].item():.17g}, rank 0 has {first[place].item():.17g}"
            )
