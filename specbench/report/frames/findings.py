"""The contents of a report: figures of one or several runs, warnings, and speedups as products of
factors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from specbench.profile import Profile
from specbench.records.record import CONTROL, OVERALL, PHASES, VANILLA
from specbench.records.store import Run
from specbench.report.frames.audit import MEASURED, MODELLED
from specbench.report.frames.cases import CasesOfRun, without_references
from specbench.report.frames.detail import Detail, read_detail
from specbench.report.frames.facts import Facts, is_own, name_variants, read_facts
from specbench.report.frames.pairs import Contest, make_contests
from specbench.report.frames.predict import Prediction, predict
from specbench.report.frames.reported import (
    ReportedRun,
    find_doubts,
    is_busy,
    read_control,
    read_shards,
)
from specbench.report.frames.summary import summarise_run, unite
from specbench.report.frames.trials import Trials, read_trials
from specbench.report.table import ROW

_LOAD = re.compile(r"(?<=load average is )[\d.]+(?= a core)")  # which differs from run to run
_SPAN = "{load}"
_PARTS = re.compile(r"\A(?:part ([\d/, ]+): )?(.+)", re.S)  # of a merged run


@dataclass(frozen=True, slots=True)
class Findings:
    """reported: one entry a run. summary: the rows of ``summary.csv``. warnings: of all runs.
    detail: name -> frame.

    contests: the methods against each other.
    """

    reported: tuple[ReportedRun, ...]
    summary: pd.DataFrame
    warnings: tuple[str, ...]
    detail: Detail
    contests: tuple[Contest, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """One entry a run."""
        return tuple(entry.run for entry in self.reported)

    @property
    def facts(self) -> tuple[Facts, ...]:
        """One entry a run."""
        return tuple(entry.facts for entry in self.reported)

    @property
    def predictions(self) -> tuple[Prediction | None, ...]:
        """One entry a run."""
        return tuple(entry.prediction for entry in self.reported)

    @property
    def profiles(self) -> str:
        """The profile of the predictions, and the kind of runs that they are for."""
        priced = [facts for facts in self.facts if facts.profile]
        some = "" if all(facts.time_only for facts in priced) else "some runs "
        kinds = dict.fromkeys(f"{some}{facts.time_note}" for facts in priced if facts.time_only)
        return "; ".join([*dict.fromkeys(facts.profile for facts in priced), *kinds])

    @property
    def lossy(self) -> frozenset[str]:
        """Methods that do not promise vanilla's output."""
        return frozenset(name for facts in self.facts for name in facts.lossy)


def gather(
    runs: Sequence[Run],
    profiles: Sequence[Profile | None] | None = None,
    facts: Sequence[Facts] | None = None,
    trials: Sequence[Trials] | None = None,
) -> Findings:
    """Read and check the runs. profiles, facts, trials: one a run, if they were read before.

    Raises RunError if a manifest lacks its model, suite or methods.
    """
    trials = trials or [read_trials(run.records) for run in runs]
    facts = facts or [read_facts(run, each.methods) for run, each in zip(runs, trials, strict=True)]
    entries = zip(
        runs, trials, facts, name_variants(runs, facts), profiles or [None] * len(runs), strict=True
    )
    reported = []
    for run, tried, fact, variants, profile in entries:
        control, shards = (
            read_control(tried.columns(VANILLA), tried.columns(CONTROL)),
            read_shards(run, fact, tried),
        )
        busy = is_busy(run, fact, tried) or (control is not None and control.steady is False)
        prediction = (
            predict(tried, fact.peers | fact.unaccepted, profile, busy) if profile else None
        )
        if profile is not None and prediction is not None:
            prediction = replace(prediction, own=is_own(run, fact, profile) and not fact.load)
            fact = replace(fact, profile=profile.label)
        reported.append(ReportedRun(run, tried, fact, variants, control, prediction, shards))
    cases = [CasesOfRun(entry.trials, entry.prediction) for entry in reported]
    frames = [summarise_run(*entry) for entry in zip(reported, cases, strict=True)]
    doubts = [find_doubts(entry, frame) for entry, frame in zip(reported, frames, strict=True)]
    summary = unite(frames)
    detail, contests = read_detail(reported, summary), make_contests(reported, cases)
    return Findings(tuple(reported), summary, tuple(_merge(runs, doubts)), detail, contests)


