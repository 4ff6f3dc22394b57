"""T(tokens fed, context): a measured grid with straight lines between its points, or a published linear fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from specbench.records.record import Amount

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Positive = Annotated[float, Field(gt=0, le=1e18)]


@dataclass(frozen=True, slots=True)
class Grid:
    """Medians of a sweep. fed: (F,) tokens a forward, from 1 up. contexts: (C,) tokens in the cache, ascending.

    ms: (C, F) the target's forward. host_ms: (C, F) the rest of the engine's step. spread: (C, F) half the
    interquartile range of ``ms`` over its median.
    """

    fed: Floats
    contexts: Floats
    ms: Floats
    host_ms: Floats
    spread: Floats

    def forward_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] at (S,) tokens fed and (S,) context; beyond the grid the edge continues (``outside``)."""
        return self._at(self.ms, fed, context)

    def rest_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] The engine's own time in addition to the forward."""
        return self._at(self.host_ms, fed, context)

    def outside(self, fed: ArrayLike, context: ArrayLike) -> Mask:
        """True if nothing was measured on both sides of the point."""
        rows, columns = np.asarray(context, dtype=np.float64), np.asarray(fed, dtype=np.float64)
        beyond = (columns < self.fed[0]) | (columns > self.fed[-1])
        return np.asarray(beyond | (rows < self.contexts[0]) | (rows > self.contexts[-1]))

    def _at(self, values: Floats, fed: ArrayLike, context: ArrayLike) -> Floats:
        """Interpolate bilinearly; above the grid the last slope continues but never falls, below it the edge counts."""
        columns = np.maximum(np.asarray(fed, dtype=np.float64), self.fed[0])
        rows = np.maximum(np.asarray(context, dtype=np.float64), self.contexts[0])
        inside = _bilinear(
            values, self.contexts, self.fed, np.minimum(rows, self.contexts[-1]), np.minimum(columns, self.fed[-1])
        )
        return np.maximum(_bilinear(values, self.contexts, self.fed, rows, columns), inside)


@dataclass(frozen=True, slots=True)
class Fit:
    """base_ms + per_fed_us * fed + per_context_us * context, and ``host_ms`` per step in addition."""

    base_ms: Positive
    per_fed_us: Amount
    per_context_us: Amount
    host_ms: Amount

    def forward_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] at (S,) tokens fed and (S,) context."""
        work = self.per_fed_us * np.asarray(fed, dtype=np.float64)
        read = self.per_context_us * np.asarray(context, dtype=np.float64)
        return self.base_ms + 1e-3 * (work + read)

    def rest_ms(self, fed: ArrayLike, context: ArrayLike) -> Floats:
        """[ms] The same for every step."""
        return np.full(np.broadcast(np.asarray(fed), np.asarray(context)).shape, self.host_ms)

    def outside(self, fed: ArrayLike, context: ArrayLike) -> Mask:
        """False everywhere: a publication does not give the range that it fitted."""
        return np.zeros(np.broadcast(np.asarray(fed), np.asarray(context)).shape, dtype=np.bool_)


def _bilinear(values: Floats, rows: Floats, columns: Floats, row: Floats, column: Floats) -> Floats:
    """values: (R, K) at ``rows`` and ``columns``; an axis of one point is flat."""
    low, share = _place(rows, row)
    left, part = _place(columns, column)
    high, right = np.minimum(low + 1, len(rows) - 1), np.minimum(left + 1, len(columns) - 1)
    below = values[low, left] * (1 - part) + values[low, right] * part
    above = values[high, left] * (1 - part) + values[high, right] * part
    return np.asarray(below * (1 - share) + above * share)


def _place(knots: Floats, at: Floats) -> tuple[NDArray[np.intp], Floats]:
    """(S,) the knot below each point, and how far towards the next one it is (beyond the last: more than 1)."""
    low = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, max(0, len(knots) - 2))
    width = np.diff(knots)[low] if len(knots) > 1 else np.ones(np.shape(at))
    return low, np.where(len(knots) > 1, (at - knots[low]) / width, 0.0)
