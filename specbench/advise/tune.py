"""Choosing a method's parameters by modelled speedup: replay a trace, price its steps with a
latency profile, climb.

One parameter at a time goes through its values while the others stay, round after round until no
change helps; then two at a time, since some move only together (a tree's size and what is reserved
of it). A grid of four parameters costs dozens of replays and not hundreds; a replay is exact, so
nothing is sampled. Parameters are chosen on one half of the cases and tested on the other: the best
of many points on the same prompts is partly chance, and the held-out half shows what remains.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path

import pandas as pd

from specbench import stats
from specbench.names import near
from specbench.profile import Profile
from specbench.records.record import VANILLA, EngineKind
from specbench.records.store import read_run
from specbench.report.frames.facts import read_facts
from specbench.report.frames.predict import predict, with_drafting
from specbench.report.frames.reported import is_busy
from specbench.report.frames.trials import read_trials
from specbench.runs.composition import plain_settings
from specbench.runs.execution import execute
from specbench.runs.job import Job
from specbench.types import InputError

TUNING, HELD_OUT = "1/2", "2/2"
LEAST = 1.001  # a better point is better by this factor; less is noise of the drafters' times
Point = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """point: parameter -> value, of those that were searched. tried: points replayed, refused ones
    not counted.
    """

    point: Point
    speedup: float
    tried: int


@dataclass
class Tuner:
    """A search for the parameters of one method. Replays run in temporary folders.

    job_of: overrides -> a checked job. grid: 'method.NAME.KEY' -> its values, as typed. requests:
    per forward.
    """

    job_of: Callable[[Sequence[str]], Job]
    overrides: Sequence[str]
    profile: Profile
    grid: Mapping[str, Sequence[str]]
    report: Callable[[str], None] = print
    requests: int = 1
    _seen: dict[tuple[str, ...], float] = field(default_factory=dict)
    _resolved: Mapping[str, object] | None = None

    def check(self) -> None:
        """Raises InputError for settings that would fail only after many replays, or look like a
        refused point.
        """
        for key in self.grid:  # before a trace is read, which can take minutes
            owner, _, own = key.rpartition(".")
            node = self._setting(owner)
            known = [str(name) for name in node] if isinstance(node, Mapping) else []
            if own not in known:
                raise InputError(
                    f"--grid {key.removeprefix('method.')}: no such setting; {near(own, known)}"
                )
        job = self.job_of(self.overrides)
        if job.config.suite.part is not None:
            raise InputError(
                f"suite.part={job.config.suite.part}: tuning splits the suite itself; leave it out"
            )
        if job.config.engine.kind == EngineKind.TIMED:
            raise InputError(
                "engine=timed: tuning needs recorded answers and a profile; expected model=replay"
            )

    def climb(self) -> Choice:
        """The best point on the tuning half, from the configuration's own values. Raises
        InputError.
        """
        best: Point = {}
        together = 1
        while together <= min(2, len(self.grid)):
            before = best
            changes = (
                dict(zip(keys, values, strict=True))
                for keys in combinations(self.grid, together)
                for values in product(*(self.grid[key] for key in keys))
            )
            for change in changes:
                changed = {**best, **change}.items()
                point = {key: value for key, value in changed if self._configured(key) != value}
                if self.speedup(point) > LEAST * self.speedup(best):
                    best = point
            together = 1 if best != before else together + 1
        return Choice(best, self.speedup(best), sum(value > 0 for value in self._seen.values()))

    def _configured(self, key: str) -> str | None:
        """The value of a key in the configuration, as on a command line."""
        node = self._setting(key)
        return str(node).lower() if isinstance(node, bool) else None if node is None else str(node)

    def _setting(self, key: str) -> object:
        """The configuration's value at a dotted key; None if it does not exist."""
        if self._resolved is None:
            self._resolved = plain_settings(self.overrides)
        node: object = self._resolved
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def speedup(self, point: Point) -> float:
        """Modelled, on the tuning half; 0 if the method refuses the point."""
        key = tuple(sorted(assignments(point)))
        if key not in self._seen:
            try:
                self._seen[key] = speedup_of(self.replay(point, TUNING)).value
            except InputError as error:
                if not point:
                    raise
                self.report(f"refused: {error}")
                self._seen[key] = 0.0
            self.report(f"{self._seen[key]:.4f}  {' '.join(key) or 'as configured'}")
        return self._seen[key]

    def replay(self, point: Point, part: str) -> pd.DataFrame:
        """The cases of one half, as ``specbench.report.frames.predict`` prices them. Raises
        InputError.
        """
        job = self.job_of([*self.overrides, *assignments(point), f"suite.part={part}"])
        with tempfile.TemporaryDirectory() as folder:
            execute(job, Path(folder) / "run", lambda records, done, total: None)
            run = read_run(Path(folder) / "run")
        methods = [entry.name for entry in job.entries if entry.name != VANILLA]
        if len(methods) != 1:
            raise InputError(
                f"method: got {', '.join(methods) or 'none'}; expected one to tune, as in"
                " method=[pld]"
            )
        failed = [
            record.error for record in run.records if record.method == methods[0] and record.error
        ]
        if failed:
            raise InputError(
                f"method.{methods[0]}: {len(failed)} cases failed: {failed[0]['message']}"
            )
        facts = read_facts(run)
        profile = self.profile.shared(self.requests)
        busy = is_busy(run, facts, trials := read_trials(run.records))
        cases = predict(trials, facts.peers, profile, busy).cases.get(methods[0])
        if cases is None or not cases["steps"].sum():
            why = (
                "it decodes in a loop of its own"
                if methods[0] in facts.peers
                else "no answer has a decode step"
            )
            raise InputError(f"method.{methods[0]}: nothing to price in suite.part={part}, {why}")
        return with_drafting(cases, self.requests)


def assignments(point: Point) -> list[str]:
    """The overrides that set a point."""
    return [f"{key}={value}" for key, value in point.items()]


def speedup_of(cases: pd.DataFrame) -> stats.Estimate:
    """Modelled speedup over vanilla, with its interval over cases."""
    return stats.speedup(
        cases["vanilla_ms"], cases["emitted"], cases["method_ms"], cases["emitted"]
    )


def gain_of(before: pd.DataFrame, after: pd.DataFrame) -> stats.Estimate:
    """Time per token before over after, paired case by case."""
    after = after.loc[before.index]
    return stats.speedup(
        before["method_ms"], before["emitted"], after["method_ms"], after["emitted"]
    )


def spell(found: stats.Estimate) -> str:
    """'2.10 [2.02, 2.19]'."""
    interval = "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"
    return f"{found.value:.3f}{interval}"
