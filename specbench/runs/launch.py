"""Run a checked job as a user sees it: a live display, a log, the report at the end, and an exit code.

The display: cases done, each method's MAT and tokens/s so far, and the time left; off a terminal, a line now and then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from specbench.models.tensor_parallel.team import TeamError
from specbench.names import Plain, printable
from specbench.records.record import CONTROL, OVERALL, VANILLA, CaseRecord, EngineKind
from specbench.records.store import DISK_FAULTS, MANIFEST, PAGE, RECORDS
from specbench.runs.execution import execute
from specbench.runs.job import Job
from specbench.screen import FAILED, INTERRUPTED, Screen, ending_as_interrupts, showing, telling

if TYPE_CHECKING:
    from specbench.report import Findings

TABLE_WIDTH = 100
SCREEN = "screen"  # the look of plots that needs no file
LINE_EVERY_S = 30  # of progress off a terminal
SLOW_S = 3  # of a step of loading


def run_job(job: Job, directory: Path, report: bool = True, again: bool = True) -> int:
    """Run and, unless ``report`` is left to another process, report; returns the exit code.

    again: report a run that is complete and reported already. Raises InputError when the directory cannot be used.
    """
    console = _console()
    directory = directory.resolve()
    if job.config.report.style != SCREEN:
        from specbench.report.plots import check_style  # brings pandas, which a run does without until its end

        check_style(job.config.report.style)
    try:
        with ending_as_interrupts():
            return _run_and_report(job, directory, console, report, again)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may have gone
            console.print(
                f"[yellow]interrupted[/]: what is done is in {_plain(directory)}; the same command goes on from there"
            )
        return INTERRUPTED
    except TeamError as error:
        _say_end(console, error)
    except OSError as error:
        if error.filename is None and error.errno not in DISK_FAULTS:
            raise
        _say_end(console, _name_fault(error, directory))
    return FAILED


def _run_and_report(job: Job, directory: Path, console: Console, wanted: bool, again: bool) -> int:
    with (
        _log_file(directory / "run.log"),
        Progress(console, job.config.report.progress, job.config.engine.kind != EngineKind.REPLAY) as progress,
        telling(progress.say, "specbench.runs.stage"),
    ):
        decoded = execute(job, directory, progress.observe)
    if not wanted:
        return 0
    from specbench.report import build_report, read_findings  # pandas and matplotlib only once they are needed
    from specbench.report.tables.terminal import print_findings, print_page

    if not (decoded or again) and _is_reported(directory):
        console.print(f"complete, skipped: {_plain(directory)}", highlight=False, soft_wrap=True)
        return _verdict(read_findings([directory]), job, directory, console)
    with showing(console, "writing the report", "specbench.report.build"):
        report = build_report([directory], plots=job.config.report.plots, style=job.config.report.style)
    print_findings(report.findings, console, report.load)
    for path in (directory / "records.jsonl", report.output / "summary.csv"):
        console.print(_plain(path), highlight=False, soft_wrap=True)
    code = _verdict(report.findings, job, directory, console)
    print_page(report.output, console)
    return code


def _is_reported(directory: Path) -> bool:
    """Whether a run's page is there and no older than its manifest, which a price or another command may change."""
    page = directory / PAGE
    return page.is_file() and page.stat().st_mtime >= (directory / MANIFEST).stat().st_mtime


Jobs = Sequence[tuple[Sequence[str], Path | None, int, str]]  # overrides, directory, exit code and reason of each


def say_failed(jobs: Jobs) -> None:
    """A line for each job that failed."""
    console = _console()
    alike = set[str]().union(*(names for names, *_ in jobs)).intersection(*(names for names, *_ in jobs))
    for names, directory, code, reason in jobs:
        if code:
            name = " ".join(each for each in names if each not in alike) or " ".join(names)
            said = f"[red]failed[/]: {_plain(name)}: {_plain(reason or f'see {directory}')}"
            console.print(said, highlight=False, soft_wrap=True)
    failed = sum(1 for *_, code, _ in jobs if code)
    if failed:
        console.print(f"{failed} of {len(jobs)} jobs failed; the same command takes them up again", highlight=False)


def report_jobs(jobs: Jobs, plots: bool) -> None:
    """The end of a sweep: the jobs that failed, and one report over all runs that are there."""
    say_failed(jobs)
    console = _console()
    runs = [directory for _, directory, *_ in jobs if directory and (directory / RECORDS).is_file()]
    if len(runs) > 1:
        from specbench.report import build_report
        from specbench.report.tables.terminal import print_findings, print_page

        with showing(console, f"writing the report of {len(runs)} runs", "specbench.report.build"):
            report = build_report(runs, plots=plots)
        print_findings(report.findings, console)
        print_page(report.output, console)


def _say_end(console: Console, reason: object) -> None:
    console.print(f"[red]the run ends[/]: {_plain(reason)}", highlight=False, soft_wrap=True)


def say_unwritten(error: OSError, directory: Path) -> int:
    """Say that a directory can no longer be written; returns the exit code. Raises any other error."""
    if error.filename is None and error.errno not in DISK_FAULTS:
        raise error
    _say_end(Console(), _name_fault(error, directory))
    return FAILED


