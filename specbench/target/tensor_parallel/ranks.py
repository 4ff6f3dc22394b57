"""The processes of the other ranks as rank 0 sees them: started, watched, ended; what one dies of is told.

A process that is gone is noticed by its sentinel, wherever rank 0 waits just then; the ranks notice the end of rank 0
in the same way. So nothing of a run outlives it, and no rank waits for one that is gone.
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

from specbench.target.tensor_parallel.team import BrokenError, Message, Op, Team, TeamError
from specbench.types import InputError

GRACE_S = 5.0  # for a process to end, and for its end to be noticed
ABORT_S = 20.0  # for rank 0 to come back from a device that waited for a lost rank
LOST = 1  # exit code


class Ranks:
    """The processes of ranks 1 to N - 1."""

    def __init__(self, run: Callable[..., None], seats: Sequence[Any]) -> None:
        """Start them. run: (seat, connection), known by name. seats: one each, picklable, with rank and device."""
        context = torch.multiprocessing.get_context("spawn")
        self._seats, self._closing, self._gone = list(seats), False, ""
        self._ends: list[Connection] = []
        self._lock = threading.Lock()
        self._words: dict[int, dict[str, str]] = {}
        self.processes: list[Any] = []
        for seat in seats:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run, args=(seat, theirs), daemon=True, name=f"rank {seat.rank}")
            process.start()
            theirs.close()  # so that its end is noticed here
            self._ends.append(ours)
            self.processes.append(process)

    def await_ready(self) -> None:
        """Until every rank has loaded its share. Raises InputError or TeamError with what a rank says instead."""
        for place, end in enumerate(self._ends):
            word = self._hear(place) if wait([end, self.processes[place].sentinel]) else {}
            if word.get("kind") == "InputError":
                raise InputError(word["text"])
            if word.get("kind") != "ready":
                raise TeamError(self._story(place))
            del self._words[place]

    def _hear(self, place: int) -> dict[str, str]:
        """What a rank has said, if anything."""
        with contextlib.suppress(EOFError, OSError):
            if place not in self._words and self._ends[place].poll():
                self._words[place] = json.loads(self._ends[place].recv_bytes())
        return self._words.get(place, {})

    def _story(self, place: int) -> str:
        process = self.processes[place]
        process.join(GRACE_S)
        word = self._hear(place)
        said = f": {word['kind']}: {word['text']}" if word else ""
        return f"{self._name(place)} ended with exit code {process.exitcode}{said}"

    def lost(self, patience_s: float = 0.0) -> str:
        """Which ranks are gone and why, the cause before those that fell with it; empty while all are there."""
        ended = wait([process.sentinel for process in self.processes], patience_s)
        with self._lock:  # two threads that ask for one exit code at once: one of them gets none
            dead = [place for place, process in enumerate(self.processes) if process.sentinel in ended]
            dead.sort(key=lambda place: bool(self._hear(place)))  # one that was killed says nothing
            return "; ".join(map(self._story, dead))

    def require_all(self) -> None:
        """Raise TeamError once a rank is known to be gone."""
        if self._gone:
            raise TeamError(f"{self._gone}; what is done is safe, the same command goes on from there")

    def explain(self, error: Exception) -> None:
        """Raise TeamError for an error that comes of a rank that is gone, or of one that is stuck."""
        broken = isinstance(error, BrokenError)
        self._gone = self._gone or self.lost(GRACE_S if broken else 0)
        if broken and not self._gone:
            self._gone = f"{' or '.join(map(self._name, range(len(self._seats))))} does not answer ({error})"
        self.require_all()

    def _name(self, place: int) -> str:
        return f"rank {self._seats[place].rank} (process {self.processes[place].pid}, {self._seats[place].device})"

    def watch(self, team: Team) -> None:
        """From now on notice, beside the work, when a rank is gone."""
        self._asked_to_end, self._told_to_end = torch.multiprocessing.get_context("spawn").Pipe(duplex=False)
        threading.Thread(target=self._watch, args=(team,), daemon=True, name="ranks").start()

    def _watch(self, team: Team) -> None:
        wait([self._asked_to_end, *(process.sentinel for process in self.processes)])
        if self._closing:
            return
        self._gone = self._gone or self.lost(GRACE_S)
        if team.device.type != "cuda":
            return  # gloo tells whoever waits
        team.abort()
        if not self._asked_to_end.poll(ABORT_S):
            print(f"specbench: error: {self._gone}; rank 0 waits for it on its device", file=sys.stderr, flush=True)
            os._exit(LOST)

    def close(self, team: Team | None = None) -> None:
        """End them; one that does not end is ended."""
        if self._closing:
            return
        self._closing = True
        if team is not None:
            self._told_to_end.close()
            if not self._gone and not self.lost():
                with contextlib.suppress(RuntimeError):
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
