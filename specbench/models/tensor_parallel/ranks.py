"""The processes of the other ranks as rank 0 sees them: started, watched, ended, with the reason of an early end.

Rank 0 watches the sentinel of every process in a thread of its own, and each rank watches rank 0's. So no process of a
run outlives it, and no rank waits for one that has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.multiprocessing

from specbench.models.tensor_parallel.team import BrokenError, Message, Op, Team, TeamError
from specbench.types import InputError

GRACE_S = 5.0  # for a process to end, and for its end to be noticed
ABORT_S = 20.0  # for rank 0 to come back from a device that waited for a lost rank
LOST = 1  # exit code


class Ranks:
    """The processes of ranks 1 to N - 1."""

    def __init__(self, run: Callable[..., None], seats: Sequence[Any]) -> None:
        """Start them. run: (seat, connection), a module's function. seats: picklable, with rank and device."""
        context = torch.multiprocessing.get_context("spawn")
        self._seats, self._closing, self._gone = list(seats), False, ""
        self._ends: list[Connection] = []
        self._lock = threading.Lock()
        self._reports: dict[int, dict[str, str]] = {}
        self.processes: list[Any] = []
        for seat in seats:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run, args=(seat, theirs), daemon=True, name=f"rank {seat.rank}")
            process.start()
            theirs.close()  # so that reading ends with the process
            self._ends.append(ours)
            self.processes.append(process)

    def await_ready(self) -> None:
        """Wait until every rank has loaded its share. Raises InputError or TeamError with a rank's own error."""
        for place, end in enumerate(self._ends):
            report = self._report_of(place) if wait([end, self.processes[place].sentinel]) else {}
            if report.get("kind") == "InputError":
                raise InputError(report["text"])
            if report.get("kind") != "ready":
                raise TeamError(self._describe_end(place))
            del self._reports[place]

    def _report_of(self, place: int) -> dict[str, str]:
        """A rank's report, {} without one."""
        with contextlib.suppress(EOFError, OSError):  # a process that was killed has left none
            if place not in self._reports and self._ends[place].poll():
                self._reports[place] = json.loads(self._ends[place].recv_bytes())
        return self._reports.get(place, {})

    def _describe_end(self, place: int) -> str:
        process = self.processes[place]
        process.join(GRACE_S)
        report = self._report_of(place)
        reason = f": {report['kind']}: {report['text']}" if report else ""
        return f"{self._name(place)} ended with exit code {process.exitcode}{reason}"

    def describe_lost(self, patience_s: float = 0.0) -> str:
        """Which ranks have ended and why, the first to end before the others; empty while all run."""
        ended = wait([process.sentinel for process in self.processes], patience_s)
        with self._lock:  # of two threads that read an exit code at once, one gets none
            dead = [place for place, process in enumerate(self.processes) if process.sentinel in ended]
            dead.sort(key=lambda place: bool(self._report_of(place)))  # one that was killed has no report
            return "; ".join(map(self._describe_end, dead))

    def require_all(self) -> None:
        """Raise TeamError once a rank has ended."""
        if self._gone:
            raise TeamError(f"{self._gone}; finished cases are saved; the same command resumes the run")

    def explain(self, error: Exception) -> None:
        """Raise TeamError where ``error`` comes from a rank that has ended or is stuck."""
        broken = isinstance(error, BrokenError)
        self._gone = self._gone or self.describe_lost(GRACE_S if broken else 0)
        if broken and not self._gone:
            self._gone = f"{' or '.join(map(self._name, range(len(self._seats))))} does not answer ({error})"
        self.require_all()

    def _name(self, place: int) -> str:
        return f"rank {self._seats[place].rank} (process {self.processes[place].pid}, {self._seats[place].device})"

    def watch(self, team: Team) -> None:
        """Start the thread that watches the processes."""
        self._end_received, self._end_sent = torch.multiprocessing.get_context("spawn").Pipe(duplex=False)
        threading.Thread(target=self._watch, args=(team,), daemon=True, name="ranks").start()

    def _watch(self, team: Team) -> None:
        wait([self._end_received, *(process.sentinel for process in self.processes)])
        if self._closing:
            return
        self._gone = self._gone or self.describe_lost(GRACE_S)
        if team.device.type != "cuda":
            return  # gloo ends its own waits
        team.abort()
        if not self._end_received.poll(ABORT_S):
            print(
                f"specbench: error: {self._gone}; rank 0 still waits for it on its device",
                file=sys.stderr,
                flush=True,
            )
            os._exit(LOST)

    def close(self, team: Team | None = None) -> None:
        """End the processes; kill one that does not end by itself."""
        if self._closing:
            return
        self._closing = True
        if team is not None:
            self._end_sent.close()
            if not self._gone and not self.describe_lost():
                with contextlib.suppress(RuntimeError):  # a rank that ends just now needs no message
                    team.send_last(Message(Op.STOP))
        for process in self.processes:
            process.join(GRACE_S if team is not None and not self._gone else 0)
            if process.is_alive():
                process.kill()
            process.join()
        for end in self._ends:
            end.close()
        if team is not None:
            team.leave()
