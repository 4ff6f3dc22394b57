"""How often a drafter agrees with the target, what it costs, and the acceptance at which it would
pay, by category.

The oracle is the best that any policy of draft lengths could have done on the drafts of a run:
every step feeds and drafts as many levels as were accepted, or none at all, or what it did, where
that is cheaper. Longer drafts cost more for the same tokens; what would have followed a shorter one
is not known. Nodes and drafting time count by the level, evenly: a tree has no record of how many
nodes its levels have, and a drafter that drafts all levels at once saves nothing, so the oracle is
a bound. Forwards are priced by the latency profile, else by the run's own two: vanilla's mean step,
and the method's at its mean number of tokens fed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.records.record import OVERALL, VANILLA
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.steps import Floats
from specbench.report.frames.trials import Columns, MethodTrials, ratio
from specbench.report.table import KEYS, ROW

MEASURED, MODELLED = "measured", "modelled"
# (S,) tokens fed, (S,) contexts -> (S,) [ms] of a step without its drafting
Price = Callable[[Floats, Floats], Floats]
_COUNTED = ("drafted", "first", "vanilla_ms", "run_ms", "oracle_ms")
# shares that a record states, and what they are shares of
_STATED = {"in_vocabulary": "tokens", "overlap": "steps"}
AUDIT = (
    *ROW,
    "category",
    *("steps", "mat", "first_accepted", "acceptance_rate", *_STATED, "drafted_us"),
    *("break_even_mat", "break_even_draft_ms", "basis", "as_run", "oracle"),
)


def audit(reported: Sequence[ReportedRun], summary: pd.DataFrame) -> pd.DataFrame:
    """One row per method that drafts, and category. summary: of the same runs.

    first_accepted: steps whose draft's first level was accepted, of those with a draft.
    in_vocabulary: emitted tokens that the drafter can draft at all. overlap: 1 less the total
    variation distance of the two laws after the root. drafted_us: drafter's time a node. as_run,
    oracle: decode speedups, priced by the method that ``basis`` names.
    """
    known = {tuple(row[key] for key in KEYS): row for row in summary.to_dict("records")}
    rows = []
    for entry, method in ((each, method) for each in reported for method in each.facts.drafters):
        if not len(entry.trials.of(method)):
            continue
        model, suite, _, variant = key = entry.key(method)
        basis, found = _count(entry, method)
        for category, sums in found.items():
            own = known.get((model, suite, category, method, variant))
            if own is None or not sums["drafted"]:
                continue
            step_ms = 1e3 * ratio(own["mat"], own["decode_tokens_per_s"])
            drafter_ms = 1e3 * ratio(sums["drafter_s"], own["steps"])
            rows.append(
                dict(zip(ROW, key, strict=True))
                | {name: own[name] for name in ("steps", "mat", "acceptance_rate")}
                | {name: ratio(sums[name], sums[f"{name}_of"]) for name in _STATED}
                | {
                    "category": category,
                    "first_accepted": ratio(sums["first"], sums["drafted"]),
                    "drafted_us": 1e3 * ratio(drafter_ms, own["mean_draft"]),
                    "break_even_mat": ratio(own["mat"], own["decode_speedup"]),
                    "break_even_draft_ms": drafter_ms + step_ms * (own["decode_speedup"] - 1),
                    "basis": basis,
                    "as_run": ratio(sums["vanilla_ms"], sums["run_ms"]),
                    "oracle": ratio(sums["vanilla_ms"], sums["oracle_ms"]),
                }
            )
    return pd.DataFrame(rows, columns=list(AUDIT))


def _count(entry: ReportedRun, method: str) -> tuple[str, dict[str, dict[str, float]]]:
    """Returns the basis of the steps' prices, and category -> sums over its records."""
    trials = entry.trials.of(method)
    rows = {name: column[trials.columns["counted"]] for name, column in trials.columns.items()}
    basis, price, level_ms = _find_price(entry, trials, rows)
    sums = _count_steps(trials, rows, price, level_ms) | {"drafter_s": rows["drafter_s"]}
    for name, whole in _STATED.items():
        stated = ~np.isnan(rows[name])
        sums[name] = np.where(stated, rows[name], 0.0)
        sums[f"{name}_of"] = np.where(stated, rows[whole], 0.0)
    groups: dict[str, Any] = {OVERALL: slice(None)}
    groups |= {
        str(entry.trials.categories[n]): rows["category"] == n for n in np.unique(rows["category"])
    }
    return basis, {
        category: {name: float(values[own].sum()) for name, values in sums.items()}
        for category, own in groups.items()
    }


def _find_price(
    entry: ReportedRun, trials: MethodTrials, rows: Columns
) -> tuple[str, Price | None, float]:
    """(basis, what steps cost, [ms] of drafting a level); blank if neither is known."""
    levels = sum(float(depth.sum()) for (depth,) in trials.turns.steps.read("depth"))
    level_ms = 1e3 * ratio(rows["drafter_s"].sum(), levels)
    if entry.prediction is not None:
        return MODELLED, entry.prediction.profile.step_ms, level_ms
    vanilla = entry.trials.of(VANILLA).columns
    counted = vanilla["counted"]
    one_ms = 1e3 * ratio(vanilla["decode_s"][counted].sum(), vanilla["steps"][counted].sum())
    steps = rows["steps"].sum()
    fed_ms = 1e3 * ratio(rows["decode_s"].sum() - rows["drafter_s"].sum(), steps)
    more = ratio(rows["fed"].sum(), steps) - 1
    if (
        not entry.facts.timed
        or entry.facts.time_only
        or entry.facts.load
        or not one_ms > 0
        or not more > 0
    ):
        return "", None, level_ms
    slope = max(0.0, (fed_ms - one_ms) / more)
    return MEASURED, lambda fed, _: one_ms + slope * (fed - 1), level_ms


def _count_steps(
    trials: MethodTrials, rows: Columns, price: Price | None, level_ms: float
) -> dict[str, Floats]:
    """(R,) sums over the steps of each record."""
    summed: dict[str, list[Floats]] = {name: [] for name in _COUNTED}
    for fed, context, emitted, depth in trials.turns.steps.read(
        "fed", "context", "emitted", "depth"
    ):
        accepted = np.minimum(emitted - 1, depth)
        summed["drafted"].append((depth > 0).astype(np.float64))
        summed["first"].append((accepted > 0).astype(np.float64))
        if price is None:
            continue
        one, nodes = price(np.ones(len(fed)), context), (fed - 1) / np.maximum(depth, 1)
        best = price(1 + nodes * accepted, context) + level_ms * accepted
        summed["vanilla_ms"].append(one * emitted)
        run = price(fed, context) + level_ms * depth
        summed["run_ms"].append(run)
        summed["oracle_ms"].append(np.minimum(np.minimum(best, run), one * emitted))
    ends = np.cumsum(rows["steps"])
    found = {}
    for name, parts in summed.items():
        total = np.concatenate([[0.0], np.cumsum(np.concatenate(parts))]) if parts else np.zeros(1)
        found[name] = (
            np.asarray(total[ends] - total[ends - np.diff(ends, prepend=0)])
            if parts
            else 0.0 * ends
        )
    return found
