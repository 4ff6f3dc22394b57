"""Ours against a library's: the ratio of times, and the spread of A/A ratios in the same run.

The verdict is faster or slower only where, by processor time and by the clock alike, the ratio's interval excludes 1
and the ratio is further from 1 than the spread: the outermost end of the two A/A intervals, ours and the peer's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specbench.stats import Estimate, speedup

Floats = NDArray[np.float64]
FASTER, SLOWER, NONE = "faster", "slower", "no difference shown"
WALL, CPU = "wall", "cpu"


class Side(Protocol):
    """One side's requests, as ``specbench.bench.peers.Timed`` has them: times (P, R, 2), tokens (P,)."""

    @property
    def name(self) -> str:
        """Of the method."""

    @property
    def wall_s(self) -> Floats:
        """[s]."""

    @property
    def cpu_s(self) -> Floats:
        """[s], all threads."""

    @property
    def tokens(self) -> Floats:
        """Emitted."""

    @property
    def ids(self) -> tuple[tuple[int, ...], ...]:
        """Emitted, by prompt."""

    @property
    def mat(self) -> float:
        """Tokens a step."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The peer's time per token over ours. ours, peer: each side's first runs over its second (A/A)."""

    value: Estimate
    ours: Estimate
    peer: Estimate

    @property
    def spread(self) -> float:
        """The factor by which the A/A ratios, with their intervals, leave 1 at most; NaN where one has no interval."""
        ends = [end for each in (self.ours, self.peer) for end in (each.low, each.high)]
        return math.exp(max(abs(math.log(end)) for end in ends if end)) if all(ends) else float("nan")

    @property
    def verdict(self) -> str:
        """faster: the peer takes longer."""
        value, spread = self.value, self.spread
        if value.low is None or value.high is None or math.isnan(spread):
            return NONE
        if value.low > 1 and value.value > spread:
            return FASTER
        return SLOWER if value.high < 1 and value.value < 1 / spread else NONE


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair. ratios: by ``cpu`` and ``wall``, or by ``wall`` alone. equal: prompts on which both emitted the same."""

    ours: str
    peer: str
    ratios: dict[str, Ratio]
    equal: int
    prompts: int
    mat: tuple[float, float]

    @property
    def verdict(self) -> str:
        """The verdict of all measures; NONE where they disagree."""
        found = {ratio.verdict for ratio in self.ratios.values()}
        return found.pop() if len(found) == 1 else NONE

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratios = {
            name: {**asdict(ratio), "spread": ratio.spread, "verdict": ratio.verdict}
            for name, ratio in self.ratios.items()
        }
        return _without_nan({**asdict(self), "ratios": ratios, "verdict": self.verdict})


def compare(ours: Side, peer: Side, cpu: bool = True) -> Comparison:
    """cpu: by minima of processor time and by medians of wall time; else, the work being elsewhere, by the latter."""
    ratios = {WALL: _ratio(ours.wall_s, peer.wall_s, ours.tokens, peer.tokens, np.median)}
    if cpu:
        ratios = {CPU: _ratio(ours.cpu_s, peer.cpu_s, ours.tokens, peer.tokens, np.min), **ratios}
    equal = sum(one == other for one, other in zip(ours.ids, peer.ids, strict=True))
    return Comparison(ours.name, peer.name, ratios, equal, len(ours.ids), (ours.mat, peer.mat))


def _ratio(ours_s: Floats, peer_s: Floats, ours_tokens: Floats, peer_tokens: Floats, pick: Callable[..., Any]) -> Ratio:
    """pick: a prompt's time of its runs. An A/A ratio has half the runs on either side, so it is no narrower."""

    def again(times: Floats, tokens: Floats) -> Estimate:
        first, second = pick(times, axis=1).T
        return speedup(first, tokens, second, tokens)

    mine, theirs = pick(ours_s, axis=(1, 2)), pick(peer_s, axis=(1, 2))
    value = speedup(theirs, peer_tokens, mine, ours_tokens)
    return Ratio(value, again(ours_s, ours_tokens), again(peer_s, peer_tokens))


HEADER = ("pair", "same ids", "MAT, ours / peer", "peer / ours", "ours A/A", "peer A/A", "verdict")


def format_peers(found: Sequence[Comparison]) -> str:
    """A markdown table, one row a pair and measure; the pair's verdict is on its last row."""
    lines = [f"| {' | '.join(HEADER)} |", "|---|--:|--:|--:|--:|--:|---|"]
    for each in found:
        for place, (name, ratio) in enumerate(each.ratios.items()):
            names = f"{each.ours}, {each.peer}: {name}"
            equal = f"{each.equal} of {each.prompts}" if not place else ""
            mat = " / ".join("" if math.isnan(value) else f"{value:.2f}" for value in each.mat) if not place else ""
            verdict = each.verdict if place == len(each.ratios) - 1 else ""
            cells = [names, equal, mat, *map(_cell, (ratio.value, ratio.ours, ratio.peer)), verdict]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(estimate: Estimate) -> str:
    if estimate.low is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _without_nan(value: Any) -> Any:
    """NaN is no JSON: null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
