"""The A/A control: vanilla timed against itself, the speedup that this machine shows where there is none."""

from __future__ import annotations

from dataclasses import dataclass

from specbench import stats
from specbench.record import CONTROL, VANILLA
from specbench.report.data.trials import trials
from specbench.store import Run

MAX_WIDTH = 0.01  # a re-timing interval wider than this hides differences of a percent


@dataclass(frozen=True, slots=True)
class Control:
    """retimed: vanilla over its repetition, a re-timing interval (``stats.retiming``), not one over prompts."""

    retimed: stats.Estimate

    @property
    def steady(self) -> bool | None:
        """The interval holds 1 and is narrower than 1 %; None with too few blocks for an interval."""
        low, high = self.retimed.low, self.retimed.high
        if low is None or high is None:
            return None
        return low <= 1.0 <= high and high - low < MAX_WIDTH

    def sentence(self) -> str:
        """The verdict in words, figures included."""
        found = self.retimed
        text = f"vanilla against itself: {found.value:.4f}"
        if found.low is None or found.high is None:
            return f"{text} over {found.count} blocks, too few for an interval (at least {stats.MIN_CASES})"
        text += f", 95 % of re-timings in [{found.low:.4f}, {found.high:.4f}], {found.count} blocks"
        if self.steady:
            return f"{text}: steady"
        reason = "it should hold 1" if not found.low <= 1.0 <= found.high else "it should be narrower than 1 %"
        return f"{text}: unsteady ({reason})"


def read_control(run: Run) -> Control | None:
    """The control of a run, paired block by block; None when the run has none."""
    frame = trials(run.records)
    frame = frame[frame["ok"]].set_index(["case", "round"])
    first, again = (frame[frame["method"] == name] for name in (VANILLA, CONTROL))
    common = first.index.intersection(again.index)
    if common.empty:
        return None
    first, again = first.loc[common], again.loc[common]
    return Control(stats.retiming(first["time_s"], first["tokens"], again["time_s"], again["tokens"]))
