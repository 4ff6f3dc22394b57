"""The A/A control: vanilla timed against itself, the speedup that this machine shows where there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench import stats
from specbench.report.frames.trials import Columns

BLOCK = ("case", "round", "stretch", "ok", "time_s", "tokens")  # the columns of records that a control is read from
MAX_WIDTH = 0.01  # a re-timing interval wider than this hides differences of a percent


@dataclass(frozen=True, slots=True)
class Control:
    """retimed: vanilla over its repetition, a re-timing interval (``stats.retiming``), not one over prompts.

    unit: what it is over: blocks, or under load stretches, whose requests slow each other.
    """

    retimed: stats.Estimate
    unit: str = "blocks"

    @property
    def steady(self) -> bool | None:
        """The interval holds 1 and is narrower than 1 %; None with too few units for an interval."""
        low, high = self.retimed.low, self.retimed.high
        if low is None or high is None:
            return None
        return low <= 1.0 <= high and high - low < MAX_WIDTH

    @property
    def noise(self) -> float:
        """The largest distance from 1 that the re-timings allow."""
        bounds = (self.retimed.value, self.retimed.low, self.retimed.high)
        return max(abs(bound - 1) for bound in bounds if bound is not None)

    def sentence(self) -> str:
        """The verdict in words, figures included."""
        found = self.retimed
        text = f"vanilla against itself: {found.value:.4f}"
        if found.low is None or found.high is None:
            return f"{text} over {found.count} {self.unit}, too few for an interval (at least {stats.MIN_CASES})"
        text += f", 95 % of re-timings in [{found.low:.4f}, {found.high:.4f}], {found.count} {self.unit}"
        if self.steady:
            return f"{text}: steady"
        reason = "it should hold 1" if not found.low <= 1.0 <= found.high else "it should be narrower than 1 %"
        return f"{text}: unsteady ({reason})"


def read_control(first: Columns, again: Columns) -> Control | None:
    """The control of these records of vanilla and of its repetition, paired block by block, or stretch by stretch; None
    where no block has both.
    """
    one, other = first["ok"], again["ok"]
    keys, ours, theirs = np.intersect1d(
        _numbers(first, "case")[one], _numbers(again, "case")[other], assume_unique=True, return_indices=True
    )
    if not len(keys):
        return None
    order = np.argsort(ours)
    pairs = [(first, np.flatnonzero(one)[ours[order]]), (again, np.flatnonzero(other)[theirs[order]])]
    columns = [rows[name][places] for rows, places in pairs for name in ("time_s", "tokens")]
    own, places = pairs[0]
    if (own["stretch"][places] < 0).any():
        return Control(stats.retiming(*columns))
    _, stretches = np.unique(_numbers(own, "stretch")[places], return_inverse=True)
    return Control(stats.retiming(*(np.bincount(stretches, column) for column in columns)), "stretches")


def _numbers(rows: Columns, unit: str) -> NDArray[np.int64]:
    """(R,) a number for each case, or stretch, and round."""
    return np.asarray(rows[unit].astype(np.int64) << 32 | rows["round"])
