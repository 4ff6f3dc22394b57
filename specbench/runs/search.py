"""Finds the largest load of each method at which an objective holds (``load.find=slo``), with real
requests.

Each load is a run in the folder of the search, which has the methods that need it and is read again
instead of repeated. So a search that was stopped continues, one for another objective uses what
ran, and its report is that of a sweep.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specbench.input import InputError
from specbench.records.record import VANILLA, CaseRecord
from specbench.records.store import MANIFEST, point_latest, read_manifest, read_run
from specbench.runs.execution import free_name, refuse_foreign_sweep
from specbench.runs.job import Job, build_job, seed_arrivals
from specbench.runs.launch import Keep, ignore, judge_run, open_console, plain, run_job
from specbench.screen import FAILED, shorten, showing
from specbench.serving.objective import (
    LOOKS,
    UNTRIED,
    Boundary,
    Kept,
    Objective,
    find_boundary,
    judge,
    measure_capacity,
)
from specbench.serving.scheduler import NEVER, QueueGrew
from specbench.serving.settings import CLOSED, TRACE, count_measured, find_patience
from specbench.serving.traces import read_arrivals

LEAST, MOST = min(LOOKS), 32  # stretches of a load
NARROW = 1.05  # neighbouring rates between which no other one is tried
# Of vanilla's capacity: the first rate, whose doubles are not the capacity, and the smallest one.
BEGIN, SLOWEST = 0.45, 1 / 64
# the runs of a closed loop, with all places taken and with one
CAPACITY, ALONE = "capacity", "alone"


class Stopped(Exception):
    """A run of the search ended early. code: its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_search(job: Job, directory: Path, keep: Keep = ignore) -> int:
    """Runs the loads of a search that are missing, reports over all of them, and prints each
    method's boundary.

    keep: gets the findings of the report.

    Returns:
        The exit code: of the first run that fails, or is interrupted; as of one run, by the records
        of all loads.

    Raises:
        InputError: The objective cannot be shown, or the folder has other things.
    """
    objective = Objective.of(asdict(job.config.load.slo))
    if job.config.load.seconds is None:
        stretches = itertools.islice(itertools.cycle(job.plan), MOST)
        requests = sum(len(block.cases) for block in stretches)
        objective.require_share(requests)
    if (directory / MANIFEST).exists():
        raise InputError(
            f"hydra.run.dir={directory}: contains a run; expected a new folder or one of an earlier"
            " search"
        )
    refuse_foreign_sweep(directory, "hydra.run.dir")
    if job.config.measure.fresh and directory.exists():
        directory.rename(free_name(directory))
    search, console = LoadSearch(job, directory, objective), open_console()
    try:
        found = search.find()
    except Stopped as stop:
        return stop.code
    point_latest(directory)
    from specbench.report import build_report  # pandas and matplotlib only once they are needed
    from specbench.report.frames.detail import OBJECTIVE
    from specbench.report.sinks import send_report
    from specbench.report.tables.terminal import print_warnings

    with showing(
        console, f"writing the report of {len(search.runs)} runs", "specbench.report.build"
    ):
        settings = job.config.report
        report = build_report(search.runs, directory, plots=settings.plots, style=settings.style)
    keep(report.findings)
    load = job.config.load
    console.print(
        plain(f"{objective.describe(load.kind, load.requests)}; 95 % confidence of each load")
    )
    frame = report.findings.detail[OBJECTIVE]  # has also loads of a method that only others needed
    rows = frame[frame["kind"] == load.kind].set_index("method")[["holds", "fails", "saturated"]]
    rows = rows.fillna({"holds": 0, "fails": NEVER, "saturated": NEVER})
    for name, boundary in found.items():
        if name in rows.index:
            boundary = Boundary(*rows.loc[name])
        if name in search.decoded:
            console.print(plain(f"    {name}: {boundary.spell()}"), highlight=False)
    print_warnings(report.findings.warnings, console)
    console.print(plain(report.output / "tables" / "objective.md"), highlight=False, soft_wrap=True)
    code = judge_run(report.findings, found.keys() - search.decoded, directory / "*", console)
    return max(code, send_report(report, settings.to, console, [directory]))


