"""What a mean hides: where a step's time went, how long its gains were, and which drafts they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from specbench.record import CONTROL, OVERALL, PHASES, VANILLA, CaseRecord
from specbench.report.data.counts import (
    GAINS,
    GROWTH,
    LENGTHS,
    OWN_FIGURES,
    POSITIONS,
    SOURCES,
    TAILS,
    count_gains,
    count_growth,
    count_lengths,
    count_own_figures,
    count_positions,
    count_sources,
    count_tails,
)
from specbench.report.data.facts import Facts
from specbench.report.data.rows import replayed
from specbench.store import Run

ROW = ("model", "suite", "method", "variant")


@dataclass(frozen=True, slots=True)
class Detail:
    """Frames that begin with model, suite, method, variant; each is a csv of the same name under tables/.

    time_split: [ms a step] by phase. accept_lengths: steps by tokens emitted. accept_positions: acceptance by depth
    of the draft. accept_sources: nodes by where they came from. growth: cases by what the method held before them.
    own_figures: what methods count of themselves. tails: percentiles of waiting. by_length: MAT and time a step along
    the answer and the context.
    """

    time_split: pd.DataFrame
    accept_lengths: pd.DataFrame
    accept_positions: pd.DataFrame
    accept_sources: pd.DataFrame
    growth: pd.DataFrame
    own_figures: pd.DataFrame
    tails: pd.DataFrame
    by_length: pd.DataFrame

    def frames(self) -> dict[str, pd.DataFrame]:
        """Name -> frame."""
        return {
            "time_split": self.time_split,
            "accept_lengths": self.accept_lengths,
            "accept_positions": self.accept_positions,
            "accept_sources": self.accept_sources,
            "growth": self.growth,
            "own_figures": self.own_figures,
            "tails": self.tails,
            "by_length": self.by_length,
        }

    def of(self, model: str, suite: str) -> Detail:
        """The rows of one model and suite."""
        return Detail(
            *(frame[(frame["model"] == model) & (frame["suite"] == suite)] for frame in self.frames().values())
        )


def read_detail(
    runs: Sequence[Run], facts: Sequence[Facts], variants: Sequence[Mapping[str, str]], summary: pd.DataFrame
) -> Detail:
    """The details of several runs. summary: their rows, whose phases the time split repeats."""
    gains, positions, sources, growth, own, waits, lengths = [], [], [], [], [], [], []
    for run, fact, names in zip(runs, facts, variants, strict=True):
        for method in (name for name in fact.methods if name not in fact.unaccepted):
            records = succeeded(run, method)
            key = (fact.model, fact.suite, method, names.get(method, ""))
            gains += [(*key, *row) for row in count_gains(records)]
            waits += [(*key, *row) for row in count_tails(records)] if fact.timed else []
            lengths += [(*key, *row) for row in count_lengths(records, fact.timed)]
            if method in (VANILLA, CONTROL) or method in fact.peers:
                continue
            positions += [(*key, *row) for row in count_positions(records)]
            sources += [(*key, *row) for row in count_sources(records)]
            growth += [(*key, *row) for row in count_growth(records, fact.timed)]
            own += [(*key, *row) for row in count_own_figures(records)]
    return Detail(
        split_time(summary),
        pd.DataFrame(gains, columns=[*ROW, *GAINS]),
        pd.DataFrame(positions, columns=[*ROW, *POSITIONS]),
        pd.DataFrame(sources, columns=[*ROW, *SOURCES]),
        pd.DataFrame(growth, columns=[*ROW, *GROWTH]),
        pd.DataFrame(own, columns=[*ROW, *OWN_FIGURES]),
        pd.DataFrame(waits, columns=[*ROW, *TAILS]),
        pd.DataFrame(lengths, columns=[*ROW, *LENGTHS]),
    )


def succeeded(run: Run, method: str) -> list[CaseRecord]:
    """The method's records of cases that failed in no round, as in every other figure."""
    records = [record for record in run.records if record.method == method]
    failed = {record.case for record in records if record.status != "ok"}
    return [record for record in records if record.case not in failed]


def split_time(summary: pd.DataFrame) -> pd.DataFrame:
    """[ms a step] by phase; a method without phases (a peer) has no row. step_ms: their sum, blank without a target."""
    columns = [f"{phase}_ms" for phase in PHASES]
    rows = summary[summary["category"] == OVERALL]
    rows = rows[rows[columns].notna().any(axis=1)]
    whole = rows[columns].sum(axis=1).where(~replayed(rows))
    return rows[[*ROW, *columns]].assign(step_ms=whole).reset_index(drop=True)
