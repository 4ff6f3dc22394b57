"""MAT, time a step and speedup by the tokens emitted before a step, and by the tokens in its context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specbench.report.frames.trials import BLANK, MethodTrials
from specbench.stats import MIN_CASES, RESAMPLES, Estimate, estimates

Rows = Iterator[tuple[str | float, ...]]
EDGES = {  # of the bins; powers of two, the last is open
    "position": (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "context": (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}


def count_lengths(found: MethodTrials, timed: bool, vanilla: MethodTrials | None = None) -> Rows:
    """A row an axis and bin that has steps: steps, tokens, MAT, mean [ms] a step, and the speedup with its interval.

    What needs times is blank where the target was not timed; the speedup also without ``vanilla``.
    """
    known = timed and is_timed(found)
    for axis, edges in EDGES.items():
        totals = np.zeros((len(edges), 3))  # of each bin: steps, tokens emitted, seconds
        for at, emitted, seconds in found.turns.steps.read(axis, "emitted", "seconds"):
            place = np.searchsorted(edges, at, side="right") - 1
            for number in np.unique(place):
                own = place == number
                totals[number] += own.sum(), emitted[own].sum(), seconds[own].sum()
        paired = known and vanilla is not None and is_timed(vanilla)
        ratios = compare_bins(vanilla, found, axis) if paired and vanilla is not None else [_NONE] * len(edges)
        for edge, ratio, (steps, emitted, seconds) in zip(edges, ratios, totals, strict=True):
            if steps:
                mean_ms = 1e3 * float(seconds / steps) if known else BLANK
                yield axis, edge, int(steps), int(emitted), float(emitted / steps), mean_ms, ratio.value, *ratio.bounds


def is_timed(found: MethodTrials) -> bool:
    """Whether every step has its seconds."""
    return found.turns.steps.timed == len(found.turns.steps)


def compare_bins(vanilla: MethodTrials, found: MethodTrials, axis: str) -> list[Estimate]:
    """Of each bin: vanilla's time per token over the method's, over the cases in which both have steps there."""
    (cases, sums), (others, theirs) = _sum_by_case(found, axis), _sum_by_case(vanilla, axis)
    _, own, base = np.intersect1d(cases, others, assume_unique=True, return_indices=True)
    pairs = np.concatenate([theirs[:, base], sums[:, own]])  # (4, C, bins)
    both = (pairs[1] > 0) & (pairs[3] > 0)
    pairs *= both
    counts = both.sum(axis=0).tolist()
    return [_estimate(pairs[:, :, number], count, found is vanilla) for number, count in enumerate(counts)]


def _estimate(pairs: np.ndarray, cases: int, itself: bool) -> Estimate:
    """Cases without steps in the bin are zeros: with them every bin has the same resamples."""
    return estimates([pairs], resamples=RESAMPLES if cases >= MIN_CASES and not itself else 0)[0]


def _sum_by_case(found: MethodTrials, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """(C,) numbers of cases, and (2, C, bins) their seconds and tokens, all rounds."""
    columns, edges = found.columns, EDGES[axis]
    cases, numbers = np.unique(columns["case"][columns["counted"]], return_inverse=True)
    sums = np.zeros((2, len(cases) * len(edges)))
    for at, record, emitted, seconds in found.turns.steps.read(axis, "record", "emitted", "seconds"):
        place = numbers[record.astype(np.int64)] * len(edges) + np.searchsorted(edges, at, side="right") - 1
        sums += [np.bincount(place, weights, sums.shape[1]) for weights in (seconds, emitted)]
    return cases, sums.reshape(2, len(cases), len(edges))


_NONE = Estimate(BLANK, None, None, 0)
