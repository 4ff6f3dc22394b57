"""Run a checked job as a user sees it: a live display, a log, the report at the end, and an exit
code.

The display: cases done, each method's MAT and tokens/s so far, and the time left; off a terminal, a
line now and then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from specbench.input import refuse_irregular
from specbench.models.tensor_parallel.team import TeamError
from specbench.names import Plain, printable
from specbench.records.record import CONTROL, OVERALL, VANILLA, CaseRecord
from specbench.records.store import MANIFEST, PAGE
from specbench.runs.config import ReportConfig
from specbench.runs.earlier import find_arrivals
from specbench.runs.execution import execute
from specbench.runs.job import Job
from specbench.screen import (
    DISK_FAULTS,
    DONE,
    FAILED,
    INTERRUPTED,
    LOADING,
    Screen,
    ending_as_interrupts,
    forwarding,
    name_unwritten,
    showing,
)

if TYPE_CHECKING:
    from specbench.report import Findings

TABLE_WIDTH = 100
EXACT = ("float32", "float64")  # dtypes in which every token must be the target's own
LINE_EVERY_S = 30  # of progress off a terminal
SLOW_S = 3  # of a step of loading


Keep = Callable[["Findings"], object]  # what is done with the findings of a report


def ignore(findings: Findings) -> None:
    """Keep nothing of a report."""


def run_job(
    job: Job,
    directory: Path,
    report: bool = True,
    alone: bool = True,
    brief: bool = False,
    keep: Keep = ignore,
) -> int:
    """Run a job in its directory, or resume it, and report; returns the exit code.

    report: False if another process reports. alone: False for a job of a sweep, which is not
    reported again if it is complete, and is sent at the end of the sweep. brief: print the first
    sentence of the report and no tables. keep: gets the findings of the report. Raises InputError
    if the directory cannot be used, or the target or a method cannot be loaded.
    """
    console = open_console()
    directory = directory.resolve()
    if waits := find_arrivals(job, directory):
        console.print(f"load: {waits}", highlight=False)
    shown = Progress(console, job.config.report.progress, job.source.timed)
    try:
        with ending_as_interrupts():
            with _log_file(directory / "run.log"), shown, forwarding(shown.show, LOADING):
                decoded = execute(job, directory, shown.observe)
            if not report:
                return DONE
            return _report(
                job.config.report, directory, console, decoded or alone, alone, brief, keep
            )
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may have gone
            console.print(
                f"[yellow]interrupted[/]: what is done is in {plain(directory)}; the same command"
                " continues from there"
            )
        return INTERRUPTED
    except TeamError as error:
        return _print_end(error)
    except OSError as error:
        return print_unwritten(error, directory)


def _report(
    settings: ReportConfig,
    directory: Path,
    console: Console,
    anew: bool,
    alone: bool,
    brief: bool,
    keep: Keep,
) -> int:
    """Report a run, unless that is done and not wanted ``anew``, and send it if it is ``alone``;
    returns the code.
    """
    # pandas and matplotlib only once they are needed
    from specbench.report import build_report, read_findings
    from specbench.report.frames.headline import find_headlines
    from specbench.report.sinks import send_report
    from specbench.report.tables.terminal import print_findings, print_page

    # whose price, or blocks, may have changed since
    page, manifest = directory / PAGE, directory / MANIFEST
    if not anew and page.is_file() and page.stat().st_mtime >= manifest.stat().st_mtime:
        console.print(f"complete, skipped: {plain(directory)}", highlight=False, soft_wrap=True)
        return _verdict(read_findings([directory]), directory, console)
    with (
        contextlib.nullcontext()
        if brief
        else showing(console, "writing the report", "specbench.report.build")
    ):
        report = build_report([directory], plots=settings.plots, style=settings.style)
    keep(report.findings)
    if brief:
        for headline in find_headlines(report.findings, report.load):
            console.print(plain(headline.lead + headline.rest), highlight=False, soft_wrap=True)
    else:
        print_findings(report.findings, console, report.load)
        for path in (directory / "records.jsonl", report.output / "summary.csv"):
            console.print(plain(path), highlight=False, soft_wrap=True)
    code = _verdict(report.findings, directory, console)
    print_page(report.output, console)
    return (
        max(code, send_report(report, settings.to, console, [directory]))
        if alone and settings.to
        else code
    )


def _print_end(reason: object) -> int:
    open_console().print(f"[red]the run ends[/]: {plain(reason)}", highlight=False, soft_wrap=True)
    return FAILED


def print_unwritten(error: OSError, directory: Path) -> int:
    """Print which file cannot be written, and what is kept; returns the exit code.

    Raises an error that is not of the disk, or is of standard output.
    """
    if error.filename is None and (error.errno not in DISK_FAULTS or name_unwritten(error)):
        raise error
    place = directory / os.fsdecode(error.filename or "")
    if not place.is_relative_to(directory):
        return _print_end(f"{place}: {error.strerror}")
    named = f"{place.relative_to(directory)}: " if place != directory else ""
    return _print_end(
        f"results directory {directory}: can no longer be written ({named}{error.strerror}); what"
        " is done is safe, the same command continues from there"
    )


def _verdict(findings: Findings, directory: Path, console: Console) -> int:
    """Print what is wrong with a run, and return the exit code."""
    overall = findings.summary[findings.summary["category"] == OVERALL]
    return judge_run(
        findings, set(overall.loc[overall["cases"] == 0, "method"]), directory, console
    )


def judge_run(findings: Findings, dead: Collection[str], directory: Path, console: Console) -> int:
    """As of one run, for the loads of a search. dead: methods of which nothing was decoded.
    directory: of the records.

    Violations of vanilla (the noise floor), lossy methods and half precision do not count.
    """
    overall = findings.summary[findings.summary["category"] == OVERALL]
    if dead:
        names = plain(", ".join(sorted(dead)))
        console.print(
            f"[red]no case of {names} could be decoded[/]: see error in"
            f" {plain(directory)}/records.jsonl"
        )
    judged = overall[~overall["method"].isin({VANILLA, CONTROL, *findings.lossy})]
    violations = (
        int(judged["violations"].fillna(0).sum())
        if findings.runs[0].about.model.dtype in EXACT
        else 0
    )
    if violations:
        console.print(
            f"[red]{violations} tokens are not the target's own[/]: see lossless in"
            f" {plain(directory)}/records.jsonl"
        )
    return FAILED if dead or violations else DONE


def plain(text: object) -> str:
    """A text that markup does not change, without characters that steer a terminal."""
    return escape(printable(str(text)))


def open_console() -> Console:
    """A console as wide as the terminal; at least as wide as the tables if output goes to a file or
    a pipe.
    """
    console = Screen()
    return console if console.is_terminal else Screen(width=max(TABLE_WIDTH, console.width))


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Log into the run's directory; the file is made with the first message."""
    if path.exists():
        refuse_irregular(path, "", "expected the log of a run: remove it")
    handler = logging.FileHandler(path, delay=True, encoding="utf-8")
    handler.setFormatter(Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk: the records report it
    loggers = [logging.getLogger(name) for name in ("specbench", "methods")]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


def _spell_s(seconds: float) -> str:
    """'0:35', '12:05', '3:04:05'."""
    return re.sub("^0:0?", "", str(timedelta(seconds=round(seconds))), count=1)


class Progress:
    """The live display of a run, a context manager; call ``observe`` after every block."""

    def __init__(self, console: Console, enabled: bool, timed: bool = True) -> None:
        """timed: show tokens/s, which a replay does not have."""
        self._timed = timed
        self._console = console
        self._live_wanted = enabled and console.is_terminal
        # method -> sums of its records
        self._tallies: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("blocks"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console,
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

    def show(self, what: str) -> None:
        """Show what is done before the first block; off a terminal, if the step before took
        long.
        """
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
            tally = self._tallies[record.method]
            tally["errors"] += record.status != "ok"
            for turn in record.turns if record.status == "ok" else ():
                tally.update(
                    tokens=len(turn.ids), accepted=sum(turn.accept), steps=len(turn.accept)
                )
                tally["seconds"] += turn.wall_s  # type: ignore[assignment]
        now = time.monotonic()
        earlier = done > self._done + 1  # blocks of another process; the model is yet to be loaded
        if not (earlier or self._first[0]):
            turns = [turn for record in records for turn in record.turns]
            self._first, self._block_s = (done, now), sum(turn.wall_s for turn in turns)
        self._done = done
        self._bar.update(
            self._task,
            description="loading" if earlier else "decoding",
            completed=done,
            total=total,
        )
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
        return (
            f"{text}, about {_spell_s(each_s * (total - done))} left"
            if each_s and done < total
            else text
        )

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        speeds = ("tokens/s",) if self._timed else ()
        for name in ("method", "MAT", *speeds, "errors"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for name, tally in self._tallies.items():
            mat = f"{tally['accepted'] / tally['steps']:.2f}" if tally["steps"] else ""
            speed = f"{tally['tokens'] / tally['seconds']:.1f}" if tally["seconds"] else ""
            table.add_row(
                plain(name), mat, *([speed] if self._timed else []), str(tally["errors"] or "")
            )
        return Group(self._bar, table)
