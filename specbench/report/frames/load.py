"""The modelled speedup of a method if equal requests share each forward, and the load at which the
gain ends.

B requests that all take the same recorded steps feed B times the tokens and read B times the
context, but no token attends to another request's. So with S(fed, context) the profile's step and T
its forward, a shared step takes

    U(B, f, c) = S(B f, c) + T(1, B c) - T(1, c),

which for a linear fit is S(B f, B c), and

    speedup(B) = sum over emitted tokens of U(B, 1, c)  /  sum over steps of U(B, f_i, c_i).

Drafters' own time is left out, as how a server spreads it over cores is its own choice; a second
figure is the speedup with it, each request's median a step, one request after the other. At one
request that is the predicted one. A draft of q - 1 tokens pays where it emits more than U(B, q, c)
/ U(B, 1, c) tokens a step, the break-even MAT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.profile import Profile
from specbench.records.record import VANILLA
from specbench.records.store import RunError
from specbench.report.frames.findings import Findings
from specbench.report.frames.predict import shared_speedup
from specbench.report.frames.steps import Steps
from specbench.report.frames.summary import of_place
from specbench.report.table import ROW

USUAL = (1, 8, 32, 128)
FEW = 0.05  # share of steps that may lie outside of what was measured before a figure is marked
MOST = 4096  # requests at once; what still pays there is reported so
PAYING = 1 + 1e-9  # rounding alone is not a speedup
QUERIES = (2, 3, 4, 6, 8, 11, 16, 24, 32, 48, 64, 96)
CROSSOVER = (*ROW, "concurrency", "modelled_speedup", "with_drafting", "outside")
PAYS = (*ROW, "mat", "pays_to")
BREAK_EVEN = ("model", "suite", "concurrency", "fed", "break_even_mat", "outside")
LABELLED = "Modelled, batch of equal requests"


@dataclass(frozen=True, slots=True)
class Load:
    """Modelled speedups of methods when several requests share each forward.

    speedups: a row a (method, concurrency). pays: a row a method, the most requests at which the
    speedup is above 1 (0: never, ``MOST``: no end found). break_even: the MAT that pays for a width
    of forward. outside: share of steps, or 1.
    """

    speedups: pd.DataFrame
    pays: pd.DataFrame
    break_even: pd.DataFrame
    where: str

    def of_place(self, model: str, suite: str) -> Load | None:
        """The rows of one model and suite; None if it has none."""
        frames = (self.speedups, self.pays, self.break_even)
        speedups, pays, even = (of_place(frame, model, suite) for frame in frames)
        return Load(speedups, pays, even, self.where) if len(speedups) else None


def model_load(findings: Findings, concurrency: Sequence[int] = ()) -> Load | None:
    """Every method that drafts under each number of requests; None if there is no profile, or no
    step to model.

    concurrency: numbers that were asked for, with which RunError is raised instead; default the
    usual ones.
    """
    if concurrency and not any(findings.predictions):
        raise RunError(
            "--concurrency: no latency profile; name one with --profile FILE (specbench profile"
            " measures one, results/profiles/published/ contains published fits)"
        )
    asked, concurrency = bool(concurrency), concurrency or USUAL
    speedups: list[tuple[str | float, ...]] = []
    pays: list[tuple[str | float, ...]] = []
    even: list[tuple[str | float, ...]] = []
    for entry in findings.reported:
        if entry.prediction is None:
            continue
        profile = entry.prediction.profile
        for method in entry.facts.drafters:
            key, steps = entry.key(method), entry.trials.of(method).turns.steps
            if not len(steps):
                continue
            cases = entry.prediction.cases[method]
            # of a predicted step
            own_ms = float(cases["own_ms"].sum() / max(1.0, cases["steps"].sum()))
            speedups += [
                (*key, count, *shared_speedup(profile, steps, count, own_ms))
                for count in concurrency
            ]
            emitted = sum(float(emitted.sum()) for (emitted,) in steps.read("emitted"))
            pays.append((*key, emitted / len(steps), _pays_to(profile, steps, concurrency)))
        steps = entry.trials.of(VANILLA).turns.steps
        contexts = sum(float(context.sum()) for (context,) in steps.read("context"))
        mean, fed = (
            np.full(len(QUERIES), contexts / max(1, len(steps))),
            np.array(QUERIES, dtype=np.float64),
        )
        one = np.ones(len(fed))
        for count in concurrency:  # the break-even at vanilla's mean context
            ratio = profile.shared_ms(count * fed, mean, count) / profile.shared_ms(
                count * one, mean, count
            )
            beyond = profile.outside(count * fed, mean) | profile.outside(one, count * mean)
            found = zip(QUERIES, ratio.tolist(), beyond.tolist(), strict=True)
            even += [(*entry.place, count, query, value, int(far)) for query, value, far in found]
    if not speedups:
        if asked:
            raise RunError(
                "--concurrency: no method of these runs has a decode step that drafts; nothing to"
                " model"
            )
        return None
    return Load(
        pd.DataFrame(speedups, columns=list(CROSSOVER)),
        pd.DataFrame(pays, columns=list(PAYS)),
        pd.DataFrame(even, columns=list(BREAK_EVEN)).drop_duplicates(
            ["model", "suite", "concurrency", "fed"]
        ),
        findings.profiles,
    )


def _pays_to(profile: Profile, steps: Steps, asked: Sequence[int]) -> int:
    """The largest number of requests with a speedup above 1.

    Of the powers of two and the numbers asked for, the last one that pays; then bisection towards
    the next. The speedup need not fall with the load: where a few tokens cost nearly as much as
    many, it rises first.
    """
    tried = sorted(
        {1 << power for power in range(MOST.bit_length())}
        | {count for count in asked if count < MOST}
    )
    paying = [
        place
        for place, count in enumerate(tried)
        if shared_speedup(profile, steps, count)[0] > PAYING
    ]
    if not paying:
        return 0
    if tried[paying[-1]] == MOST:
        return MOST
    low, high = tried[paying[-1]], tried[paying[-1] + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if shared_speedup(profile, steps, middle)[0] > PAYING else (low, middle)
        )
    return low
