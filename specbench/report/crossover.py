"""When speculation stops paying: a method's modelled speedup when many equal requests share each forward.

B requests that all take the same recorded steps feed B times the tokens and read B times the context, but no token
attends to another request's. So with S(fed, context) the profile's step and T its forward, a shared step takes

    U(B, f, c) = S(B f, c) + T(1, B c) - T(1, c),

which for a linear fit is S(B f, B c), and

    speedup(B) = sum over emitted tokens of U(B, 1, c)  /  sum over steps of U(B, f_i, c_i).

Drafters' own time is left out: how a server spreads it over cores is its own choice. A draft of q - 1 tokens pays where
it emits more than U(B, q, c) / U(B, 1, c) tokens a step, the break-even MAT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.profile import Profile
from specbench.profile.surface import Floats
from specbench.record import CONTROL, VANILLA, CaseRecord
from specbench.report.detail import ROW
from specbench.report.findings import Findings
from specbench.report.label import Cell, label
from specbench.report.predict import steps_of
from specbench.report.table import Table
from specbench.store import RunError

MOST = 4096  # requests at once; what still pays there is reported so
QUERIES = (2, 3, 4, 6, 8, 11, 16, 24, 32, 48, 64, 96)
CROSSOVER = (*ROW, "concurrency", "modelled_speedup", "outside")
PAYS = (*ROW, "mat", "pays_to")
BREAK_EVEN = ("model", "suite", "concurrency", "fed", "break_even_mat", "outside")
LABELLED = "Modelled, batch of equal requests"


@dataclass(frozen=True, slots=True)
class Load:
    """speedups: a row a (method, concurrency). pays: (methods) the most requests at which it is above 1, 0 for none,
    ``MOST`` for no end found. break_even: the MAT that pays for a width of forward. outside: share of steps, or 1.
    """

    speedups: pd.DataFrame
    pays: pd.DataFrame
    break_even: pd.DataFrame
    where: str


def load(findings: Findings, concurrency: Sequence[int]) -> Load:
    """Every method that drafts under each number of requests. Raises RunError without a profile."""
    if not any(findings.predictions):
        raise RunError(
            "--concurrency: no latency profile; name one with --profile FILE (scripts/profile_latency.py measures one,"
            " results/profiles/published/ holds published fits)"
        )
    speedups: list[tuple[str | float, ...]] = []
    pays: list[tuple[str | float, ...]] = []
    even: list[tuple[str | float, ...]] = []
    for run, facts, names, found in zip(
        findings.runs, findings.facts, findings.variants, findings.predictions, strict=True
    ):
        if found is None:
            continue
        for method in facts.methods:
            if method in (VANILLA, CONTROL) or method in facts.peers | facts.unaccepted:
                continue
            key = (facts.model, facts.suite, method, names.get(method, ""))
            records = [each for each in run.records if each.method == method and each.status == "ok"]
            steps = steps_of(records)
            if not len(steps[0]):
                continue
            rows = [(*key, count, *_shared(found.profile, steps, count)) for count in concurrency]
            speedups += rows
            pays.append((*key, float(steps[2].sum() / len(steps[0])), _pays_to(found.profile, steps)))
        even += _break_even(found.profile, (facts.model, facts.suite), run.records, concurrency)
    profiles = dict.fromkeys(found.profile.label for found in findings.predictions if found)
    even_frame = pd.DataFrame(even, columns=list(BREAK_EVEN)).drop_duplicates(["model", "suite", "concurrency", "fed"])
    return Load(
        pd.DataFrame(speedups, columns=list(CROSSOVER)),
        pd.DataFrame(pays, columns=list(PAYS)),
        even_frame,
        "; ".join(profiles),
    )


def _shared(profile: Profile, steps: tuple[Floats, Floats, Floats, Floats], count: int) -> tuple[float, float]:
    """(speedup, share of steps outside of what was measured) with ``count`` requests at once."""
    fed, context, _, each = steps
    vanilla = _step_ms(profile, count, np.ones(len(each)), each).sum()
    method = _step_ms(profile, count, fed, context).sum()
    beyond = profile.outside(count * fed, context) | profile.outside(np.ones(len(fed)), count * context)
    return float(vanilla / method), float(beyond.mean())


def _step_ms(profile: Profile, count: int, fed: Floats, context: Floats) -> Floats:
    """U of the module's docstring."""
    one = np.ones(len(fed))
    others = profile.forward_ms(one, count * context) - profile.forward_ms(one, context)
    return profile.step_ms(count * fed, context) + others


def _pays_to(profile: Profile, steps: tuple[Floats, Floats, Floats, Floats]) -> int:
    """The largest number of requests with a speedup above 1, by bisection between the last that pays and the next."""
    low, high = 0, 1
    while high <= MOST and _shared(profile, steps, high)[0] > 1:
        low, high = high, 2 * high
    if low >= MOST:
        return MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _shared(profile, steps, middle)[0] > 1 else (low, middle)
    return low


def _break_even(
    profile: Profile, place: tuple[str, str], records: Sequence[CaseRecord], concurrency: Sequence[int]
) -> Iterator[tuple[str | float, ...]]:
    """At the mean context of vanilla's steps."""
    _, context, _, _ = steps_of([each for each in records if each.method == VANILLA and each.status == "ok"])
    mean = np.full(len(QUERIES), float(context.mean()) if len(context) else 0.0)
    fed = np.array(QUERIES, dtype=np.float64)
    for count in concurrency:
        ratio = _step_ms(profile, count, fed, mean) / _step_ms(profile, count, np.ones(len(fed)), mean)
        beyond = profile.outside(count * fed, mean) | profile.outside(np.ones(len(fed)), count * mean)
        for query, value, far in zip(QUERIES, ratio, beyond, strict=True):
            yield (*place, count, query, float(value), int(far))


def crossover_table(found: Load) -> Table:
    """Methods down, numbers of requests across; the last column says how far it pays."""
    counts = sorted(found.speedups["concurrency"].unique())
    rows = []
    for entry in found.pays.itertuples(index=False):
        own = found.speedups
        for column in ROW:
            own = own[own[column] == getattr(entry, column)]
        cells = own.set_index("concurrency")
        words = [f"{cells.at[c, 'modelled_speedup']:.2f}{'*' if cells.at[c, 'outside'] else ''}" for c in counts]
        rows.append(
            tuple(map(Cell, (label(entry.method, entry.variant), f"{entry.mat:.2f}", *words, _spell(entry.pays_to))))
        )
    star = " *: steps beyond what the profile measured." if (found.speedups["outside"] > 0).any() else ""
    meaning = f"{LABELLED}: speedup over vanilla by requests that share a forward, drafting time not counted.{star}"
    header = ("Method", "MAT", *(f"{count} at once" for count in counts), "Pays up to")
    return Table("crossover", f"{found.where}.", meaning, header, tuple(rows), frozenset())


def _spell(pays_to: int) -> str:
    if pays_to == 0:
        return "never"
    return f"{MOST} or more" if pays_to >= MOST else str(pays_to)