def _merge(runs: Sequence[Run], doubts: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each warning once, with the runs or parts that it is about if there are several, and from
    which load to which.
    """
    about: dict[str, list[tuple[Path, str, str]]] = {}  # text -> run, parts, load
    for run, texts in zip(runs, doubts, strict=True):
        for text in texts:
            (parts, plain), *_ = _PARTS.findall(text)
            load = "".join(_LOAD.findall(plain))
            about.setdefault(_LOAD.sub(_SPAN, plain), []).append((run.directory, parts, load))
    every = {run.directory for run in runs}
    for text, found in about.items():
        names, parts, loads = (
            dict.fromkeys(filter(None, each)) for each in zip(*found, strict=True)
        )
        ordered = sorted(loads, key=float)
        span = " to ".join(dict.fromkeys([*ordered[:1], *ordered[-1:]]))
        source = (
            []
            if len(every) == 1
            else ["all runs"]
            if len(names) == len(every)
            else [", ".join(name.name for name in names)]
        )
        yield ": ".join(
            [*source, *([f"part {', '.join(parts)}"] if parts else []), text.replace(_SPAN, span)]
        )


FACTORS = ("mat", "forward", "overhead", "remainder")
_PLACE = list(ROW[:2])
_FIGURES = [*FACTORS[:3], "speedup"]


def explain(findings: Findings, category: str = OVERALL) -> pd.DataFrame:
    """One row per method and basis, measured and modelled, whose four factors multiply to its
    decode speedup.

    category: of the cases that count. Methods without recorded phases, and what was not timed or
    has no profile, have no row.
    """
    rows = pd.concat(
        [_measured(findings, category), _modelled(findings, category)], ignore_index=True
    )
    rows = rows.assign(
        remainder=rows["speedup"] / (rows["mat"] * rows["forward"] * rows["overhead"])
    )
    return rows[[*ROW, "basis", *FACTORS, "speedup"]]


def _measured(findings: Findings, category: str) -> pd.DataFrame:
    rows = findings.summary[findings.summary["category"] == category]
    rows = rows.assign(step_ms=rows[[f"{phase}_ms" for phase in PHASES]].sum(axis=1))
    vanilla = rows[(rows["method"] == VANILLA) & rows["forward_ms"].notna()].drop_duplicates(_PLACE)
    rows = without_references(rows).dropna(subset=["mat", "forward_ms", "decode_speedup"])
    rows = rows.merge(
        vanilla[[*_PLACE, "forward_ms", "step_ms"]], on=_PLACE, suffixes=("", "_vanilla")
    )
    own, theirs = (rows[f"forward_ms{side}"] / rows[f"step_ms{side}"] for side in ("", "_vanilla"))
    forward = rows["forward_ms_vanilla"] / rows["forward_ms"]
    found = rows.assign(
        basis=MEASURED, forward=forward, overhead=own / theirs, speedup=rows["decode_speedup"]
    )
    return found[[*ROW, "basis", *_FIGURES]]


def _modelled(findings: Findings, category: str) -> pd.DataFrame:
    rows = []
    for reported in findings.reported:
        found = reported.prediction
        known = CasesOfRun(reported.trials, found)
        for method, cases in (found.cases if found else {}).items():
            total = cases[cases["place"].isin(known.of(category, method)["case"])].sum()
            if not total["steps"]:
                continue
            ideal, mat = (
                total["vanilla_ideal_ms"] / total["ideal_ms"],
                total["emitted"] / total["steps"],
            )
            speedup = total["vanilla_ms"] / total["method_ms"]
            rows.append(
                (*reported.key(method), MODELLED, mat, ideal / mat, speedup / ideal, speedup)
            )
    return pd.DataFrame(rows, columns=[*ROW, "basis", *_FIGURES]).astype(
        dict.fromkeys(_FIGURES, float)
    )
