"""The ratio of the figures of any two methods, not only of one over vanilla, on the cases that both
finished.

Each is measured over the vanilla of its own run, and both are resampled together, so that a hard
case counts for both. In a closed loop the speedup is that of the server's tokens/s, and stretches
are resampled instead of cases. Two methods tie if the interval of their ratio contains 1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from specbench import stats
from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.frames.cases import Cases, CasesOfRun
from specbench.report.frames.reported import ReportedRun
from specbench.report.frames.served import pair_stretches
from specbench.report.frames.trials import Values
from specbench.stats import Estimate

# the columns that a contest decides -> its figure
CONTEST_OF = {
    **dict.fromkeys(("speedup", "speedup_hf", "tokens_per_s", "decode_tokens_per_s"), "speedup"),
    **{figure: figure for figure in ("mat", "predicted_speedup", "time_only_speedup")},
}
Entrant = tuple[str, str]  # method and variant
Figure = Sequence[tuple[Cases, str | None]]  # the four columns of ``stats.rates``; None: ones
# the names of a method's cases, those of categories, and its figure
_Entry = tuple[Values, Values, Figure]


@dataclass(slots=True)
class Contest:
    """The methods of one model and suite in one figure, lossy ones apart from the others.

    figures: of each method, on the same cases in the same order. categories: (C,) of the cases.
    """

    place: tuple[str, str]
    figure: str
    entrants: tuple[Entrant, ...]
    figures: tuple[Figure, ...]
    categories: Values
    _rates: dict[str, stats.Rates] = field(default_factory=dict)

    def rates(self, category: str = OVERALL) -> stats.Rates:
        """The figure of every entrant in a category, computed once."""
        if category not in self._rates:
            chosen = slice(None) if category == OVERALL else self.categories == category
            count = len(self.categories[chosen])
            # Another order in memory is another order of additions, and moves the last digit of a
            # csv.
            columns = np.empty((4, len(self.figures), count), order="F")
            for method, figure in enumerate(self.figures):
                for place, column in enumerate(figure):
                    columns[place, method] = _column(*column)[chosen]
            self._rates[category] = stats.rates(columns)
        return self._rates[category]

    def over(self, first: Entrant, second: Entrant, category: str = OVERALL) -> Estimate:
        """One method's figure over another's in a category."""
        return self.rates(category).over(self.entrants.index(first), self.entrants.index(second))

    def as_good(self, best: Entrant, category: str = OVERALL) -> list[Entrant]:
        """The entrants that do not differ from the best; none if there are too few cases for an
        interval.
        """
        own, found = self.entrants.index(best), self.rates(category)
        others = [place for place in range(len(self.entrants)) if place != own]
        ratios = [(place, found.over(own, place).low) for place in others]
        return [self.entrants[place] for place, low in ratios if low is not None and low <= 1]


def make_contests(
    reported: Sequence[ReportedRun], cases: Sequence[CasesOfRun]
) -> tuple[Contest, ...]:
    """A contest for each model and suite, figure, and kind of methods. cases: one entry a run."""
    groups: dict[tuple[tuple[str, str], str, bool], dict[Entrant, _Entry]] = {}
    for entry, found in zip(reported, cases, strict=True):
        for figure, lossy, entrant, each in _entries(entry, found):
            group = groups.setdefault((entry.place, figure, lossy), {})
            # one reference is enough
            if entrant[0] != VANILLA or not any(name == VANILLA for name, _ in group):
                group[entrant] = each
    contests = []
    for (place, figure, _), group in groups.items():
        shared = functools.reduce(np.intersect1d, (own for own, *_ in group.values()))
        figures = tuple(
            _select(columns, pd.Index(own).get_indexer(shared))
            for own, _, columns in group.values()
        )
        _, labels, _ = next(iter(group.values()))
        contests.append(
            Contest(place, figure, tuple(group), figures, labels[figures[0][-1][0]["category"]])
        )
    return tuple(contests)


def _entries(
    reported: ReportedRun, cases: CasesOfRun
) -> Iterator[tuple[str, bool, Entrant, _Entry]]:
    """(figure, whether it is lossy, entrant, cases) of each method of a run that has the figure."""
    facts = reported.facts
    vanilla = cases.of(OVERALL, VANILLA)
    vanilla = vanilla.where(vanilla["ok"])
    for method in facts.methods:
        if method == CONTROL:
            continue
        own = cases.of(OVERALL, method)
        own, entrant = own.where(own["ok"]), (method, reported.variants.get(method, ""))
        figures: dict[str, Figure] = {}
        if method not in facts.unaccepted:
            figures["mat"] = (own, None), (own, None), (own, "steps"), (own, "emitted")
        name = "time_only_speedup" if facts.time_only else "speedup"
        timed = facts.timed and method not in facts.unaccepted
        if timed and not facts.load:
            paired, other = own.paired(vanilla)
            figures[name] = (
                (other, "time_s"),
                (other, "tokens"),
                (paired, "time_s"),
                (paired, "tokens"),
            )
        elif timed and facts.saturated and (found := pair_stretches(reported, method))[0]:
            columns = {str(place): column for place, column in enumerate(found[1])}
            none = np.zeros(len(found[0]), dtype=np.int32)
            rows = Cases(columns | {"category": none}, np.arange(len(none), dtype=np.int32))
            stretches = (
                np.array(found[0]),
                np.array([OVERALL]),
                [(rows, place) for place in columns],
            )
            yield name, method in facts.lossy, entrant, stretches
        if reported.prediction is not None:
            priced = (own, "vanilla_ms"), (own, "emitted"), (own, "method_ms"), (own, "emitted")
            figures["predicted_speedup"] = priced
        for name, figure in figures.items():
            known = np.logical_and.reduce([np.isfinite(_column(*each)) for each in figure])
            if known.any():
                kept = _select(figure, known)
                yield (
                    name,
                    method in facts.lossy,
                    entrant,
                    (cases.names(kept[-1][0]), cases.labels, kept),
                )


def _select(figure: Figure, chosen: Values) -> Figure:
    """The figure with only the chosen cases, a mask or places; columns of one method share them."""
    kept = {id(cases): Cases(cases.columns, cases.rows[chosen]) for cases, _ in figure}
    return tuple((kept[id(cases)], column) for cases, column in figure)


def _column(cases: Cases, name: str | None) -> Values:
    return np.ones(len(cases)) if name is None else cases[name]


def find_contest(
    contests: Sequence[Contest], place: tuple[str, str], figure: str, entrant: Entrant
) -> Contest | None:
    """The contest that this method is in; None if its figure is in none."""
    wanted = CONTEST_OF.get(figure)
    found = (
        each
        for each in contests
        if (each.place, each.figure) == (place, wanted) and entrant in each.entrants
    )
    return next(found, None)


def is_alone(
    contests: Sequence[Contest], category: str, figure: str, row: Mapping[str, object]
) -> bool:
    """Returns whether the best of a column differs from all others; False with too few cases. row:
    the best one's.

    True if the figure is in no contest.
    """
    entrant = (str(row["method"]), str(row["variant"]))
    contest = find_contest(contests, (str(row["model"]), str(row["suite"])), figure, entrant)
    if contest is None:
        return True
    return contest.rates(category).draws is not None and not contest.as_good(entrant, category)
