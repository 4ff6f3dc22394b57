"""The statistics of a benchmark run: pure functions on arrays with one entry per case.

Two intervals that must never be mixed. *Prompts like these*: cases are resampled, so the interval
says how far the figure would move on other prompts of the same kind; every table prints this one.
*This suite re-timed*: the noise of the clock alone, seen by timing the same work twice (the A/A
control); only the control uses it.

Cases are paired: a resample takes a case's baseline and method figures together. Percentile
intervals after Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3; paired
log ratios after nanobench (``compare``).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95
MIN_CASES = 8  # fewer cases: a bootstrap of so few values is no statement, so there is no interval
SEED = 0  # one seed for all figures: methods on the same cases see the same resamples
_CHUNK = 4_000_000  # resampled indices in memory at a time, about 32 MB each array
# weights of one number of cases, of 8 numbers at most: the same for every category of that size
_KEPT = 1_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval. low, high: both None if none is given. count: its cases, or
    blocks.
    """

    value: float
    low: float | None
    high: float | None
    count: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Low and high, NaN if none is given."""
        low, high = (float("nan") if bound is None else bound for bound in (self.low, self.high))
        return low, high


def speedup(
    baseline_s: ArrayLike,
    baseline_tokens: ArrayLike,
    method_s: ArrayLike,
    method_tokens: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """Ratio of time per token, baseline over method: (sum tb / sum nb) / (sum tm / sum nm), with a
    case bootstrap.

    baseline_s, method_s: (C,) time of each case [s], the same cases in the same order. *_tokens:
    (C,) committed tokens. NaN without cases, without tokens, or without time. Source:
    docs/measurement.md, section 2.
    """
    columns = _columns(baseline_s, baseline_tokens, method_s, method_tokens)
    return estimates([columns], resamples=resamples, seed=seed)[0]


def estimates(
    figures: Iterable[Sequence[ArrayLike] | Floats], *, resamples: int = RESAMPLES, seed: int = SEED
) -> list[Estimate]:
    """Several figures at once: those of as many cases see the same resamples, which are drawn once
    for all of them.

    figures: the columns (C,) of each, four as ``speedup`` takes them, or two: sum x / sum y, which
        is MAT of tokens emitted over decode steps, and NaN if the denominators sum to zero.
    """
    found: list[Estimate] = []
    # number of cases -> figures with it, and which columns they have
    alike: dict[int, dict[int, list[bytes]]] = {}
    # cases -> columns by content: methods share vanilla's
    known: dict[int, dict[bytes, Floats]] = {}
    for given in figures:
        columns = _columns(*given)
        count = columns.shape[1]
        found.append(Estimate(float(_figure(columns.sum(axis=1))), None, None, count))
        if resamples > 0 and count >= MIN_CASES and np.isfinite(found[-1].value):
            keys = [hashlib.sha256(column).digest() for column in columns]
            alike.setdefault(count, {})[len(found) - 1] = keys
            for key, column in zip(keys, columns, strict=True):
                known.setdefault(count, {}).setdefault(key, column.copy())
    for count, wanted in alike.items():
        draws: dict[int, list[Floats]] = {place: [] for place in wanted}
        for weights in _all_weights(count, resamples, seed):
            totals = {key: weights @ column for key, column in known[count].items()}
            for place, keys in wanted.items():
                draws[place].append(_figure(np.stack([totals[key] for key in keys])))
        for place, drawn in draws.items():
            found[place] = _interval(found[place].value, np.concatenate(drawn), count)
    return found


def case_ratios(
    baseline_s: ArrayLike, baseline_tokens: ArrayLike, method_s: ArrayLike, method_tokens: ArrayLike
) -> Floats:
    """(C,) each case's own speedup: (tb / nb) / (tm / nm); NaN if a case has no tokens or no
    time.
    """
    columns = _columns(baseline_s, baseline_tokens, method_s, method_tokens)
    return _speedup_of_totals(columns)


@dataclass(frozen=True, slots=True)
class Rates:
    """Several methods on the same cases and on the same resamples of them, so that any two can be
    compared.

    values: (M,) each one's figure. draws: (R, M) on every resample, None if there are too few
    cases.
    """

    values: Floats
    draws: Floats | None
    count: int

    def over(self, first: int, second: int) -> Estimate:
        """One figure over another, paired by case."""
        value = float(self.values[first] / self.values[second])
        if self.draws is None or not np.isfinite(value):
            return Estimate(value, None, None, self.count)
        return _interval(value, self.draws[:, first] / self.draws[:, second], self.count)


def rates(columns: ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED) -> Rates:
    """Every method's speedup, as ``speedup`` has it. columns: (4, M, C) baseline's time and tokens,
    then its own.
    """
    totals = np.asarray(columns, dtype=np.float64)
    count = totals.shape[2]
    values = _speedup_of_totals(totals.sum(axis=2))
    if resamples < 1 or count < MIN_CASES:
        return Rates(values, None, count)
    drawn = [
        _speedup_of_totals(np.stack([weights @ column.T for column in totals]))
        for weights in _all_weights(count, resamples, seed)
    ]
    return Rates(values, np.concatenate(drawn), count)


def over_rounds(times_s: ArrayLike, tokens: ArrayLike) -> tuple[float, float]:
    """One case's time [s] and tokens from its rounds: the median over rounds.

    times_s, tokens: (R,). With equal tokens in all rounds (greedy) this is (median time, tokens).
    When rounds emit different numbers of tokens, the median is taken of the time per token and
    scaled by the mean tokens, so that time and tokens stay those of the same work. A round without
    tokens has no time per token: plain medians then.
    """
    seconds, counts = _columns(times_s, tokens)
    if seconds.size == 0:
        return float("nan"), 0.0
    mean_tokens = float(counts.mean())
    if (counts == counts[0]).all() or (counts == 0).any():
        return float(np.median(seconds)), mean_tokens
    return float(np.median(seconds / counts)) * mean_tokens, mean_tokens


def retiming(
    first_s: ArrayLike,
    first_tokens: ArrayLike,
    again_s: ArrayLike,
    again_tokens: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """The ratio of the same work, timed twice, which should be 1: exp(median of paired log ratios),
    with an interval.

    Per block b: l = log(first_s / first_tokens) - log(again_s / again_tokens). Blocks are
    resampled, the interval is that of the median of l. Both sides did the same work, so prompts
    cancel and only the clock's noise is left. Unlike nanobench's sign interval (order statistics of
    l) it is not conservative by discreteness. first_s ...: (B,) one entry a block.
    """
    ratios = case_ratios(first_s, first_tokens, again_s, again_tokens)
    logs = np.log(ratios[np.isfinite(ratios) & (ratios > 0)])
    if logs.size == 0:
        return Estimate(float("nan"), None, None, 0)
    value = float(np.exp(np.median(logs)))
    if resamples < 1 or logs.size < MIN_CASES:
        return Estimate(value, None, None, logs.size)
    medians = np.concatenate(
        [np.median(logs[index], axis=1) for index in _resamples(logs.size, resamples, seed)]
    )
    return _interval(value, np.exp(medians), logs.size)


def _columns(*arrays: ArrayLike) -> Floats:
    """(K, C) the arrays as rows. Raises ValueError when their lengths differ."""
    columns = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    lengths = [column.size for column in columns]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"paired arrays have lengths {lengths}; expected one entry a case in each, in the same"
            " order"
        )
    return np.stack(columns)


def _ratio_of_totals(totals: Floats) -> Floats:
    """totals: (2, ...) -> (...)."""
    numerator, denominator = totals
    return np.divide(
        numerator, denominator, out=np.full_like(denominator, np.nan), where=denominator > 0
    )


def _speedup_of_totals(totals: Floats) -> Floats:
    """totals: (4, ...) -> (...)."""
    return _ratio_of_totals(np.stack([_ratio_of_totals(totals[:2]), _ratio_of_totals(totals[2:])]))


def _figure(totals: Floats) -> Floats:
    """totals: (2, ...) or (4, ...) -> (...)."""
    return _ratio_of_totals(totals) if len(totals) == 2 else _speedup_of_totals(totals)


def _resamples(count: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Chunks (M, count) of case indices drawn with replacement, ``resamples`` rows in all."""
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // count)
    for start in range(0, resamples, rows):
        yield generator.integers(0, count, (min(rows, resamples - start), count))


def _all_weights(count: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Chunks (M, count) of how often each case was drawn; those of few cases are kept, for there
    are many of them.
    """
    if count * resamples <= _KEPT:
        return iter([_weights_of_few(count, resamples, seed)])
    return map(_weights, _resamples(count, resamples, seed))


@functools.lru_cache(maxsize=8)
def _weights_of_few(count: int, resamples: int, seed: int) -> Floats:
    return np.concatenate(list(map(_weights, _resamples(count, resamples, seed))))


def _weights(index: NDArray[np.int64]) -> Floats:
    """Counts draws of each case: indices (M, C) -> counts (M, C); totals are then a product, not a
    gather.
    """
    rows, count = index.shape
    index += np.arange(rows)[:, None] * count  # in place: at 100,000 cases a chunk is 32 MB
    return (
        np.bincount(index.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
    )


def _interval(value: float, draws: Floats, count: int) -> Estimate:
    """Percentiles of the finite draws; widened to the estimate where rounding alone would leave it
    outside.
    """
    draws = draws[np.isfinite(draws)]
    if draws.size == 0:
        return Estimate(value, None, None, count)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Estimate(value, min(float(low), value), max(float(high), value), count)