class MethodSearch:
    """The search for the boundary of one method.

    load: the one that is needed next; NEVER at the end. capacity: of a closed loop, from which on
    it fails. grows: loads with a stretch that was given up. served: whether a load was measured.
    """

    def __init__(self, capacity: float, search: Generator[float, int, None]) -> None:
        self.capacity, self._search = capacity, search
        self.load = _round(next(search))
        self._signs: dict[float, int] = {}
        self.grows: list[float] = []
        self.served = False

    def enter(self, sign: int, last: bool) -> None:
        """Enter the verdict of ``load``, see ``find_boundary``. last: no other load is tried."""
        self._signs[self.load] = sign
        self.load = NEVER
        if not last:
            with contextlib.suppress(StopIteration):
                self.load = _round(self._search.send(sign))

    @property
    def found(self) -> Boundary:
        """The boundary by the loads so far."""
        return Boundary.of(self._signs, self.grows, self.capacity)


class LoadSearch:
    """The search of one command.

    runs: the folders of its loads, as they were needed. decoded: the methods of which a request
    ended.
    """

    def __init__(self, job: Job, directory: Path, objective: Objective) -> None:
        self._job, self._directory, self._objective = job, directory, objective
        self._load = job.config.load
        self.runs: list[Path] = []
        self.decoded: set[str] = set()

    def find(self) -> dict[str, Boundary]:
        """The boundary of each method. All of them begin with the same load, so that they share
        runs.
        """
        names = [entry.name for entry in self._job.entries]
        capacities = dict.fromkeys(names, NEVER)
        closed = {"kind": CLOSED, "rate": None, "seconds": None}
        if self._load.kind == CLOSED:
            begin, least, most, narrow = 1.0, 1.0, float(self._load.requests), None
        elif self._load.kind == TRACE and self._load.answers == "recorded":
            # a closed loop has other answers
            begin = _round(read_arrivals(str(self._load.times)).rate)
            least, most, narrow = _round(begin * SLOWEST / BEGIN), NEVER, NARROW
        else:
            records = self._run(names, LEAST, CAPACITY, closed)
            capacities = {
                name: measure_capacity(own, self._load.requests) for name, own in records.items()
            }
            if not capacities[VANILLA]:
                open_console().print(
                    f"[red]no case of {VANILLA} could be decoded[/]: see {plain(self.runs[0])}"
                )
                raise Stopped(FAILED)
            begin, least = (_round(share * capacities[VANILLA]) for share in (BEGIN, SLOWEST))
            most, narrow = NEVER, NARROW
        searches = {
            name: MethodSearch(capacities[name], find_boundary(begin, least, most, narrow))
            for name in names
            if capacities[name]
        }
        while (load := min((each.load for each in searches.values()), default=NEVER)) < NEVER:
            here = {name: each for name, each in searches.items() if each.load == load}
            served = {name: each for name, each in here.items() if load < each.capacity}
            signs, alone = dict.fromkeys(here, -1), dict[str, Kept]()
            if served and not self._fits(load):
                signs |= dict.fromkeys(served, UNTRIED)
            elif served:
                kept = self._measure(*self._name(load), [*served])
                signs |= {name: self._judge(own) for name, own in kept.items()}
                # One request after the other has the shortest times: what fails there fails at
                # every rate.
                failed = [
                    name
                    for name, each in served.items()
                    if not each.served and signs[name] < 0 and each.capacity < NEVER
                ]
                alone = self._measure(ALONE, {**closed, "requests": 1}, failed) if failed else {}
                for name, each in served.items():
                    each.served = True
                    each.grows += [load] if kept[name].given_up else []
            for name, each in here.items():
                each.enter(signs[name], last=name in alone and self._judge(alone[name]) < 0)
        return {
            name: searches[name].found if name in searches else Boundary(0.0, NEVER, NEVER)
            for name in names
        }

    def _fits(self, rate: float) -> bool:
        """Whether the suite has a case for each request that arrives within ``load.seconds``;
        prints if it has not.
        """
        if self._load.seconds is None or self._load.kind == CLOSED:
            return True
        cases = len(self._job.source.suite.cases)
        count = count_measured(
            replace(self._load, rate=rate), seed_arrivals(self._job.config.decode, 0)
        )
        if count > cases:
            open_console().print(
                f"rate-{rate:g} is not tried: {count} requests arrive within"
                f" load.seconds={self._load.seconds:g}, the suite has {cases} cases; expected fewer"
                " seconds or a larger suite",
                highlight=False,
                soft_wrap=True,
            )
        return count <= cases

    def _judge(self, kept: Kept) -> int:
        """The sign of the verdict."""
        verdict = judge(kept.shares, kept.requests, self._objective.share)
        return verdict.sign if verdict else 0

    def _name(self, load: float) -> tuple[str, dict[str, Any]]:
        """The folder of a load, and its settings."""
        if self._load.kind == CLOSED:
            return f"requests-{load:g}", {"requests": int(load)}
        return f"rate-{load:g}", {
            "rate": load,
            "patience": find_patience(replace(self._load, rate=load)),
        }

    def _measure(
        self, folder: str, load: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, Kept]:
        """What the requests of these methods kept at a load; more stretches run until each method
        is decided.
        """
        kept: dict[str, Kept] = {}
        records: dict[str, list[CaseRecord]] = {}
        for look in (look for look in LOOKS if look <= MOST):
            records = self._run(names, look, folder, load)
            kept = {name: Kept.of(records[name], self._objective) for name in names}
            if all(map(self._judge, kept.values())):
                break
        for name in names:  # such as those of a server that ended in the middle of the load
            errors = [
                each.error for each in records[name] if each.error and not QueueGrew.ended(each)
            ]
            if errors:
                open_console().print(
                    f"[yellow]{folder}: {len(errors)} cases of {plain(name)} failed[/] and count as"
                    f" beyond the limits: {plain(shorten(errors[0]['message']))}. run.retry=true"
                    " sends them again",
                    highlight=False,
                    soft_wrap=True,
                )
        return kept

    def _run(
        self, names: Collection[str], stretches: int, folder: str, load: Mapping[str, Any]
    ) -> dict[str, list[CaseRecord]]:
        """Method -> its records of the stretches of a load, which run now if they have not yet.
        Raises Stopped.
        """
        directory, written = self._directory / folder, self._job.resolved
        there = read_manifest(directory).methods if (directory / MANIFEST).exists() else {}
        methods = {
            name: node
            for name, node in written["method"].items()
            if name in {VANILLA, *names, *there}
        }
        settings: dict[str, Any] = {
            **written,
            "method": methods,
            "load": {**written["load"], "find": None, **load},
            "measure": {**written["measure"], "rounds": 1, "fresh": False, "control": False},
        }
        each = len(build_job(settings, self._job).plan)  # stretches of a round
        settings["measure"]["rounds"] = -(-MOST // each)
        job = replace(build_job(settings, self._job), wanted=stretches, launch=self._job.launch)
        if directory not in self.runs:
            self.runs.append(directory)
            open_console().print(plain(f"{folder}: {', '.join(methods)}"), highlight=False)
        if code := run_job(job, directory, report=False):
            raise Stopped(code)
        records: dict[str, list[CaseRecord]] = {name: [] for name in methods}
        for record in read_run(directory).records:
            if record.method in records:
                records[record.method].append(record)
                self.decoded |= set() if record.error else {record.method}
        return records


def _round(load: float) -> float:
    """Rounds a load to four digits, as it stands in settings, in names of folders and in tables."""
    return float(f"{load:.4g}")
