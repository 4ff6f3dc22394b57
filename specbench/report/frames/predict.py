"""Modelled speedups: recorded steps, priced by a latency profile.

For the steps i of a request, with the context c_i in the cache and f_i tokens fed, predicted is

    sum over emitted tokens of S(1, c)  /  sum over steps of (S(f_i, c_i) + own),     S = T + host,

T the forward and host the engine's other time, vanilla's too; own: the drafter's recorded time a
step, the median over cases, so that a short load on the machine does not decide between methods. Of
a busy machine it is the processor's time: the recorded time by the share of the request in which
its thread had a processor. Ideal is the same with T alone, so that measured over ideal is what is
lost besides the forwards (efficiency, docs/latency.md section 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.profile import Profile
from specbench.profile.profile import Floats
from specbench.records.record import CONTROL, VANILLA
from specbench.report.frames.steps import Steps, contexts_of_tokens
from specbench.report.frames.trials import Columns, Trials

MODELLED = ("vanilla_ms", "method_ms", "vanilla_ideal_ms", "ideal_ms")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A profile's prediction of a run. cases: method -> a row per case that failed in no round,
    summed over the rounds.

    place: of the case among the run's, by whose names the rows are indexed. outside: steps whose
    time is an extension of what the profile measured. own_ms: the drafter's, part of method_ms.
    own: the profile is of the run's own machine, model and engine, so that measured and predicted
    may be compared.
    """

    profile: Profile
    cases: Mapping[str, pd.DataFrame]
    own: bool = False


def predict(
    trials: Trials, silent: Collection[str], profile: Profile, busy: bool = False
) -> Prediction:
    """A run's cases under a profile; no methods whose drafts are not known, as those of peers.

    busy: other processes competed with the run, so that drafting counts with the processor's time.
    """
    found = {}
    for method, each in trials.methods.items():
        if method in silent or method in (VANILLA, CONTROL) or not len(each.turns):
            continue
        counted = {name: column[each.columns["counted"]] for name, column in each.columns.items()}
        priced = _price(counted, each.turns.steps, profile)
        if busy:
            priced["own_ms"] *= processor_share(counted)
        rows = pd.DataFrame({"place": counted["case"]} | priced)
        cases = rows.groupby("place", sort=False, as_index=False).sum()
        own_ms = cases["steps"] * float(
            (cases["own_ms"] / cases["steps"]).median() if cases["steps"].any() else 0.0
        )
        cases = cases.assign(own_ms=own_ms, method_ms=cases["method_ms"] + own_ms)
        found[method] = cases.set_index(trials.cases[cases["place"]])
    return Prediction(profile, found)


def with_drafting(cases: pd.DataFrame, requests: int) -> pd.DataFrame:
    """The cases of one of several concurrent requests, whose drafters run in sequence; 0: drafting
    costs nothing.
    """
    method_ms, own_ms = (
        cases["method_ms"] + (requests - 1) * cases["own_ms"],
        requests * cases["own_ms"],
    )
    return cases if requests == 1 else cases.assign(method_ms=method_ms, own_ms=own_ms)


def processor_share(rows: Columns) -> Floats:
    """(R,) of each record the share of its time in which the decoding thread had a processor; 1 if
    it is unknown.
    """
    share = np.divide(
        rows["cpu_s"], rows["wall_s"], out=np.ones(len(rows["cpu_s"])), where=rows["wall_s"] > 0
    )
    return np.where(np.isnan(share), 1.0, np.minimum(share, 1.0))


LEADS = "With drafting at half and at twice the measured time"


def describe_leads(cases: Mapping[str, pd.DataFrame]) -> str:
    """Who leads, and by how much, with drafting at half and at twice the measured time; '' of fewer
    than two methods.

    cases: of each method by its printed name.
    """
    if len(cases) < 2:
        return ""
    leads = []
    for factor in (0.5, 2.0):
        found = {
            name: float(
                rows["vanilla_ms"].sum() / (rows["method_ms"] + (factor - 1) * rows["own_ms"]).sum()
            )
            for name, rows in cases.items()
        }
        (first, best), (second, next_best), *_ = sorted(found.items(), key=lambda each: -each[1])
        leads.append((f"{first} leads {second} by ", f"{best / next_best:.3f}"))
    (half, by_half), (twice, by_twice) = leads
    both = f"{by_half} and {by_twice}" if half == twice else f"{by_half} and {twice}{by_twice}"
    return f"{LEADS} {half}{both}."


def _price(rows: Columns, steps: Steps, profile: Profile) -> dict[str, Floats]:
    """Tokens, steps and times [ms] of each record. rows: of those whose steps these are."""
    summed: dict[str, list[float]] = {name: [] for name in ("outside", *MODELLED)}
    first = done = 0
    ends = np.cumsum(rows["steps"])
    for fed, context, emitted in steps.read("fed", "context", "emitted"):
        done += len(fed)  # a block has whole records; those without a step may be in either
        stop = len(ends) if done == len(steps) else int(np.searchsorted(ends, done, side="right"))
        here, first = slice(first, stop), stop
        each = contexts_of_tokens(context, emitted)
        one = np.ones(len(each))
        of_steps, of_tokens = (np.cumsum(rows[name][here]) for name in ("steps", "emitted"))
        summed["outside"] += _sums(profile.outside(fed, context), of_steps)
        summed["vanilla_ms"] += _sums(profile.step_ms(one, each), of_tokens)
        summed["method_ms"] += _sums(profile.step_ms(fed, context), of_steps)
        summed["vanilla_ideal_ms"] += _sums(profile.forward_ms(one, each), of_tokens)
        summed["ideal_ms"] += _sums(profile.forward_ms(fed, context), of_steps)
    found = {name: np.array(values or [0.0] * len(rows["case"])) for name, values in summed.items()}
    known = {name: rows[name].astype(np.float64) for name in ("emitted", "steps")}
    return {**known, **found, "own_ms": 1e3 * rows["drafter_s"]}


def shared_speedup(
    profile: Profile, steps: Steps, count: int, own_ms: float = 0.0
) -> tuple[float, float, float]:
    """(speedup, the same with drafting, share of steps outside of what was measured) with ``count``
    requests at once.

    own_ms: of drafting a step, which every request adds to it: a server may draft for several at a
    time.
    """
    totals = np.zeros(3)  # vanilla [ms], the method [ms], steps outside
    for fed, context, emitted in steps.read("fed", "context", "emitted"):
        each = contexts_of_tokens(context, emitted)
        vanilla = profile.shared_ms(count * np.ones(len(each)), each, count)
        method = profile.shared_ms(count * fed, context, count)
        beyond = profile.outside(count * fed, context) | profile.outside(
            np.ones(len(fed)), count * context
        )
        totals += vanilla.sum(), method.sum(), beyond.sum()
    vanilla_ms, method_ms, outside = totals.tolist()
    return (
        vanilla_ms / method_ms,
        vanilla_ms / (method_ms + count * own_ms * len(steps)),
        outside / len(steps),
    )


def _sums(values: NDArray[Any], ends: NDArray[np.int64]) -> list[float]:
    """The sum of each record's values, which end at these places."""
    return [
        float(values[start:end].sum()) for start, end in itertools.pairwise([0, *ends.tolist()])
    ]
