"""Modelled speedups: recorded steps, priced by a latency profile.

For the steps i of a request, with the context c_i in the cache and f_i tokens fed, predicted is

    sum over emitted tokens of S(1, c)  /  sum over steps of (S(f_i, c_i) + own_i),     S = T + host,

T the forward and host the engine's time beside it, vanilla's too; own: the drafter's recorded time. Ideal is the same
with T alone, so that measured over ideal is what is lost besides the forwards (efficiency, docs/latency.md section 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.profile import Profile
from specbench.profile.surface import Floats
from specbench.record import CONTROL, VANILLA, CaseRecord
from specbench.report.data.trials import DRAFTER_PHASES
from specbench.store import Run

MODELLED = ("vanilla_ms", "method_ms", "vanilla_ideal_ms", "ideal_ms")
PREDICTED = ("method", "case", "emitted", "steps", "outside", "own_ms", *MODELLED)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a profile makes of one run. cases: a row a (method, case), indexed so, summed over the rounds.

    outside: steps whose time is an extension of what the profile measured. own_ms: the drafter's, part of method_ms.
    own: the profile is of the run's own machine, model and engine, so that measured and predicted may be compared.
    """

    profile: Profile
    cases: pd.DataFrame
    own: bool = False

    def of(self, method: str) -> pd.DataFrame:
        """The rows of one method, indexed by case."""
        return self.cases[self.cases.index.get_level_values("method") == method].droplevel("method")


def predict(run: Run, peers: Iterable[str], profile: Profile) -> Prediction:
    """A run's cases under a profile; peers have none, since their drafts are not recorded."""
    silent = {VANILLA, CONTROL, *peers}
    rows = [_row(record, profile) for record in run.records if record.status == "ok" and record.method not in silent]
    frame = pd.DataFrame(rows, columns=list(PREDICTED))
    numbers = dict.fromkeys(PREDICTED[2:], float)
    return Prediction(profile, frame.astype(numbers).groupby(["method", "case"], sort=False).sum())


def steps_of(records: Sequence[CaseRecord]) -> tuple[Floats, Floats, Floats, Floats]:
    """Every decode step's fed, context and emitted, (S,) each, and the context of every emitted token, (E,).

    Context: tokens in the cache before the forward, that is prompt and answer but for the root.
    """
    fed, context, emitted, each = [], [], [], []
    for record in records:
        for turn in record.turns:
            accept = np.asarray(turn.accept, dtype=np.float64)
            fed.append(np.asarray(turn.fed, dtype=np.float64))
            start = turn.prompt_tokens - turn.in_prefill
            context.append(start + np.cumsum(accept) - accept)
            emitted.append(accept)
            each.append(start + np.arange(accept.sum()))
    none = [np.empty(0)]
    return tuple(np.concatenate(parts or none) for parts in (fed, context, emitted, each))  # type: ignore[return-value]


def shared_speedup(profile: Profile, steps: tuple[Floats, Floats, Floats, Floats], count: int) -> tuple[float, float]:
    """(speedup, share of steps outside of what was measured) with ``count`` requests at once."""
    fed, context, _, each = steps
    vanilla = profile.shared_ms(count * np.ones(len(each)), each, count).sum()
    method = profile.shared_ms(count * fed, context, count).sum()
    beyond = profile.outside(count * fed, context) | profile.outside(np.ones(len(fed)), count * context)
    return float(vanilla / method), float(beyond.mean())


def own_ms(record: CaseRecord) -> float:
    """[ms] The drafter's recorded time in all turns."""
    return 1e3 * sum(turn.phases_s.get(phase, 0.0) for turn in record.turns for phase in DRAFTER_PHASES)


def _row(record: CaseRecord, profile: Profile) -> tuple[str | float, ...]:
    fed, context, emitted, each = steps_of([record])
    one = np.ones(len(each))
    return (
        *(record.method, record.case, float(emitted.sum()), len(fed)),
        int(profile.outside(fed, context).sum()),
        own_ms(record),
        float(profile.step_ms(one, each).sum()),
        float(profile.step_ms(fed, context).sum()) + own_ms(record),
        float(profile.forward_ms(one, each).sum()),
        float(profile.forward_ms(fed, context).sum()),
    )