def _name_fault(error: OSError, directory: Path) -> str:
    """What is wrong with which file; of one in the run's directory, or of none, what is left."""
    place = directory / os.fsdecode(error.filename or "")
    if not place.is_relative_to(directory):
        return f"{place}: {error.strerror}"
    named = f"{place.relative_to(directory)}: " if place != directory else ""
    return (
        f"results directory {directory}: can no longer be written ({named}{error.strerror}); what is done is safe, the"
        " same command goes on from there"
    )


def _verdict(findings: Findings, job: Job, directory: Path, console: Console) -> int:
    """The exit code. Violations of vanilla (the noise floor), of lossy methods and in half precision do not count."""
    overall = findings.summary[findings.summary["category"] == OVERALL]
    dead = sorted(set(overall.loc[overall["cases"] == 0, "method"]))
    if dead:
        names = _plain(", ".join(dead))
        console.print(f"[red]no case of {names} could be decoded[/]: see error in {_plain(directory)}/records.jsonl")
    judged = overall[~overall["method"].isin({VANILLA, CONTROL, *findings.lossy})]
    violations = int(judged["violations"].fillna(0).sum()) if job.card.dtype in ("float32", "float64") else 0
    if violations:
        console.print(
            f"[red]{violations} tokens are not the target's own[/]: see lossless in {_plain(directory)}/records.jsonl"
        )
    return FAILED if dead or violations else 0


def _plain(text: object) -> str:
    """As it is, inside markup."""
    return escape(printable(str(text)))


def _console() -> Console:
    """As wide as the terminal; at least as wide as the tables where the output goes to a file or a pipe."""
    console = Screen()
    return console if console.is_terminal else Screen(width=max(TABLE_WIDTH, console.width))


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Log into the run's directory; the file is made with the first message."""
    handler = logging.FileHandler(path, delay=True, encoding="utf-8")
    handler.setFormatter(Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("specbench")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@dataclass(slots=True)
class _Tally:
    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    steps: int = 0
    errors: int = 0

    def add(self, record: CaseRecord) -> None:
        if record.status != "ok":
            self.errors += 1
            return
        for turn in record.turns:
            self.tokens += len(turn.ids)
            self.seconds += turn.wall_s
            self.accepted += sum(turn.accept)
            self.steps += len(turn.accept)


def _spell_s(seconds: float) -> str:
    """'0:35', '12:05', '3:04:05'."""
    return re.sub("^0:0?", "", str(timedelta(seconds=round(seconds))), count=1)


class Progress:
    """The live display of a run, a context manager; call ``observe`` after every block."""

    def __init__(self, console: Console, enabled: bool, timed: bool = True) -> None:
        """timed: show tokens/s, which a replay has none of."""
        self._timed = timed
        self._console = console
        self._live_wanted = enabled and console.is_terminal
        self._tallies: dict[str, _Tally] = {}
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("loading", total=None)
        self._live = Live(self._render(), console=console, transient=True, refresh_per_second=4)
        self._begun = self._printed = time.monotonic()
        self._done = 0
        self._loads = False  # not in a run that is complete
        self._first = (0, 0.0)  # blocks done and the time, after the first block of this process
        self._block_s = 0.0  # that the first block took, by its records

    def __enter__(self) -> Progress:
        if self._live_wanted:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live_wanted:
            self._live.stop()

    def say(self, what: str) -> None:
        """What is done before the first block; off a terminal, where the step before took long."""
        self._bar.update(self._task, description=what)
        if not self._live_wanted and not self._loads:
            self._console.print("loading", highlight=False)
        self._loads = True
        if not self._live_wanted and time.monotonic() - self._printed > SLOW_S:
            self._printed = time.monotonic()
            self._console.print(what, highlight=False, markup=False)

    def observe(self, records: Sequence[CaseRecord], done: int, total: int) -> None:
        """Count the records of one block (or, on resuming, of all earlier ones)."""
        for record in sorted(records, key=lambda record: record.method):
            self._tallies.setdefault(record.method, _Tally()).add(record)
        now = time.monotonic()
        earlier = done > self._done + 1  # blocks of another process; the model is yet to be loaded
        if not (earlier or self._first[0]):
            turns = [turn for record in records for turn in record.turns]
            self._first, self._block_s = (done, now), sum(turn.wall_s for turn in turns)
        self._done = done
        self._bar.update(self._task, description="loading" if earlier else "decoding", completed=done, total=total)
        if self._live_wanted:
            self._live.update(self._render())
        elif earlier or now - self._printed > LINE_EVERY_S or done in (self._first[0], total):
            self._printed = now
            self._console.print(self._line(done, total, now), highlight=False)

    def _line(self, done: int, total: int, now: float) -> str:
        """'12 of 70 blocks, 0:35 passed, about 2:50 left', off a terminal."""
        blocks, since = self._first
        text = f"{done} of {total} blocks, {_spell_s(now - self._begun)} passed"
        each_s = (now - since) / (done - blocks) if 0 < blocks < done else self._block_s
        return f"{text}, about {_spell_s(each_s * (total - done))} left" if each_s and done < total else text

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        speeds = ("tokens/s",) if self._timed else ()
        for name in ("method", "MAT", *speeds, "errors"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for name, tally in self._tallies.items():
            mat = f"{tally.accepted / tally.steps:.2f}" if tally.steps else ""
            speed = f"{tally.tokens / tally.seconds:.1f}" if tally.seconds else ""
            table.add_row(_plain(name), mat, *([speed] if self._timed else []), str(tally.errors or ""))
        return Group(self._bar, table)
