"""Goals of the runtime as figures: what was measured, what was aimed at, whether it was reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure. bound: what it is held against; None = no goal, only a fact. least: the bound is a lower one.

    stretch: the harder bound. value: None where it does not apply on this device.
    """

    name: str
    value: float | None
    bound: float | None = None
    stretch: float | None = None
    least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """stretch | met | missed, or nothing."""
        if self.value is None or self.bound is None:
            return ""
        if self.stretch is not None and self._within(self.stretch):
            return "stretch"
        return "met" if self._within(self.bound) else "missed"

    def _within(self, bound: float) -> bool:
        assert self.value is not None
        return self.value >= bound if self.least else self.value <= bound

    def as_dict(self) -> dict[str, Any]:
        """For JSON, verdict included."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}


def goals_text(goals: Sequence[Goal]) -> str:
    """A markdown table."""
    lines = ["| figure | measured | goal | stretch | verdict |", "|---|--:|--:|--:|---|"]
    for goal in goals:
        sign = "\N{GREATER-THAN OR EQUAL TO}" if goal.least else "\N{LESS-THAN OR EQUAL TO}"
        bounds = [f"{sign} {bound:g}" if bound is not None else "" for bound in (goal.bound, goal.stretch)]
        value = "" if goal.value is None else f"{goal.value:.4g} {goal.unit}".strip()
        lines.append(f"| {goal.name} | {value} | {' | '.join(bounds)} | {goal.verdict} |")
    return "\n".join(lines)
